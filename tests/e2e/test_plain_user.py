"""The same as a plain user: a fresh clone of this checkout, an empty home, no rights; the README's own commands."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import parts
from tests.e2e.users import as_user
from tests.parts import BASE_PYTHON, need

CLONE = "tests/e2e/test_clone.py::test_a_clone_runs_its_own_code_at_the_captured_path"
SUITE = f"tests/e2e/test_inside.py {CLONE} tests/e2e/test_data.py tests/e2e/test_bad_input.py tests/e2e/test_training.py tests/guest tests/sandbox tests/store"
"""What is run again. In `make test`, `tests/sandbox` starts its runs as root and as a plain user."""


class User(NamedTuple):
    uid: int
    home: Path
    clone: Path
    temporary: Path
    python: str

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`make WORDS` in the clone, as the user, with nothing of root's surroundings but pip's configuration."""
        kept = {
            name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_")) or name == "LANG"
        }
        return subprocess.run(
            [*as_user(self.uid), "make", f"PYTHON={self.python}", *words],
            cwd=self.clone,
            env={
                **kept,
                "HOME": str(self.home),
                "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                "PYTEST_DEBUG_TEMPROOT": str(self.temporary),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1000,
            check=False,
        )


def starts(uid: int, python: str) -> bool:
    """Through a shell: setpriv itself still has root's rights when it starts a program."""
    line = [*as_user(uid), "sh", "-c", 'exec "$0" -c "import ensurepip, venv"', python]
    return not subprocess.run(line, capture_output=True, check=False).returncode


def pythons() -> list[str]:
    return [BASE_PYTHON, "/usr/local/bin/python3", "/usr/bin/python3"]


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    need(os.geteuid() == 0, "only root can become another user; a plain user's own `make test` says the same and more")
    need(shutil.which("setpriv"), "setpriv is missing: apt-get install util-linux")
    taken = {user.pw_uid for user in pwd.getpwall()}
    uid = next(number for number in range(20_000, 30_000) if number not in taken)
    usable = [python for python in pythons() if starts(uid, python)]
    need(usable, "no Python with venv that a plain user can start: apt-get install python3-venv")
    # The second one's name is short: sockets are made below it. Below /tmp, another user of the same number may have left theirs.
    with (
        tempfile.TemporaryDirectory(prefix="repro-env-user-", dir="/var/tmp") as made,
        tempfile.TemporaryDirectory(prefix="user-", dir="/tmp") as temporary,
    ):
        directory = Path(made)
        directory.chmod(0o755)
        clone, home = directory / "clone", directory / "home"
        home.mkdir()
        git = ["git", "-c", f"safe.directory={parts.ROOT}", "-c", f"safe.directory={parts.ROOT}/.git"]
        subprocess.run([*git, "clone", "-q", "--no-hardlinks", str(parts.ROOT), str(clone)], check=True)
        subprocess.run(["chown", "-R", f"{uid}:{uid}", str(home), str(clone), temporary], check=True)
        yield User(uid, home, clone, Path(temporary), usable[0])


@pytest.mark.soak
def test_the_demo_runs_as_a_plain_user(user: User) -> None:
    done = user.make("demo")
    assert done.returncode == 0, done.stdout[-6000:]
    assert "files are byte-equal" in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(1000)  # a suite of its own
def test_the_test_suite_passes_as_a_plain_user(user: User) -> None:
    """Without the environment of trainers, which takes minutes to install: the tests that need it are skipped here."""
    done = user.make("dev")
    assert done.returncode == 0, done.stdout[-6000:]
    done = user.make(
        "--old-file=trainers",
        "WITH=",
        "test",
        "TORCH=",
        "WORKERS=2",
        f"ARGS={SUITE} -q -m 'not soak and not slow' -p no:cacheprovider",
    )
    assert done.returncode == 0, done.stdout[-12000:]
    assert " passed" in done.stdout
