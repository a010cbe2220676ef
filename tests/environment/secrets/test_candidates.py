"""The engine and the search without it find the same, in every form of file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from repro_env.environment.secrets import candidates, engine, runs
from repro_env.environment.secrets.engine import Engine
from repro_env.environment.secrets.scanner import in_chunks
from tests.parts import need
from tests.secrets import habits
from tests.secrets.planted import Mint

TOKEN = b"ghp_" + b"0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R"
ALWAYS, NEVER = Engine(warm_up=0), Engine(warm_up=1 << 60)


def forms(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The content of a file, also in a program, among other bytes, with two and four bytes per character, and escaped."""
    numbers, text = random.Random(1), data.decode("latin-1")
    yield "plain.txt", data
    yield "code.py", b'x = """\n' + data + b'\n"""\n# ' + data.replace(b"\n", b" ")
    yield "program.so", b"\x7fELF" + bytes(500) + b"_ZN5torch3jit" + data + b"\0a_" + data.replace(b" ", b"\0")
    yield "data.bin", bytes(500) + numbers.randbytes(40) + data + numbers.randbytes(40) + b"x" + data
    yield "wide.bin", bytes(500) + text.encode("utf-16-le") + b"\1\2\3q" + text.encode("utf-16-be")
    yield "wider.bin", bytes(501) + text.encode("utf-32-le") + bytes(7) + text.encode("utf-32-be")
    yield "escaped.json", repr(text).encode()
    yield "page.html", data.replace(b"=", b"%3D").replace(b" ", b"%20").replace(b"\n", b"%0A")


def search(monkeypatch: pytest.MonkeyPatch, used: Engine, data: bytes, path: str) -> list[tuple[int, str]]:
    monkeypatch.setattr(candidates, "ENGINE", used)
    return in_chunks([data], path)


@pytest.fixture(autouse=True)
def _installed() -> None:
    need(engine.hyperscan() is not None, "hyperscan is missing: make dev")


def test_the_engine_finds_what_is_found_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = 0
    for path, planted in (habits.planted(Mint(5)) | habits.clean(Mint())).items():
        for name, data in [(path, planted), *forms(planted)]:
            without = search(monkeypatch, NEVER, data, name)
            assert search(monkeypatch, ALWAYS, data, name) == without, f"{path} as {name}"
            found += bool(without)
    assert found > 2000


def test_a_token_of_any_length_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(3)
    for length in (8, 500, 5000):
        part = "".join(numbers.choices("abcdefghijkmnopqrstuvwxyzABCDEF0123456789", k=length))
        data = f"value: {'ey' + 'J'}{part}.{'ey' + 'J'}{part}.{part[:40] * 3}\n".encode()
        both = [search(monkeypatch, used, data, "x.txt") for used in (ALWAYS, NEVER)]
        assert both == [[(1, "JSON web token")]] * 2


def test_the_engine_starts_after_some_bytes() -> None:
    waiting = Engine(warm_up=100)
    assert waiting.find(bytes(60), text=False) is None
    assert waiting.find(bytes(60), text=False) is not None


def test_bytes_full_of_marks_are_left_to_the_search_without_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"key " * 60_000 + b"\n" + TOKEN + b"\n"
    assert ALWAYS.find(data, text=True) is None
    assert search(monkeypatch, ALWAYS, data, "x.txt") == [(2, "GitHub token")]


def test_threads_search_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "ENGINE", ALWAYS)
    data = random.Random(5).randbytes(1 << 20) + b" " + TOKEN
    with ThreadPoolExecutor(4) as pool:
        assert set(map(tuple, pool.map(lambda _: in_chunks([data]), range(40)))) == {((0, "GitHub token"),)}


def test_without_the_module_the_search_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "hyperscan", lambda: None)
    assert search(monkeypatch, ALWAYS, b"\0" + TOKEN, "x") == [(0, "GitHub token")]


@pytest.mark.parametrize(("distance", "near"), [(50, True), (79, True), (90, False)])
def test_runs_end_where_other_characters_begin(distance: int, near: bool) -> None:
    data = b"." * 30 + b"a" * 40 + b"0" + b"." * 300
    assert list(runs.find(data.replace(b"0", b"/"), program=False)) == []
    data = data.replace(b"0", b"00")
    assert list(runs.find(data, program=False)) == [(30, 72)]
    assert runs.is_near(data, 72 + distance - 79, 72 + distance + 80, program=False) is near
