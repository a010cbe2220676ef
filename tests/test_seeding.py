"""Seeds for code that wants its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

import repro_env


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPRO_ENV_SEED", raising=False)


def test_each_purpose_and_each_master_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for master in ("0", "1", "2"):
        monkeypatch.setenv("REPRO_ENV_SEED", master)
        seen += [repro_env.seed(purpose) for purpose in ("split", "train", "eval")]
    assert len(set(seen)) == 9


def test_the_numbers_stay() -> None:
    """A change here gives every split of every user another shape."""
    numbers = (repro_env.seed("split"), repro_env.seed("train"), repro_env.seed("eval", 64))
    assert numbers == (672560580, 4125391941, 10834939870502958962)


def test_no_rank_no_process_and_no_call_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_ENV_SEED", "7")
    first = repro_env.seed("split")
    monkeypatch.setenv("RANK", "3")
    assert repro_env.seed("split") == first
    code = "import repro_env; print(repro_env.seed('split'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == first


def test_outside_of_a_run_the_master_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = repro_env.seed("split")
    monkeypatch.setenv("REPRO_ENV_SEED", "0")
    assert repro_env.seed("split") == outside


def test_fewer_bits_are_the_top_of_more() -> None:
    assert repro_env.seed("x", 64) >> 32 == repro_env.seed("x") < 1 << 32
    assert repro_env.seed("x", 1) in (0, 1)
    assert repro_env.seed("x", 256) >> 192 == repro_env.seed("x", 64)


@pytest.mark.parametrize(("purpose", "bits"), [("", 32), ("x", 0), ("x", 257)])
def test_what_makes_no_sense_is_refused(purpose: str, bits: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        repro_env.seed(purpose, bits)


@pytest.mark.parametrize("master", ["-1", "x", "1.5", "٣"])
def test_a_master_that_is_no_number_is_refused(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_ENV_SEED", master)
    with pytest.raises(ValueError, match="REPRO_ENV_SEED"):
        repro_env.seed("split")


def test_importing_the_package_imports_nothing_of_it() -> None:
    code = "import sys; before = set(sys.modules); import repro_env; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['__future__', 'repro_env']"


def test_help_shows_it() -> None:
    import pydoc

    import repro_env

    shown = pydoc.plain(pydoc.render_doc(repro_env))
    assert "seed(purpose: 'str', bits: 'int' = 32) -> 'int'" in shown
    assert "Raises `ValueError`" in shown
