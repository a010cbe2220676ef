"""What a Python is, why it cannot be captured, and what its start does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from repro_env.capture import python
from repro_env.capture.python import holds_us, interpret, start_up
from repro_env.capture.target import choose
from repro_env.model import codec
from repro_env.model.environment import Interpretation, Startup
from repro_env.model.errors import InterpreterError
from tests.capture.conftest import make_venv
from tests.parts import need

BASE = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "CONDA"))}


def site_of(venv: Path) -> Path:
    return next((venv / "lib").glob("python*/site-packages"))


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def failure(python_name: str) -> str:
    with pytest.raises(InterpreterError) as caught:
        interpret(python_name, PLAIN)
    error = caught.value
    return f"{error} ({error.hint})"


# --- choosing


def test_a_venv_by_every_name_is_the_same(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(venv.parent)
    by_folder = interpret(str(venv), PLAIN)
    assert by_folder.command == str(venv / "bin" / "python")
    assert by_folder.layout.prefix == str(venv)
    assert by_folder.interpreter.executable == BASE
    for name in ("venv", "venv/bin/python3", f"{venv}/bin/python", f"{venv}/"):
        assert interpret(name, PLAIN) == by_folder
    assert interpret("python", {**PLAIN, "PATH": f"{venv}/bin:{PLAIN['PATH']}"}) == by_folder


def test_a_version_managers_shim_is_seen_through(venv: Path, tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    script(shims / "python3", f'#!/bin/sh\nexec "{venv}/bin/python3" "$@"\n')
    environ = {**PLAIN, "PATH": f"{shims}:{PLAIN['PATH']}"}
    assert interpret(choose(None, environ, tmp_path), environ) == interpret(str(venv), PLAIN)


def test_a_result_is_plain_and_can_be_written_down(venv: Path) -> None:
    facts = interpret(str(venv), PLAIN)
    assert codec.decode(codec.canonical(facts), Interpretation, where="") == facts
    startup = start_up(facts, PLAIN)
    assert codec.decode(codec.canonical(startup), Startup, where="") == startup
    assert start_up(facts, PLAIN) == startup


def test_whether_we_are_in_it(venv: Path) -> None:
    facts = interpret(str(venv), PLAIN)
    assert not holds_us(facts)
    ours = msgspec.structs.replace(facts, layout=msgspec.structs.replace(facts.layout, prefix=sys.prefix))
    assert holds_us(ours)


# --- refusing


def test_nothing_there(tmp_path: Path) -> None:
    assert "there is no such file or directory" in failure(str(tmp_path / "nowhere"))
    assert "no program of this name" in failure("no-such-python")
    assert "without bin/python" in failure(str(tmp_path))


def test_not_a_python(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    assert "not an executable file" in failure(str(plain))
    assert "does not start" in failure(str(script(tmp_path / "nonsense", "\x7fnonsense")))
    said = failure(str(script(tmp_path / "python", "#!/bin/sh\necho libfoo.so.1: error: gone >&2\nexit 127\n")))
    assert "libfoo.so.1: error: gone" in said
    assert "exit code 3, no message" in failure(str(script(tmp_path / "silent", "#!/bin/sh\nexit 3\n")))
    assert "does not start as a Python" in failure(str(script(tmp_path / "chatty", "#!/bin/sh\necho 1\n")))


def test_a_python_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "TIMEOUT", 0.3)
    assert "does not start within" in failure(str(script(tmp_path / "python", "#!/bin/sh\nexec sleep 60\n")))


def test_broken_venvs(venv: Path, tmp_path: Path) -> None:
    for name in ("python", "python3"):
        (venv / "bin" / name).unlink()
        (venv / "bin" / name).symlink_to(tmp_path / "gone" / "python3")
    assert f"points to {tmp_path}/gone/python3, which is gone" in failure(str(venv))

    copied = make_venv(BASE, tmp_path / "copied", "--copies")
    config = copied / "pyvenv.cfg"
    text = config.read_text()
    config.write_text(text.replace(f"home = {Path(BASE).parent}", f"home = {tmp_path}/gone/bin"))
    assert config.read_text() != text or "home" not in text
    if config.read_text() != text:
        assert f"its Python was in {tmp_path}/gone/bin" in failure(str(copied))
    config.unlink()
    assert "pyvenv.cfg is gone" in failure(str(copied))


def test_a_python_without_an_environment_is_one_itself() -> None:
    found = interpret(BASE, PLAIN)
    assert found.kind in ("interpreter", "system")
    assert found.layout.in_place
    assert found.layout.python == found.command
    assert Path(found.layout.prefix, found.layout.purelib).is_absolute()
    assert os.path.realpath(found.command) == found.interpreter.executable


def test_debians_python_installs_below_local() -> None:
    need(Path("/usr/lib/python3/dist-packages").is_dir(), "Debian's python3")
    found = interpret("/usr/bin/python3", PLAIN)
    assert (found.kind, found.layout.prefix, found.command) == ("system", "/usr/local", "/usr/bin/python3")
    assert found.layout.purelib.endswith("/dist-packages")


def test_a_virtual_environment_with_records_of_conda_is_still_one(venv: Path) -> None:
    (venv / "conda-meta").mkdir()
    assert interpret(str(venv), PLAIN).kind == "venv"


def test_system_site_packages_are_told(tmp_path: Path) -> None:
    shared = make_venv(BASE, tmp_path / "shared", "--system-site-packages")
    assert interpret(str(shared), PLAIN).system_site


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('"implementation": "pypy", "version": [3, 10, 1]', "is pypy"),
        ('"implementation": "cpython", "version": [3, 7, 16]', "is Python 3.7.16, too old"),
    ],
)
def test_other_pythons(tmp_path: Path, said: str, expected: str) -> None:
    answer = '{%s, "conda": false, "prefix": "/x"}' % said  # noqa: UP031
    assert expected in failure(str(script(tmp_path / "python", f"#!/bin/sh\necho hello\nprintf '%s' '{answer}'\n")))


def test_an_unwritable_path_is_refused(tmp_path: Path) -> None:
    odd = make_venv(BASE, tmp_path / "plain").rename(tmp_path / "line\nbreak")
    assert "cannot be written down" in failure(str(odd))


# --- starting


@pytest.fixture
def facts(venv: Path) -> Interpretation:
    return interpret(str(venv), PLAIN)


def test_a_silent_start(facts: Interpretation, venv: Path) -> None:
    startup = start_up(facts, PLAIN)
    assert startup.problem == ""
    assert startup.printed == ""
    asked = "import sys; print(*sys.path[1:], sep='\\n'); print(sys.flags)"
    there = subprocess.run([venv / "bin" / "python", "-c", asked], env=PLAIN, capture_output=True, text=True, check=True)
    assert [*startup.sys_path, startup.flags] == there.stdout.splitlines()
    assert startup.sys_path[-1] == str(site_of(venv))
    names = [Path(path).name for path in startup.mapped]
    assert any(name.startswith("libc.so") for name in names)
    assert any(name.startswith("_ctypes.") for name in names) or any(name.startswith("libffi") for name in names)
    assert all(Path(path).is_file() for path in startup.mapped)


def test_the_start_is_the_users_own(facts: Interpretation, venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH counts, also a relative one; `.pth` files run; the caller's flags are told as they are."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "here" / "src").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    (site_of(venv) / "more.pth").write_text(
        f"{tmp_path}/lib\nimport sys; '/from/pth' in sys.path or sys.path.append('/from/pth')\n"
    )
    startup = start_up(facts, {**PLAIN, "PYTHONPATH": "src", "PYTHONOPTIMIZE": "1"})
    assert startup.sys_path[0] == str(tmp_path / "here" / "src")
    assert startup.sys_path[-2:] == (str(tmp_path / "lib"), "/from/pth")
    assert "optimize=1" in startup.flags
    assert "dont_write_bytecode=0" in startup.flags
    assert "dont_write_bytecode=1" in start_up(facts, {**PLAIN, "PYTHONDONTWRITEBYTECODE": "1"}).flags


def test_a_start_leaves_nothing_behind(facts: Interpretation, venv: Path) -> None:
    (site_of(venv) / "sitecustomize.py").write_text("import helper\n")
    (site_of(venv) / "helper.py").write_text("open('left', 'w').close()\n")
    before = {path: path.lstat().st_mtime_ns for path in venv.parent.rglob("*")}
    assert start_up(facts, PLAIN).problem == ""
    assert {path: path.lstat().st_mtime_ns for path in venv.parent.rglob("*")} == before


def test_what_a_start_prints_is_a_fact(facts: Interpretation, venv: Path) -> None:
    # CPython runs the `.pth` files of a venv twice.
    noise = "import sys; 'told' in dir(sys) or (print('hello\\x1b[31m {\"sys_path\": []}'), print('oops ghp_' + 'aB3' * 12, file=sys.stderr)); sys.told = 1"
    (site_of(venv) / "noise.pth").write_text(noise + "\n")
    startup = start_up(facts, PLAIN)
    assert startup.problem == ""
    assert startup.printed == 'hello [31m {"sys_path": []} oops <redacted>'
    assert str(site_of(venv)) in startup.sys_path
    (site_of(venv) / "noise.pth").write_text("import os; print('x' * 100_000); print(os.getcwd())\n")
    assert start_up(facts, PLAIN).printed == "x" * python.PRINTED


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by signal 11 before our first line"),
        ("raise SystemExit('no start today')", "exit code 1 before our first line"),
        ("import os; os._exit(5)", "exit code 5 before our first line"),
        ("import atexit, os; atexit.register(os._exit, 9)", "exit code 9"),
        ("import os, time; os.environ.get('HANG') and time.sleep(60)", ""),
    ],
)
def test_a_start_that_fails_is_a_fact(facts: Interpretation, venv: Path, start: str, problem: str) -> None:
    (site_of(venv) / "usercustomize.py").write_text("")
    (site_of(venv) / "bad.pth").write_text(
        f"{start if start.startswith('import') else 'import sys; exec(' + repr(start) + ')'}\n"
    )
    startup = start_up(facts, PLAIN)
    assert problem in startup.problem
    assert (startup.problem == "") == (problem == "")


def test_a_start_that_hangs_is_a_fact(facts: Interpretation, venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "TIMEOUT", 1.0)
    (site_of(venv) / "bad.pth").write_text("import time; time.sleep(60)\n")
    assert "did not end within 1 s before our first line" in start_up(facts, PLAIN).problem


def test_an_extension_that_crashes_is_named(facts: Interpretation, venv: Path) -> None:
    """What was found before the crash is kept."""
    (site_of(venv) / "bad.pth").write_text(
        "import sys; sys.meta_path.insert(0, type('F', (), {'find_spec': staticmethod("
        "lambda name, *rest: __import__('os').abort() if name == 'sqlite3' else None)}))\n"
    )
    startup = start_up(facts, PLAIN)
    assert startup.problem == "was killed by signal 6 while importing sqlite3"
    assert startup.sys_path
    assert startup.mapped


def test_no_place_of_ours_is_in_a_value(facts: Interpretation, venv: Path) -> None:
    (site_of(venv) / "tell.pth").write_text("import os, sys; print(os.getcwd()); sys.path.append(os.getcwd())\n")
    startup = start_up(facts, PLAIN)
    assert startup.printed == "<scratch> <scratch>"
    assert "<scratch>" in startup.sys_path
    assert startup == start_up(facts, PLAIN)


def test_probes_are_files_of_the_package() -> None:
    for name in ("probe.py", "startup.py"):
        assert (python.INSIDE / name).is_file()
    assert shutil.which("sh")


def test_a_folder_has_one_path_even_where_lib64_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("lib")
    assert python._unaliased(str(tmp_path), "lib64/python3.11/site-packages") == "lib/python3.11/site-packages"
    assert python._unaliased(str(tmp_path), "lib/python3.11/site-packages") == "lib/python3.11/site-packages"
