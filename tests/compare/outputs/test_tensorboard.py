"""Texts in TensorBoard event files: the run's id in them is ignored, and every other byte counts."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro_env.compare.outputs import tensorboard
from repro_env.compare.outputs.comparison import File
from repro_env.compare.outputs.evidence import Evidence
from repro_env.compare.outputs.judge import Judge

FILE = File(path="events.out.tfevents.1", now="events.out.tfevents.1", kind="result")
THEN, NOW = "01a22b2d-0c5f-709e-bccf-44c24bc54f4b", "01a22b2e-f8c2-7eda-8919-6e5c0aa3effa"


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def events(text: str, metadata: bytes = b"\n\4text") -> bytes:
    """An event file with a text, as `add_text` writes it."""
    tensor = b"\x08\7" + field(2, field(2, b"\x08\1")) + field(8, text.encode())
    value = field(1, b"run") + field(8, tensor) + field(9, metadata)
    message = field(5, field(1, value))
    return struct.pack("<Q", len(message)) + bytes(4) + message + bytes(4)


def judge(left: bytes, right: bytes) -> File:
    then, now = (Evidence(started=0, ended=1, names=((name, "the run's id"),)) for name in (THEN, NOW))
    return Judge(then, now).of_bytes(FILE, left, right)


@pytest.mark.parametrize("text", ["{}", "run {}", "| run | {} |", "{}\n"])
def test_the_id_of_a_run_in_a_text_is_ignored_and_shown(text: str) -> None:
    file = judge(events(text.format(THEN)), events(text.format(NOW)))
    assert file.level == "equal except for"
    assert [(ignored.then, ignored.now) for ignored in file.ignored] == [(THEN, NOW)]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (events(THEN), events(THEN[:-1] + "c")),
        (events(f"a {THEN}"), events(f"b {NOW}")),
        (events(f"1{THEN}"), events(f"1{NOW}")),
        (events("\\n"), events("\n")),
        (events(THEN), events(NOW, b"\n\4test")),
    ],
)
def test_every_other_difference_counts(left: bytes, right: bytes) -> None:
    assert judge(left, right).level == "different"


@given(st.one_of(st.binary(), st.binary(max_size=20).map(lambda data: field(8, field(1, data) + b"\x10\x01"))))
def test_the_text_of_bytes_is_unique(data: bytes) -> None:
    text = tensorboard._shown(data)
    assert text.isprintable()
    assert text.replace("·", "").encode("ascii").decode("unicode_escape").encode("latin-1") == data


def test_deeply_nested_messages_are_shown() -> None:
    data = b"\0"
    for _ in range(60):
        data = field(1, data)
    assert tensorboard._shown(data).replace("·", "").endswith("\\x00")
