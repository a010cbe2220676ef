"""Untrusted checkpoints with correct checksums. No code in them is executed, and every invalid value is an error."""

# ruff: noqa: PT017

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import tarfile
from pathlib import Path
from typing import Any

import torch

from repro_env.checkpoint import Checkpoint, CheckpointError, files, values
from tests.checkpoint.checks.common import fails, tiny


def _saved(directory: Path) -> Path:
    model, optimizer = tiny()
    return Path(Checkpoint(directory / "c", model=model, optimizer=optimizer, signals=False).save())


def _resume(path: Path) -> None:
    model, optimizer = tiny()
    Checkpoint(path.parent / "elsewhere", model=model, optimizer=optimizer, signals=False).resume(path)


def rewrite(path: Path, change: dict[str, Any]) -> None:
    """Change the manifest, and write matching checksums."""
    text = json.dumps(json.loads((path / files.MANIFEST).read_text()) | change).encode()
    (path / files.MANIFEST).write_bytes(text)
    (path / files.SUMS).write_text(f"{hashlib.sha256(text).hexdigest()}  {files.MANIFEST}\n")


def replace(path: Path, name: str, data: bytes) -> None:
    """Replace a file, and write matching checksums."""
    (path / name).write_bytes(data)
    entries = json.loads((path / "manifest.json").read_text())["files"]
    entries[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    rewrite(path, {"files": entries})


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.mark),))


def no_code_in_a_pickle_is_executed(directory: Path) -> None:
    """In the current format of torch, in its two older formats (the oldest is a tar), and as a plain pickle."""
    mark = directory / "ran"
    current, older = io.BytesIO(), io.BytesIO()
    torch.save({"parts": {}, "values": Evil(mark)}, current)
    torch.save({"parts": {}, "values": Evil(mark)}, older, _use_new_zipfile_serialization=False)
    plain = pickle.dumps(Evil(mark))
    oldest = io.BytesIO()
    with tarfile.open(fileobj=oldest, mode="w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            member = tarfile.TarInfo(name)
            member.size = len(plain)
            tar.addfile(member, io.BytesIO(plain))
    for name in ("state.pt", "rank-0.pt"):
        path = _saved(directory / name)
        for data in (current.getvalue(), older.getvalue(), plain, oldest.getvalue()):
            replace(path, name, data)
            fails(lambda path=path: _resume(path), name, "use another checkpoint")  # type: ignore[misc]
            assert not mark.exists()
    path = _saved(directory / "named")
    replace(path, "rank-0.pt", current.getvalue())
    fails(lambda: _resume(path), "posix.mkdir", "it was not executed")


def invalid_bytes_are_an_error(_: Path) -> None:
    byte = torch.zeros(1, dtype=torch.uint8)
    for data in (torch.zeros(3), torch.empty(9, device="meta", dtype=torch.uint8), b"text", None):
        try:
            values.decode({"repro-env": "bytes", "data": data})
        except ValueError:
            continue
        raise AssertionError(data)
    assert values.decode({"repro-env": "bytes", "data": byte.expand(5)}) == bytes(5)


def an_invalid_manifest_is_an_error(directory: Path) -> None:
    invalid: list[dict[str, Any]] = [
        {"step": "3"},
        {"step": True},
        {"batch": "1"},
        {"loader": []},
        {"metrics": {"loss": [1]}},
        {"metrics": {"loss": "low"}},
        {"files": {"../c/000001-step-0/state.pt": {"sha256": "0", "size": 1}}},
        {"files": {"state.pt": {"sha256": 3, "size": 1}}},
        {"files": {"state.pt": []}},
        {"parts": {"model": "/etc/hostname", "optimizer": "state.pt"}},
        {"parts": {"model": ["state.pt"], "optimizer": "state.pt"}},
        {"world": {}},
        {"world": 1},
        {"parts": {"model": "state.pt", "optimizer": "state.pt"}},
        {"parts": {"model": "model.safetensors", "optimizer": "model.safetensors"}},
    ]
    for number, change in enumerate(invalid):
        path = _saved(directory / str(number))
        rewrite(path, change)
        fails(lambda path=path: _resume(path), str(path))  # type: ignore[misc]


def states_of_the_wrong_type_are_errors(directory: Path) -> None:
    """The values can be loaded, but have the wrong types."""
    own: dict[str, Any] = {"rng": {}, "loader": None, "buffers": {}, "gradients": {}, "buckets": {}}
    invalid: dict[str, tuple[Any, ...]] = {
        "state.pt": ([], {"parts": 3}, {"parts": {"optimizer": 3}, "values": {}}, {"parts": {}, "values": {}}),
        "rank-0.pt": (
            *([], {}, own | {"rng": {"torch": 3}}, own | {"rng": {"python": (1, 2)}}, own | {"gradients": 3}),
            *({key: value for key, value in own.items() if key != missing} for missing in ("gradients", "buckets")),
        ),
    }
    for name, states in invalid.items():
        for number, state in enumerate(states):
            path, buffer = _saved(directory / f"{name}{number}"), io.BytesIO()
            torch.save(state, buffer)
            replace(path, name, buffer.getvalue())
            fails(lambda path=path: _resume(path))  # type: ignore[misc]


def any_header_of_weights_is_valid_or_an_error(directory: Path) -> None:
    from repro_env.checkpoint import weights

    chance = random.Random(5)
    shapes: list[Any] = [[-1, -3], [2**40, 2**40], [[1]], None, [3.5], ["3"], [0, -1]]
    for shape in shapes:
        for offsets in ([0, 12], [0, 0], [0], "ab", [chance.randrange(20), 12]):
            header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
            try:
                weights.parse(bytearray(len(header).to_bytes(8, "little") + header + bytes(12)), "it")
            except CheckpointError as error:
                assert str(error).startswith("it: ")
