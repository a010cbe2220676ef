"""The differences that count, and the texts that accept them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest

from repro_env.compare.outputs.comparison import Accept, File
from repro_env.compare.outputs.judge import Judge
from repro_env.compare.outputs.tensors import Answer
from tests.compare.outputs import sides
from tests.compare.outputs.evidence import NOW, THEN
from tests.fakes.tensors import Tensor, npy

CLOCKS = (2026, 3, 4, 9, 15, 2), (2026, 3, 5, 14, 2, 12)


def judge_file(directory: Path, name: str, then: bytes, now: bytes, *ignored: str) -> File:
    (found,) = sides.judge(directory, {name: then}, {name: now}, ignored=ignored).files
    return found


def zipped(content: str, clock: tuple[int, int, int, int, int, int] = CLOCKS[0]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(zipfile.ZipInfo("m.json", clock), content)
    return data.getvalue()


def test_a_time_in_a_header_of_an_archive_does_not_count(tmp_path: Path) -> None:
    found = judge_file(tmp_path, "a.zip", zipped("{}", CLOCKS[0]), zipped("{}", CLOCKS[1]))
    assert (found.level, found.ignored[0].reason) == ("equal except for", "a field that the format defines as a time")
    found = judge_file(tmp_path, "a.txt.gz", gzip.compress(b"a", mtime=1), gzip.compress(b"a", mtime=2))
    assert (found.level, found.ignored[0].then, found.ignored[0].now) == ("equal except for", "1", "2")


@pytest.mark.parametrize(
    ("name", "then", "now"),
    [
        ("a.json", b'{"run (time)": 5.5}', b'{"run (time)": 6.5}'),
        ("a.csv", b"step,(time)\n1,5.5\n", b"step,(time)\n1,6.5\n"),
        ("a.pkl", pickle.dumps({"run (time)": 5.5}), pickle.dumps({"run (time)": 6.5})),
        ("a.pkl", pickle.dumps({"(time)": "2026-03-04 09:15:02"}), pickle.dumps({"(time)": "2026-03-05 09:15:02"})),
        ("a.zip", zipped('{"run (time)": 5.5}'), zipped('{"run (time)": 6.5}')),
    ],
)
def test_a_key_with_the_name_of_a_header_field_counts(tmp_path: Path, name: str, then: bytes, now: bytes) -> None:
    assert judge_file(tmp_path, name, then, now).level == "different"


def test_the_user_accepts_a_time_in_a_header_of_a_strict_file(tmp_path: Path) -> None:
    files = [{"a.zip": zipped("{}", clock)} for clock in CLOCKS]
    assert sides.judge(tmp_path / "a", *files, results=("a.zip",)).level == "different"
    found = sides.judge(tmp_path / "b", *files, results=("a.zip",), ignored=("a.zip:m.json (time)",))
    assert found.level == "equal except for"


@pytest.mark.parametrize(
    ("name", "then", "now"),
    [
        ("a.json", b'{"a": 1}', b'{"a":  1}'),
        ("a.csv", b"a,b\n1,2\n", b'a,b\n"1",2\n'),
        ("a.txt.gz", gzip.compress(b"a" * 99, 0, mtime=1), gzip.compress(b"a" * 99, 9, mtime=2)),
        ("a.json.gz", gzip.compress(b'{"a": 1}', mtime=1), gzip.compress(b'{"a":  1}', mtime=2)),
    ],
)
def test_a_difference_outside_of_all_values_counts(tmp_path: Path, name: str, then: bytes, now: bytes) -> None:
    assert judge_file(tmp_path / "a", name, then, now).level == "different"
    assert judge_file(tmp_path / "b", name, then, now, f"{name}:(packing)").level == "equal except for"


def test_gzip_in_gzip_is_compared_by_its_bytes(tmp_path: Path) -> None:
    then, now = (gzip.compress(gzip.compress(b"a", mtime=time), mtime=0) for time in (1, 2))
    assert judge_file(tmp_path, "a.gz.gz", then, now).level == "different"


def test_a_difference_outside_of_all_values_counts_in_a_renamed_file() -> None:
    file = File(path="out/2026-07-01/10-15-30/w.pt", now="out/2026-07-02/11-00-00/w.pt", kind="result")
    judge = Judge(THEN, NOW)
    assert judge.equal(file).level == "equal except for"
    assert judge.of_answer(file, Answer(tensors=1), lambda: (b"a", b"b")).level == "different"


def test_each_accepted_text_has_both_values(tmp_path: Path) -> None:
    then, now = ({f"loss_{number:02}": value for number in range(40)} for value in (0.5, 0.75))
    found = judge_file(tmp_path, "m.json", json.dumps(then).encode(), json.dumps(now).encode())
    assert len(found.shown) == 12
    assert found.accept == tuple(Accept(f"m.json:loss_{number:02}", "0.5", "0.75") for number in range(40))


def test_a_text_that_accepts_many_lines_has_the_values_of_the_first(tmp_path: Path) -> None:
    then, now = ("".join(f"epoch {number} took {number + delta} s\n" for number in range(30)) for delta in (1, 2))
    found = judge_file(tmp_path, "a.log", then.encode(), now.encode())
    assert found.accept == (Accept("a.log:took {}", "epoch 0 took 1 s", "epoch 0 took 2 s"),)


def test_a_difference_without_a_text_cannot_be_accepted(tmp_path: Path) -> None:
    assert judge_file(tmp_path / "a", "a.txt", b"took 1 s\n", b"took 2 s\nmore\n").accept == ()
    assert judge_file(tmp_path / "b", "w.npy", npy(Tensor([1.0])), npy(Tensor([2.0]))).accept == ()


def test_shown_values_have_no_secrets(tmp_path: Path) -> None:
    found = judge_file(tmp_path, "m.json", b'{"api_key": "x1y2z3a4b5c6"}', b'{"api_key": "q7w8e9r1t2y3"}')
    assert "x1y2z3a4b5c6" not in str(found)
    assert found.level == "different"


def test_a_table_below_a_line_of_json_is_read(tmp_path: Path) -> None:
    then, now = (f'#{{"t_start": 5, "env_id": "Pole"}}\nr,l,t\n9.0,9,{time}\n8.0,8,{2 * time}\n'.encode() for time in (1.5, 1.75))
    found = judge_file(tmp_path / "a", "0.monitor.csv", then, now)
    assert found.accept == (Accept("0.monitor.csv:t", "1.5", "1.75"),)
    assert judge_file(tmp_path / "b", "0.monitor.csv", then, now, "0.monitor.csv:t").level == "equal except for"
    assert (
        judge_file(tmp_path / "c", "0.monitor.csv", then, now.replace(b"Pole", b"Cart"), "*.monitor.csv:t").level == "different"
    )


def test_a_text_for_a_path_with_values_of_its_run_has_a_pattern() -> None:
    time = "2026-07-01/10-15-40"
    file = File(path=f"logs/{time}/[a].csv", now="logs/2026-07-02/11-00-10/[a].csv", kind="result")
    judge = Judge(THEN, NOW)
    found = judge.of_bytes(file, b"a,t\n1,1.5\n", b"a,t\n1,2.5\n")
    assert [accept.text for accept in found.accept] == ["logs/*/*/[[]a].csv:t"]
    found = judge.with_option(judge.of_bytes(file, b"a,t\n1,1.5\n", b"a,t\n1,2.5\n1,2\n"))
    assert (found.accept, found.accept_file) == ((), "logs/*/*/[[]a].csv")


def test_the_library_list_explains_only_durations_at_the_place_of_the_field() -> None:
    def level(then: tuple[str, str], now: tuple[str, str]) -> str | None:
        file = File(path="joblib/f/metadata.json", now="joblib/f/metadata.json", kind="result")
        text = '{"duration": %s, "input_args": {"duration": %s}, "time": 5}'
        return Judge(THEN, NOW).of_bytes(file, *((text % values).encode() for values in (then, now))).level

    assert level(("1.5", "3"), ("2.5", "3")) == "equal except for"
    assert level(("1.5", "3"), ("null", "3")) == "different"
    assert level(("1.5", "3"), ('"2.5"', "3")) == "different"
    assert level(("1.5", "3"), ("1.5", "4")) == "different", "an argument of the call"


def test_a_changed_time_zone_is_no_time_of_the_run() -> None:
    def level(then: str, now: str) -> str | None:
        file = File(path="a.txt", now="a.txt", kind="result")
        return Judge(THEN, NOW).of_bytes(file, f"at {then}".encode(), f"at {now}".encode()).level

    assert level("2026-07-01T10:00:00+02:00", "2026-07-02T10:00:00+02:00") == "equal except for"
    assert level("2026-07-01T10:00:00+02:00", "2026-07-02T10:00:00+01:00") == "different"
    assert level("2026-07-01T10:00:00 UTC", "2026-07-02T10:00:00 GMT") == "different"


def test_a_binary_file_that_differs_in_most_bytes_is_accepted_as_a_whole(tmp_path: Path) -> None:
    then, now = (b"\0" + bytes((factor * byte) % 251 + 1 for byte in range(64)) for factor in (3, 5))
    found = judge_file(tmp_path / "a", "model.bin", then, now)
    assert (found.accept, found.accept_file) == ((), "model.bin:*")
    found = judge_file(tmp_path / "b", "model.bin", then, then[:20] + b"\0\1\2" + then[23:])
    assert [accept.text for accept in found.accept] == ["model.bin:(byte 20)"]
