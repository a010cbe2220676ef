"""Give the verdict on the files of two runs, with the real tensor reader in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.compare.outputs import results as flow
from repro_env.compare.outputs import verdict as judging
from repro_env.compare.outputs.ignore import parse
from repro_env.compare.outputs.results import Globs, Side
from repro_env.compare.outputs.tensors import Answer, answers
from repro_env.compare.outputs.verdict import Promise, Verdict
from repro_env.guest.tensors import pairs
from repro_env.schema.run import End, Outcome

COMPARE = Path(pairs.__file__).parents[1] / "compare.py"
BITWISE = Promise(level="bitwise", sentence="expected: bitwise identical")
NUMERIC = Promise(level="numeric", sentence="expected: numeric")


def look(files: Sequence[tuple[Path, Path]]) -> tuple[Answer, ...]:
    """Return the answers of the tensor reader, through JSON as in a run. NumPy is not used; it is tested elsewhere."""
    return answers(msgspec.json.encode([pairs.compare(str(left), str(right), None) for left, right in files]), len(files))


def end(others: tuple[str, ...] = (), removed: tuple[str, ...] = (), code: int = 0) -> End:
    return End(
        schema="repro-env/run-end/1",
        id="id",
        ended="2026-07-01T00:00:00.000Z",
        seconds=1.0,
        outcome=Outcome(exit_code=code, signal=0, out_of_memory=False, isolation="embedded", methods=()),
        outputs=(),
        special_files=others,
        removed=removed,
        auto_seeded=(),
    )


def side(root: Path, files: Mapping[str, bytes], others: tuple[str, ...] = (), removed: tuple[str, ...] = ()) -> Side:
    digests, paths = {}, {}
    for path, data in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        digests[path] = f"sha256:{hashlib.sha256(data).hexdigest()}"
        paths[path] = file
    return Side(digests, paths, end(others=others, removed=removed), root)


def judge(
    root: Path,
    left: Mapping[str, bytes],
    right: Mapping[str, bytes],
    *,
    results: tuple[str, ...] = (),
    ignored: tuple[str, ...] = (),
    promise: Promise = BITWISE,
    links: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
    removed: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
) -> Verdict:
    then, now = side(root / "left", left, links[0], removed[0]), side(root / "right", right, links[1], removed[1])
    globs = Globs(results=results, ignored=tuple(map(parse, ignored)))
    return judging.verdict(flow.compare(then, now, globs, look), promise)
