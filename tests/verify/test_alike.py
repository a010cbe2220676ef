"""Text, JSON, tables and events that look alike: each was once taken for the same, or for different, by mistake."""

from __future__ import annotations

import gzip
import random
import re
import struct

import pytest

from repro_env.verify import closeness, masks, outputs
from repro_env.verify.outputs import kind_of
from tests.fakes.tensors import events


def packed(text: str, when: int) -> str:
    """As gzip packs it, each byte a character."""
    return gzip.compress(text.encode(), mtime=when).decode("latin-1")


DIFFERENT: dict[str, tuple[str, str, str]] = {
    "a least value before a number": ("r.txt", "max 0.9 min 0.1 mean 0.5\n", "max 0.8 min 0.1 mean 0.5\n"),
    "a least value after its number": ("r.txt", "0.9 max, 0.2 min\n", "0.9 max, 0.1 min\n"),
    "a standard deviation": ("r.txt", "m 0.9 s 0.1\n", "m 0.8 s 0.1\n"),
    "a speed that is predicted": ("r.txt", "wind 0.42 m/s\n", "wind 0.97 m/s\n"),
    "an error in seconds": ("r.txt", "rmse: 0.42 s\n", "rmse: 0.97 s\n"),
    "an error by the second": ("r.txt", "mae=12 samples/s\n", "mae=13 samples/s\n"),
    "a column before a span": ("r.txt", "1,5,12 s\n", "1,6,12 s\n"),
    "a column after a time": ("r.txt", "2026-07-01 10:15:30,45\n", "2026-07-01 10:15:30,46\n"),
    "a fraction after a time": ("r.txt", "10:15:30,0.5\n", "10:15:30,1.5\n"),
    "three digits after a time": ("r.txt", "2026-07-01T10:15:30,125\n", "2026-07-01T10:15:30,126\n"),
    "a negative number after a time": ("r.txt", "2026-07-01 10:15:30 -1200.5\n", "2026-07-01 10:15:30 -1100.5\n"),
    "a negative count after a time": ("r.txt", "2026-07-01 10:15:30 -1234\n", "2026-07-01 10:15:30 -1235\n"),
    "a number after a time that looks like a zone": ("r.txt", "2026-07-01 10:15:30 -1015\n", "2026-07-01 10:15:30 -1215\n"),
    "a number in a packed text": ("r.txt.gz", packed("loss 0.5\n", 1), packed("loss 0.6\n", 1)),
    "a packed text that is cut off": ("r.txt.gz", packed("loss 0.5\n", 1), packed("loss 0.5\n", 1)[:-1]),
    "a packed text with more after it": ("r.txt.gz", packed("loss 0.5\n", 1), packed("loss 0.5\n", 1) + "x"),
    "a count after a day": ("r.txt", "Jul  1 10:15:30 2048 samples\n", "Jul  1 10:15:30 2047 samples\n"),
    "a checksum": ("r.txt", "crc 0x1a2b3c4d\n", "crc 0x1a2b3c4e\n"),
    "a controller's constants": ("r.txt", "PID 0.5 0.1 0\n", "PID 1.5 0.1 0\n"),
    "a large number of a product": ("r.txt", "pid 9876543210\n", "pid 9876543211\n"),
    "a score": ("r.txt", "host: 3 guest: 1\n", "host: 2 guest: 1\n"),
    "a score in JSON": ("r.json", '{"host": 3, "guest": 1}', '{"host": 2, "guest": 1}'),
    "data of another name": ("r.json", '{"data": "/d/train1"}', '{"data": "/d/train2"}'),
    "a key twice": ("r.json", '{"a": 1, "a": 2}', '{"a": 3, "a": 2}'),
    "a time that is missing": ("r.json", '{"time": 1.5, "a": 1}', '{"a": 1}'),
    "a list of times that is longer": ("r.json", '{"time": [1.5, 2.5]}', '{"time": [1.5, 2.5, 3.5]}'),
    "a line's end in a cell": ("r.csv", 'a,b\n"x\ny",1\n', 'a,b\n"xy",1\n'),
    "a column of a table without a header": ("r.csv", "2026-07-01 10:15:30,125\n", "2026-07-01 10:15:30,126\n"),
    "labels that are bytes": ("labels.bin", "\x01\x0a\x02", "\x01\x0d\x02"),
    "labels that are ends of lines": ("labels.bin", "\x0a", "\x0d"),
    "numbers that are text by chance": ("labels.i4", "\x0b\0\0\0", "\x0c\0\0\0"),
    "a form feed for an end of line": ("r.txt", "a\x0cb\n", "a\nb\n"),
    "a character of Unicode for an end of line": ("r.txt", "a\u2028b\n", "a\nb\n"),
    "a compressed stream of a PDF": ("r.pdf", "%PDF stream\n\xffab\x0acd", "%PDF stream\n\xffab\x0dcd"),
    "a time in a stream of a PDF": ("r.pdf", "%PDF \xff 10:15:30", "%PDF \xff 10:15:31"),
    "a name in a picture that is no random one": (
        "a.svg",
        "<use href='#C0_part_1234567890'/>\n",
        "<use href='#C0_part_1234567891'/>\n",
    ),
    "a picture's link": ("a.svg", "<a href='x?image1234567890'/>\n", "<a href='x?image1234567891'/>\n"),
    "a seed beside a path": ("r.json", '{"run": "a/b.py --seed 1795344171"}', '{"run": "a/b.py --seed 1795344172"}'),
    "a seed before a path": ("r.json", '{"run": "20260101 a/b"}', '{"run": "20260102 a/b"}'),
    "a counter beside a path": ("r.json", '{"run": "a/run-3 ok"}', '{"run": "a/run-4 ok"}'),
    "a host of a virus": ("r.csv", "host,y\nbat,1\n", "host,y\ncivet,1\n"),
    "a duration of somebody's": ("metadata.json", '{"duration": 0.5}', '{"duration": 0.6}'),
    "a duration in a notebook": (
        "r.ipynb",
        '{"cells": [{"outputs": [{"duration": 0.5}]}]}',
        '{"cells": [{"outputs": [{"duration": 0.6}]}]}',
    ),
    "a cell's own name": ("r.ipynb", '{"cells": [{"id": "first"}]}', '{"cells": [{"id": "second"}]}'),
    "a time of a model's": (
        "catboost_info/catboost_training.json",
        '{"iterations": [{"learn": [0.5], "remaining_time": 1.5}]}',
        '{"iterations": [{"learn": [0.6], "remaining_time": 1.6}]}',
    ),
    "a checksum in MLflow's description of a model": ("MLmodel", f"data: {'0a' * 16}\n", f"data: {'1a' * 16}\n"),
    "a run's name in any other text": ("r.yaml", f"run_id: {'0a' * 16}\n", f"run_id: {'1a' * 16}\n"),
    "numbers like a PDF's": ("r.pdf", f"%PDF\xff\n[<{'0a' * 16}><{'0b' * 16}>]", f"%PDF\xff\n[<{'0a' * 16}><{'1b' * 16}>]"),
    "a place in a page": ("r.html", '<td id="T_1">1</td>\n', '<td id="T_2">1</td>\n'),
    "how far rich drew a bar, where that is a result": ("r.txt", "a ━━━━ 4\n", "a ━━━ 4\n"),
    "a score's time of something else": ("r.csv", "goal,score_time\n1,0.5\n", "goal,score_time\n1,0.6\n"),
    "a number after a random name": (
        "r.txt",
        "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f-1782900930\n",
        "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f-1782900931\n",
    ),
    "a place in a picture": ("a.svg", "<path d='M 1 m1234567890'/>\n", "<path d='M 1 m1234567891'/>\n"),
}
ALMOST: dict[str, tuple[str, str, str]] = {
    "minus zero": ("r.json", '{"a": 0.0}', '{"a": -0.0}'),
    "digits that no float holds": ("r.json", '{"a": 0.12345678901234567890}', '{"a": 0.12345678901234567891}'),
    "numbers that no float holds": ("r.json", '{"a": 1e400}', '{"a": 1e500}'),
}
SAME: dict[str, tuple[str, str, str]] = {
    "a list of times": ("r.json", '{"a": 1, "epoch_time": [1.5, 2.5]}', '{"a": 1, "epoch_time": [1.25, 3.5]}'),
    "spans one after the other": ("r.txt", "took 3 min 20 s, fine\n", "took 4 min 1 s, fine\n"),
    "a span and a speed": ("r.txt", "took 12.3 s 341.2 samples/s\n", "took 9.1 s 302 samples/s\n"),
    "Keras's line": ("r.txt", "1/1 - 0s 12ms/step - loss: 0.5\n", "1/1 - 1s 14ms/step - loss: 0.5\n"),
    "megabytes by the second": ("r.txt", "read at 12.5 MB/s\n", "read at 99 MB/s\n"),
    "logging's milliseconds": ("r.txt", "2026-07-01 10:15:30,123 INFO a\n", "2026-07-02 11:15:30,456 INFO a\n"),
    "a zone": ("r.txt", "2026-07-01T10:15:30+02:00 a\n", "2026-07-02T10:15:30-0530 a\n"),
    "an address with numbers in it": ("r.txt", "host: 10.1.2.3\n", "host: 10.1.2.4\n"),
    "when a text was packed": ("r.csv.gz", packed("a,b\n1,2\n", 1), packed("a,b\n1,2\n", 2)),
    "a time in a text that was packed": ("r.json.gz", packed('{"time": 1}', 1), packed('{"time": 2}', 2)),
    "quotes around cells": ("r.csv", "a,b\nx,1\n", '"a","b"\n"x","1"\n'),
    "a path in a sentence": (
        "r.json",
        '{"said": "saved to /w/2026-07-01/1782900930/m.pt now"}',
        '{"said": "saved to /w/2026-07-02/1782987330/m.pt now"}',
    ),
    "a notebook's cell": (
        "r.ipynb",
        '{"cells": [{"id": "0a1b2c3d", "metadata": {"papermill": {"duration": 1.5}}}]}',
        '{"cells": [{"id": "1a1b2c3d", "metadata": {"papermill": {"duration": 2.5}}}]}',
    ),
    "what joblib keeps of a call": (
        f"cache/joblib/a/f/{'0a' * 16}/metadata.json",
        '{"duration": 0.5, "time": 1.5}',
        '{"duration": 2.5e-05, "time": 2.5}',
    ),
    "a PDF's number that ReportLab wrote": (
        "r.pdf",
        f"%PDF\xff\n/ID \n[<{'0a' * 16}><{'0a' * 16}>]",
        f"%PDF\xff\n/ID \n[<{'1b' * 16}><{'1b' * 16}>]",
    ),
    "a table that pandas styled": (
        "r.html",
        '<td id="T_71042_row0">1</td>\n#T_71042 {\n',
        '<td id="T_46f23_row0">1</td>\n#T_46f23 {\n',
    ),
    "MLflow's description of a model": (
        "model/MLmodel",
        f"model_id: m-{'0a' * 16}\nrun_id: {'1a' * 16}\nartifact_path: /w/mlruns/1/models/m-{'0a' * 16}/artifacts\n",
        f"model_id: m-{'0b' * 16}\nrun_id: {'1b' * 16}\nartifact_path: /w/mlruns/1/models/m-{'0b' * 16}/artifacts\n",
    ),
    "how far rich drew a bar": ("train.log", "Epoch 1/1 ━━━━━╸━ 4/4\n", "Epoch 1/1 ━━━ 4/4\n"),
    "how long a cross-validation took": (
        "r.csv",
        "fit_time,score_time,test_score\n0.1,0.2,0.9\n",
        "fit_time,score_time,test_score\n0.3,0.4,0.9\n",
    ),
    "a PDF's number": ("r.pdf", f"%PDF\xff /ID [<{'0a' * 16}> <{'0a' * 16}>]", f"%PDF\xff /ID [<{'1b' * 16}> <{'1b' * 16}>]"),
}


def level(name: str, left: str, right: str) -> tuple[str | None, tuple[str, ...]]:
    coding = "latin-1" if name.endswith((".pdf", ".gz")) else "utf-8"
    found = outputs.of_bytes(name, name, kind_of(name), left.encode(coding), right.encode(coding))
    return found.level, found.apart


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_looks_alike_is_not_the_same(name: str) -> None:
    path, left, right = DIFFERENT[name]
    assert level(path, left, right)[0] == "different"
    assert level(path, right, left)[0] == "different"


@pytest.mark.parametrize("name", ALMOST)
def test_what_rounds_to_the_same_is_not_the_same(name: str) -> None:
    assert level(*ALMOST[name])[0] == "numeric"


@pytest.mark.parametrize("name", SAME)
def test_what_means_nothing_is_no_difference_and_is_told(name: str) -> None:
    found, apart = level(*SAME[name])
    assert found == "bitwise"
    assert apart


def test_a_file_named_after_a_module_is_a_result() -> None:
    assert kind_of("core.0.weight.npy") == "result"
    assert kind_of("a/core.1234") == "volatile"


def test_a_value_without_a_name_beside_a_time_counts() -> None:
    def summary(value: float) -> bytes:
        timed = b"\x0a\x04time\x15" + struct.pack("<f", 1.0)
        nameless = b"\x15" + struct.pack("<f", value)
        both = b"".join(b"\x0a" + bytes([len(one)]) + one for one in (timed, nameless))
        body = b"\x2a" + bytes([len(both)]) + both
        return struct.pack("<QI", len(body), 0) + body + bytes(4)

    name = "events.out.tfevents.1782900930.host.1.0"
    head = events([], at=1.0)
    assert outputs.of_bytes(name, name, "log", head + summary(1.0), head + summary(2.0)).level == "different"


LINES = (
    "epoch {} loss {} acc {}",
    "{} {} {}",
    "{},{},{}",
    "loss={}, lr={} ({})",
    "[{}, {}, {}]",
    "2026-07-01 10:15:30 {} {} {}",
    "2026-07-01 10:15:30,123 INFO {} {} {}",
    "10:15:30 {} took 3 s {} at {}",
    "pid 77 host: a {} {} {}",
    "{} s {} {}",
    "a {} b {} c {} 12 it/s",
    "max {} min {} mean {}",
)


def number(rng: random.Random) -> str:
    """As programs print them; no time, no process."""
    return rng.choice(
        (
            lambda: repr(rng.gauss(0, 10)),
            lambda: f"{rng.gauss(0, 10):.4f}",
            lambda: f"{rng.gauss(0, 1e-5):.3e}",
            lambda: str(rng.randrange(10 ** rng.randrange(1, 12))),
            lambda: f"-{rng.randrange(10000)}",
            lambda: f".{rng.randrange(1000)}",
        )
    )()


def changed(rng: random.Random, text: str) -> str:
    """One digit is another."""
    places = [at for at, one in enumerate(text) if one.isdigit()]
    at = rng.choice(places)
    return text[:at] + str((int(text[at]) + rng.randrange(1, 10)) % 10) + text[at + 1 :]


def sweep(seed: int, count: int) -> list[tuple[str, str]]:
    """Lines with one digit of one number changed that are masked all the same."""
    rng = random.Random(seed)
    wrong = []
    for _ in range(count):
        line, values = rng.choice(LINES), [number(rng) for _ in range(3)]
        place = rng.randrange(3)
        others = [changed(rng, one) if at == place else one for at, one in enumerate(values)]
        left, right = line.format(*values), line.format(*others)
        if line.startswith("{} s") and place == 0:
            continue  # that is a span
        if masks.text(left) == masks.text(right):
            wrong.append((left, right))
    return wrong


def test_no_number_in_a_line_is_masked() -> None:
    assert sweep(0, 4000) == []


@pytest.mark.soak
def test_no_number_in_very_many_lines_is_masked() -> None:
    assert sweep(1, 200000) == []


def test_every_mask_ends_soon() -> None:
    """A line made to be slow: each mask looks at it in linear time, more or less."""
    for unit in ("12 s ", "2026-07-01 ", "1 min ", "10:", "a/", "run-", "0x", "12,", "host: ", "ab"):
        masks.text(unit * 4000)
        masks.log(unit * 4000)
        masks.name(unit * 4000)
        closeness.value("a", unit * 4000, unit * 4001, masked=True)
    assert re.search("<span>", masks.text("1 s " * 4000))
