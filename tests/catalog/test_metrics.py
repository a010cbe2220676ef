from __future__ import annotations

import json
import math
import os
import random
import struct
from pathlib import Path

import pytest

from repro_env.catalog import metrics, outputs
from repro_env.catalog.events import _checksum
from repro_env.catalog.metrics import Collected
from repro_env.io import process
from repro_env.model import codec
from repro_env.model.run import Metric
from tests.parts import need


def collect(folder: Path, files: dict[str, str | bytes]) -> Collected:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return metrics.collect(folder, outputs.collect(folder).outputs)


def told(found: Collected) -> list[tuple[str, int, object, object, object]]:
    return [(one.name, one.count, one.last, one.least, one.most) for one in found.metrics]


def test_numbers_of_json_have_dotted_names_and_rows_are_series(tmp_path: Path) -> None:
    text = '{"accuracy": 0.5, "val": {"loss": 1}, "note": "x", "ok": true, "none": null, "losses": [3, 1.5, 2]}'
    found = collect(tmp_path, {"a/metrics.json": text})
    assert told(found) == [("accuracy", 1, 0.5, 0.5, 0.5), ("losses", 3, 2.0, 1.5, 3.0), ("val.loss", 1, 1.0, 1.0, 1.0)]
    assert {one.file for one in found.metrics} == {"a/metrics.json"}
    assert found.unread == ()


def test_a_row_of_objects_is_a_series_for_each_name(tmp_path: Path) -> None:
    """As the Hugging Face Trainer writes its `trainer_state.json`."""
    text = json.dumps({"log_history": [{"loss": 2.0, "step": 1}, {"loss": 1.0, "step": 2}, {"eval_loss": 1.5, "step": 2}]})
    found = collect(tmp_path, {"trainer_state.json": text})
    assert told(found) == [
        ("log_history.eval_loss", 1, 1.5, 1.5, 1.5),
        ("log_history.loss", 2, 1.0, 1.0, 2.0),
        ("log_history.step", 3, 2.0, 1.0, 2.0),
    ]


def test_numbers_without_a_name_have_the_files(tmp_path: Path) -> None:
    found = collect(tmp_path, {"score.json": "0.25", "losses.json": "[2, 1]", "rows.json": '[{"a": 1}, {"a": 2}]'})
    assert told(found) == [("losses", 2, 1.0, 1.0, 2.0), ("a", 2, 2.0, 1.0, 2.0), ("score", 1, 0.25, 0.25, 0.25)]


def test_json_lines_and_what_is_torn_in_them(tmp_path: Path) -> None:
    found = collect(tmp_path, {"log.jsonl": '{"loss": 2}\n\n{"loss": 1}\n{"loss": 0.', "no.jsonl": "INFO start\n{}\n"})
    assert told(found) == [("loss", 2, 1.0, 1.0, 2.0)]
    assert found.unread == (
        "log.jsonl (line 4 is no JSON object, it was left out)",
        "no.jsonl (line 1 is no JSON object)",
    )


def test_csv_with_empty_cells_and_words(tmp_path: Path) -> None:
    """As Lightning's CSVLogger writes it: each row has only what was logged together."""
    text = "epoch,step,train_loss,val_loss,stage\n0,9,0.5,,fit\n0,9,,0.75,fit\n1,19,2.5e-1,,fit\n"
    found = collect(tmp_path, {"metrics.csv": text, "semicolon.csv": "a;b\n1;x\n", "tab.tsv": "a\tb,c\n1\t2\n"})
    assert told(found) == [
        ("epoch", 3, 1.0, 0.0, 1.0),
        ("step", 3, 19.0, 9.0, 19.0),
        ("train_loss", 2, 0.25, 0.25, 0.5),
        ("val_loss", 1, 0.75, 0.75, 0.75),
        ("a", 1, 1.0, 1.0, 1.0),
        ("a", 1, 1.0, 1.0, 1.0),
        ("b,c", 1, 2.0, 2.0, 2.0),
    ]


def test_a_table_without_names_or_with_one_twice_is_not_read(tmp_path: Path) -> None:
    found = collect(tmp_path, {"a.csv": "0.1,0.2\n0.3,0.4\n", "b.csv": "x,x\n1,2\n", "empty.csv": ""})
    assert found.metrics == ()
    assert found.unread == ("a.csv (its first row holds numbers, and no names)", "b.csv (two columns named x)")


def test_what_is_no_finite_number_is_told_as_such(tmp_path: Path) -> None:
    text = '{"a": [1, NaN], "b": [NaN], "c": [Infinity, -Infinity, 0], "d": 1e999, "e": ' + "9" * 5000 + "}"
    found = collect(tmp_path, {"m.json": text, "m.csv": "x\nnan\n2\nInf\n"})
    assert told(found) == [
        ("x", 3, "inf", 2.0, "inf"),
        ("a", 2, "nan", 1.0, 1.0),
        ("b", 1, "nan", "nan", "nan"),
        ("c", 3, 0.0, "-inf", "inf"),
        ("d", 1, "inf", "inf", "inf"),
        ("e", 1, "inf", "inf", "inf"),
    ]
    for one in found.metrics:
        assert codec.decode(codec.canonical(one), Metric, where="") == one


def test_settings_and_vocabularies_are_no_metrics(tmp_path: Path) -> None:
    files = dict.fromkeys(
        ["config.json", "tokenizer.json", "vocab.json", "model.safetensors.index.json", "manifest.json"], '{"a": 1}'
    )
    found = collect(tmp_path, {**files, "words.json": json.dumps({f"w{n}": n for n in range(201)}), "a.ipynb": '{"a": 1}'})
    assert found == Collected(unread=("words.json (over 200 names of numbers)",))


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", _checksum(head)) + data + struct.pack("<I", _checksum(data))


def part(number: int, data: bytes) -> bytes:
    size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 0x7F | 0x80, len(data) >> 7])
    return bytes([number << 3 | 2]) + size + data


def event(tag: str, value: bytes) -> bytes:
    return record(b"\x09" + struct.pack("<d", 1.5e9) + b"\x10\x07" + part(5, part(1, part(1, tag.encode()) + value)))


def simple(value: float) -> bytes:
    return b"\x15" + struct.pack("<f", value)


def test_the_checksum_is_the_published_one() -> None:
    """CRC-32C of "123456789" is 0xE3069283 (RFC 3720); masked as `crc32c::Mask` of LevelDB does."""
    crc = 0xE3069283
    assert _checksum(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_of_event_files(tmp_path: Path) -> None:
    image = record(b"x" * 70_000)
    of_two = part(8, b"\x08\x02" + part(2, b"") + part(4, struct.pack("<d", 0.1)))
    row = part(8, b"\x08\x01" + part(2, part(2, b"\x08\x02")) + part(4, struct.pack("<ff", 1, 2)))
    data = record(part(3, b"brain.Event:2")) + event("loss", simple(2)) + image + event("loss", simple(0.5))
    data += event("double", of_two) + event("row", row) + event("bad", simple(math.nan))
    found = collect(tmp_path, {"runs/events.out.tfevents.1.host.7.0": data})
    assert told(found) == [("bad", 1, "nan", "nan", "nan"), ("double", 1, 0.1, 0.1, 0.1), ("loss", 2, 0.5, 0.5, 2.0)]


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (event("loss", simple(9))[:-1], "it ends in the middle of a record"),
        (b"\x01", "it ends in the middle of a record"),
        (b"\xff" * 40, "it holds what is no record"),
        (event("loss", simple(9))[:-1] + b"\0", "a record is not what its checksum says"),
        (record(part(5, b"\x0a\x7f")), "a record is no event"),
        (record(b"\xff" * 20), "a record is no event"),
    ],
)
def test_a_damaged_event_file_counts_up_to_the_damage(tmp_path: Path, tail: bytes, why: str) -> None:
    name = "events.out.tfevents.1"
    found = collect(tmp_path, {name: event("loss", simple(2)) + tail})
    assert told(found) == [("loss", 1, 2.0, 2.0, 2.0)]
    assert found.unread == (f"{name} ({why})",)


def test_hostile_files_never_raise(tmp_path: Path) -> None:
    names = ("a.json", "b.jsonl", "c.csv", "d.tsv", "events.out.tfevents.2")
    generator = random.Random(7)
    good = event("loss", simple(2))
    bad = [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"\x00" * 1000,
        b"\xff\xfe{\x00",
        b'"' + b"x" * 200_000,
        b"1" * 300_000 + b"x",
        b"a\n" + b"1" * 300_000 + b"x",
        b'{"' + b"n" * 300 + b'": 1}',
        json.dumps({"token": {"AKIA" + "ABCDEFGHIJKLMNOP": 1.0}}).encode(),
        b"",
        *(bytes(generator.choices(good, k=80)) for _ in range(50)),
        *(good[:cut] for cut in range(0, len(good), 3)),
    ]
    for data in bad:
        found = collect(tmp_path, dict.fromkeys(names, data))
        codec.canonical(found)
        assert not any("AKIA" in one.name for one in found.metrics)


def test_what_is_too_large_is_named_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "big.json").write_bytes(b" " * (metrics.LARGEST + 1))
    (tmp_path / "m.json").write_text('{"a": 1}')
    known = outputs.collect(tmp_path).outputs
    (tmp_path / "m.json").unlink()
    (tmp_path / "m.json").symlink_to("/etc/passwd")
    found = metrics.collect(tmp_path, known)
    assert found.metrics == ()
    assert found.unread[0] == f"big.json (over {metrics.LARGEST:,} bytes)"
    assert found.unread[1].startswith("m.json (")


def test_torchs_writer(tmp_path: Path) -> None:
    """Files of the real library."""
    python = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
    need(bool(python) and Path(python).is_file(), "no environment with TensorBoard: make trainers")
    code = """
import sys
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter(sys.argv[1])
for step in range(3):
    writer.add_scalar("loss", 1 / (step + 1), step)
    writer.add_scalar("acc", step / 3, step, new_style=True)
writer.add_text("note", "x")
writer.close()
"""
    done = process.run([python, "-c", code, str(tmp_path / "tb")])
    assert done.code == 0, done.stderr
    found = metrics.collect(tmp_path, outputs.collect(tmp_path).outputs)
    third = struct.unpack("<f", struct.pack("<f", 1 / 3))[0]
    two = struct.unpack("<f", struct.pack("<f", 2 / 3))[0]
    assert told(found) == [("acc", 3, two, 0.0, two), ("loss", 3, third, third, 1.0)]
    assert found.unread == ()
