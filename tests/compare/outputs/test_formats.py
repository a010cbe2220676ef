"""Times in the bytes of files without a reader, such as the headers of HDF5 files."""

from __future__ import annotations

import pytest

from repro_env.compare.outputs.comparison import File
from repro_env.compare.outputs.evidence import Evidence
from repro_env.compare.outputs.judge import Judge

HEADER = b"\x89HDF\r\n\x1a\n\x12\0\x08\0\0\0\0\0\x01\0\0\0"
THEN, NOW = 1782900930, 1782987330
FILE = File(path="a.h5", now="a.h5", kind="result")


def judge(left: bytes, right: bytes, *results: str) -> File:
    then, now = (Evidence(started=time - 10, ended=time + 10) for time in (THEN, NOW))
    return Judge(then, now, results=results).of_bytes(FILE, HEADER + left + b"\0end", HEADER + right + b"\0end")


def test_a_time_within_the_run_is_ignored_and_shown() -> None:
    left, right = (time.to_bytes(4, "little") for time in (THEN, NOW))
    file = judge(left, right)
    assert (file.level, file.ignored_count) == ("equal except for", 1)
    assert (file.ignored[0].then, file.ignored[0].now) == (str(THEN), str(NOW))
    assert judge(left, right, "a.h5").level == "different", "the file is strict"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (THEN, NOW + 11),
        (THEN - 11, NOW),
        (NOW, THEN),
        (1, 2),
    ],
)
def test_a_number_that_is_not_a_time_within_the_run_counts(left: int, right: int) -> None:
    assert judge(left.to_bytes(5, "little"), right.to_bytes(5, "little")).level == "different"


def test_every_other_byte_counts() -> None:
    left, right = (time.to_bytes(4, "little") for time in (THEN, NOW))
    assert judge(left + b"a", right + b"b").level == "different"
    assert judge(left, right + b"b").level == "different"
