from __future__ import annotations

import json
import math
import os
import random
import struct
from pathlib import Path

import pytest

from repro_env.io import process
from repro_env.runs.records import metrics
from repro_env.runs.records.metrics import Collected
from repro_env.runs.records.tensorboard import _checksum
from repro_env.sandbox import outputs
from repro_env.schema import codec
from repro_env.schema.run import Metric
from tests.parts import need


def collect(directory: Path, files: dict[str, str | bytes]) -> Collected:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return metrics.collect(directory, outputs.collect(directory).outputs)


def series(found: Collected) -> list[tuple[str, int, object, object, object]]:
    return [(metric.name, metric.count, metric.last, metric.least, metric.most) for metric in found.metrics]


def test_numbers_in_json_have_dotted_names_and_lists_are_series(tmp_path: Path) -> None:
    text = '{"accuracy": 0.5, "val": {"loss": 1}, "note": "x", "ok": true, "none": null, "losses": [3, 1.5, 2]}'
    found = collect(tmp_path, {"a/metrics.json": text})
    assert series(found) == [("accuracy", 1, 0.5, 0.5, 0.5), ("losses", 3, 2.0, 1.5, 3.0), ("val.loss", 1, 1.0, 1.0, 1.0)]
    assert {metric.file for metric in found.metrics} == {"a/metrics.json"}
    assert found.unparsed == ()


def test_a_list_of_objects_is_a_series_for_each_key(tmp_path: Path) -> None:
    """The Hugging Face Trainer writes its `trainer_state.json` in this form."""
    text = json.dumps({"log_history": [{"loss": 2.0, "step": 1}, {"loss": 1.0, "step": 2}, {"eval_loss": 1.5, "step": 2}]})
    found = collect(tmp_path, {"trainer_state.json": text})
    assert series(found) == [
        ("log_history.eval_loss", 1, 1.5, 1.5, 1.5),
        ("log_history.loss", 2, 1.0, 1.0, 2.0),
        ("log_history.step", 3, 2.0, 1.0, 2.0),
    ]


def test_numbers_without_a_name_are_named_after_the_file(tmp_path: Path) -> None:
    found = collect(tmp_path, {"score.json": "0.25", "losses.json": "[2, 1]", "rows.json": '[{"a": 1}, {"a": 2}]'})
    assert series(found) == [("losses", 2, 1.0, 1.0, 2.0), ("a", 2, 2.0, 1.0, 2.0), ("score", 1, 0.25, 0.25, 0.25)]


def test_invalid_json_lines_are_skipped_and_reported(tmp_path: Path) -> None:
    found = collect(tmp_path, {"log.jsonl": '{"loss": 2}\n\n{"loss": 1}\n{"loss": 0.', "no.jsonl": "INFO start\n{}\n"})
    assert series(found) == [("loss", 2, 1.0, 1.0, 2.0)]
    assert found.unparsed == (
        "log.jsonl (line 4 is not a JSON object and was skipped)",
        "no.jsonl (line 1 is not a JSON object)",
    )


def test_csv_columns_may_have_empty_cells_but_not_words(tmp_path: Path) -> None:
    """In the files of Lightning's CSVLogger, each row only has the values that were logged together."""
    text = "epoch,step,train_loss,val_loss,stage\n0,9,0.5,,fit\n0,9,,0.75,fit\n1,19,2.5e-1,,fit\n"
    found = collect(tmp_path, {"metrics.csv": text, "semicolon.csv": "a;b\n1;x\n", "tab.tsv": "a\tb,c\n1\t2\n"})
    assert series(found) == [
        ("epoch", 3, 1.0, 0.0, 1.0),
        ("step", 3, 19.0, 9.0, 19.0),
        ("train_loss", 2, 0.25, 0.25, 0.5),
        ("val_loss", 1, 0.75, 0.75, 0.75),
        ("a", 1, 1.0, 1.0, 1.0),
        ("a", 1, 1.0, 1.0, 1.0),
        ("b,c", 1, 2.0, 2.0, 2.0),
    ]


def test_a_table_without_column_names_or_with_duplicates_is_not_read(tmp_path: Path) -> None:
    found = collect(tmp_path, {"a.csv": "0.1,0.2\n0.3,0.4\n", "b.csv": "x,x\n1,2\n", "empty.csv": ""})
    assert found.metrics == ()
    assert found.unparsed == ("a.csv (the first row has numbers instead of names)", "b.csv (two columns have the name x)")


def test_numbers_that_are_not_finite_are_recorded(tmp_path: Path) -> None:
    text = '{"a": [1, NaN], "b": [NaN], "c": [Infinity, -Infinity, 0], "d": 1e999, "e": ' + "9" * 5000 + "}"
    found = collect(tmp_path, {"m.json": text, "m.csv": "x\nnan\n2\nInf\n"})
    assert series(found) == [
        ("x", 3, "inf", 2.0, "inf"),
        ("a", 2, "nan", 1.0, 1.0),
        ("b", 1, "nan", "nan", "nan"),
        ("c", 3, 0.0, "-inf", "inf"),
        ("d", 1, "inf", "inf", "inf"),
        ("e", 1, "inf", "inf", "inf"),
    ]
    for metric in found.metrics:
        assert codec.decode(codec.canonical(metric), Metric, where="") == metric


def test_settings_and_vocabularies_are_not_metrics(tmp_path: Path) -> None:
    files = dict.fromkeys(
        ["config.json", "tokenizer.json", "vocab.json", "model.safetensors.index.json", "manifest.json"], '{"a": 1}'
    )
    found = collect(tmp_path, {**files, "words.json": json.dumps({f"w{n}": n for n in range(201)}), "a.ipynb": '{"a": 1}'})
    assert found == Collected(unparsed=("words.json (more than 200 names of numbers)",))


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


def test_the_checksum_agrees_with_the_published_value() -> None:
    """The CRC-32C of "123456789" is 0xE3069283 (RFC 3720). It is masked like `crc32c::Mask` of LevelDB."""
    crc = 0xE3069283
    assert _checksum(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_in_event_files_are_read(tmp_path: Path) -> None:
    image = record(b"x" * 70_000)
    of_two = part(8, b"\x08\x02" + part(2, b"") + part(4, struct.pack("<d", 0.1)))
    row = part(8, b"\x08\x01" + part(2, part(2, b"\x08\x02")) + part(4, struct.pack("<ff", 1, 2)))
    data = record(part(3, b"brain.Event:2")) + event("loss", simple(2)) + image + event("loss", simple(0.5))
    data += event("double", of_two) + event("row", row) + event("bad", simple(math.nan))
    found = collect(tmp_path, {"runs/events.out.tfevents.1.host.7.0": data})
    assert series(found) == [("bad", 1, "nan", "nan", "nan"), ("double", 1, 0.1, 0.1, 0.1), ("loss", 2, 0.5, 0.5, 2.0)]


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (event("loss", simple(9))[:-1], "the file ends in the middle of a record"),
        (b"\x01", "the file ends in the middle of a record"),
        (b"\xff" * 40, "a record has a wrong checksum"),
        (event("loss", simple(9))[:-1] + b"\0", "a record has a wrong checksum"),
        (record(part(5, b"\x0a\x7f")), "a record is not a valid event"),
        (record(b"\xff" * 20), "a record is not a valid event"),
    ],
)
def test_a_damaged_event_file_is_read_up_to_the_damage(tmp_path: Path, tail: bytes, why: str) -> None:
    name = "events.out.tfevents.1"
    found = collect(tmp_path, {name: event("loss", simple(2)) + tail})
    assert series(found) == [("loss", 1, 2.0, 2.0, 2.0)]
    assert found.unparsed == (f"{name} ({why})",)


def test_hostile_files_raise_no_error(tmp_path: Path) -> None:
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
        assert not any("AKIA" in metric.name for metric in found.metrics)


def test_a_large_file_is_reported_and_symlinks_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "big.json").write_bytes(b" " * (metrics.LARGEST + 1))
    (tmp_path / "m.json").write_text('{"a": 1}')
    recorded = outputs.collect(tmp_path).outputs
    (tmp_path / "m.json").unlink()
    (tmp_path / "m.json").symlink_to("/etc/passwd")
    found = metrics.collect(tmp_path, recorded)
    assert found.metrics == ()
    assert found.unparsed[0] == f"big.json (larger than {metrics.LARGEST:,} bytes)"
    assert found.unparsed[1].startswith("m.json (")


def test_event_files_of_torch_are_read(tmp_path: Path) -> None:
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
    assert series(found) == [("acc", 3, two, 0.0, two), ("loss", 3, third, third, 1.0)]
    assert found.unparsed == ()
