"""`repro_env.seed`: seeds derived from the master seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import repro_env


@pytest.fixture(autouse=True)
def _unset_master_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPRO_ENV_SEED", raising=False)


def test_the_seed_depends_on_the_purpose_and_the_master_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []
    for master in ("0", "1", "2"):
        monkeypatch.setenv("REPRO_ENV_SEED", master)
        seeds += [repro_env.seed(purpose) for purpose in ("split", "train", "eval")]
    assert len(set(seeds)) == 9


def test_the_seeds_never_change() -> None:
    """A change would give every user different data splits."""
    seeds = (repro_env.seed("split"), repro_env.seed("train"), repro_env.seed("eval", 64))
    assert seeds == (672560580, 4125391941, 10834939870502958962)


def test_the_seed_is_the_same_in_all_calls_ranks_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_ENV_SEED", "7")
    first = repro_env.seed("split")
    monkeypatch.setenv("RANK", "3")
    assert repro_env.seed("split") == first
    code = "import repro_env; print(repro_env.seed('split'))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(process.stdout) == first


def test_the_default_master_seed_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    default = repro_env.seed("split")
    monkeypatch.setenv("REPRO_ENV_SEED", "0")
    assert repro_env.seed("split") == default


def test_a_seed_with_fewer_bits_is_the_top_of_a_longer_seed() -> None:
    assert repro_env.seed("x", 64) >> 32 == repro_env.seed("x") < 1 << 32
    assert repro_env.seed("x", 1) in (0, 1)
    assert repro_env.seed("x", 256) >> 192 == repro_env.seed("x", 64)


@pytest.mark.parametrize(("purpose", "bits"), [("", 32), ("x", 0), ("x", 257)])
def test_an_empty_purpose_and_an_invalid_number_of_bits_are_refused(purpose: str, bits: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        repro_env.seed(purpose, bits)


@pytest.mark.parametrize("master", ["-1", "x", "1.5", "٣"])
def test_an_invalid_master_seed_is_refused(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_ENV_SEED", master)
    with pytest.raises(ValueError, match="REPRO_ENV_SEED"):
        repro_env.seed("split")


def test_importing_the_package_imports_no_other_modules() -> None:
    code = "import sys; before = set(sys.modules); import repro_env; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['__future__', 'repro_env', 'repro_env.version']"


def test_help_shows_seed() -> None:
    import pydoc

    import repro_env

    shown = pydoc.plain(pydoc.render_doc(repro_env))
    assert "seed(purpose: 'str', bits: 'int' = 32) -> 'int'" in shown
    assert "Raises `ValueError`" in shown
