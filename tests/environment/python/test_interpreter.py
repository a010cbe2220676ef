"""Facts about a Python, errors for unsupported ones, and facts about its start."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from repro_env.environment.python import interpreter
from repro_env.environment.python.interpreter import interpret, start_up
from repro_env.environment.python.selection import choose
from repro_env.io import package
from repro_env.schema import codec
from repro_env.schema.environment import Interpretation, Startup
from repro_env.schema.errors import InterpreterError
from tests.environment.conftest import make_venv
from tests.environment.python.environments import BASE, PLAIN, site_of
from tests.parts import need


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def failure(python_name: str) -> str:
    with pytest.raises(InterpreterError) as caught:
        interpret(python_name, PLAIN)
    error = caught.value
    return f"{error} ({error.hint})"


# --- interpret


def test_all_names_of_a_venv_have_the_same_facts(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(venv.parent)
    expected = interpret(str(venv), PLAIN)
    assert expected.command == str(venv / "bin" / "python")
    assert expected.layout.prefix == str(venv)
    assert expected.interpreter.executable == BASE
    for name in ("venv", "venv/bin/python3", f"{venv}/bin/python", f"{venv}/"):
        assert interpret(name, PLAIN) == expected
    assert interpret("python", {**PLAIN, "PATH": f"{venv}/bin:{PLAIN['PATH']}"}) == expected


def test_the_shim_of_a_version_manager_leads_to_the_venv(venv: Path, tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    script(shims / "python3", f'#!/bin/sh\nexec "{venv}/bin/python3" "$@"\n')
    environ = {**PLAIN, "PATH": f"{shims}:{PLAIN['PATH']}"}
    assert interpret(choose(None, environ, tmp_path), environ) == interpret(str(venv), PLAIN)


def test_the_facts_can_be_stored_and_are_deterministic(venv: Path) -> None:
    facts = interpret(str(venv), PLAIN)
    assert codec.decode(codec.canonical(facts), Interpretation, where="") == facts
    report = start_up(facts, PLAIN)
    startup = Startup(problem=report.problem, sys_path=report.sys_path, locale=report.locale)
    assert codec.decode(codec.canonical(startup), Startup, where="") == startup
    assert start_up(facts, PLAIN) == report


# --- unsupported Pythons


def test_missing_paths_and_programs_are_errors(tmp_path: Path) -> None:
    assert "does not exist" in failure(str(tmp_path / "nowhere"))
    assert "no program of this name" in failure("no-such-python")
    assert "does not contain bin/python" in failure(str(tmp_path))


def test_a_program_that_is_not_a_python_is_an_error(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    assert "not an executable file" in failure(str(plain))
    assert "did not start" in failure(str(script(tmp_path / "nonsense", "\x7fnonsense")))
    message = failure(str(script(tmp_path / "python", "#!/bin/sh\necho libfoo.so.1: error: gone >&2\nexit 127\n")))
    assert "libfoo.so.1: error: gone" in message
    assert "exit code 3, no message" in failure(str(script(tmp_path / "silent", "#!/bin/sh\nexit 3\n")))
    assert "did not start as a Python" in failure(str(script(tmp_path / "chatty", "#!/bin/sh\necho 1\n")))


def test_a_python_that_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "TIMEOUT", 0.3)
    assert "did not start within" in failure(str(script(tmp_path / "python", "#!/bin/sh\nexec sleep 60\n")))


def test_broken_venvs_are_errors(venv: Path, tmp_path: Path) -> None:
    for name in ("python", "python3"):
        (venv / "bin" / name).unlink()
        (venv / "bin" / name).symlink_to(tmp_path / "gone" / "python3")
    assert f"is a symlink to {tmp_path}/gone/python3, which does not exist" in failure(str(venv))

    copied = make_venv(BASE, tmp_path / "copied", "--copies")
    (copied / "pyvenv.cfg").unlink()
    assert "it has no pyvenv.cfg" in failure(str(copied))


def test_a_python_without_a_venv_is_its_own_environment() -> None:
    found = interpret(BASE, PLAIN)
    assert found.kind in ("interpreter", "system")
    assert found.layout.in_place
    assert found.layout.python == found.command
    assert Path(found.layout.prefix, found.layout.purelib).is_absolute()
    assert os.path.realpath(found.command) == found.interpreter.executable


def test_the_prefix_of_debians_python_is_usr_local() -> None:
    need(Path("/usr/lib/python3/dist-packages").is_dir(), "Debian's python3")
    found = interpret("/usr/bin/python3", PLAIN)
    assert (found.kind, found.layout.prefix, found.command) == ("system", "/usr/local", "/usr/bin/python3")
    assert found.layout.purelib.endswith("/dist-packages")


def test_a_venv_with_conda_meta_is_still_a_venv(venv: Path) -> None:
    (venv / "conda-meta").mkdir()
    assert interpret(str(venv), PLAIN).kind == "venv"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ('"implementation": "pypy", "version": [3, 10, 1]', "is pypy, but repro-env supports only CPython"),
        ('"implementation": "cpython", "version": [3, 7, 16]', "is Python 3.7.16, which is too old"),
    ],
)
def test_unsupported_implementations_and_versions_are_refused(tmp_path: Path, version: str, expected: str) -> None:
    answer = '{%s, "conda": false, "prefix": "/x"}' % version  # noqa: UP031
    assert expected in failure(str(script(tmp_path / "python", f"#!/bin/sh\necho hello\nprintf '%s' '{answer}'\n")))


def test_a_path_with_control_characters_is_refused(tmp_path: Path) -> None:
    odd = make_venv(BASE, tmp_path / "plain").rename(tmp_path / "line\nbreak")
    assert "reports a value that a spec cannot store" in failure(str(odd))


# --- start_up


@pytest.fixture
def facts(venv: Path) -> Interpretation:
    return interpret(str(venv), PLAIN)


def test_a_start_without_output(facts: Interpretation, venv: Path) -> None:
    startup = start_up(facts, PLAIN)
    assert startup.problem == ""
    code = "import sys; print(*sys.path[1:], sep='\\n')"
    done = subprocess.run([venv / "bin" / "python", "-c", code], env=PLAIN, capture_output=True, text=True, check=True)
    assert list(startup.sys_path) == done.stdout.splitlines()
    assert startup.sys_path[-1] == str(site_of(venv))
    names = [Path(path).name for path in startup.mapped]
    assert any(name.startswith("libc.so") for name in names)
    assert any(name.startswith("_ctypes.") for name in names) or any(name.startswith("libffi") for name in names)
    assert all(Path(path).is_file() for path in startup.mapped)


def test_python_starts_with_the_users_settings(
    facts: Interpretation, venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONPATH is used, even with a relative entry, and `.pth` files run."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "here" / "src").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    (site_of(venv) / "more.pth").write_text(
        f"{tmp_path}/lib\nimport sys; '/from/pth' in sys.path or sys.path.append('/from/pth')\n"
    )
    startup = start_up(facts, {**PLAIN, "PYTHONPATH": "src"})
    assert startup.sys_path[0] == str(tmp_path / "here" / "src")
    assert startup.sys_path[-2:] == (str(tmp_path / "lib"), "/from/pth")


def test_a_start_writes_no_files(facts: Interpretation, venv: Path) -> None:
    (site_of(venv) / "sitecustomize.py").write_text("import helper\n")
    (site_of(venv) / "helper.py").write_text("open('output', 'w').close()\n")
    before = {path: path.lstat().st_mtime_ns for path in venv.parent.rglob("*")}
    assert start_up(facts, PLAIN).problem == ""
    assert {path: path.lstat().st_mtime_ns for path in venv.parent.rglob("*")} == before


def test_output_of_a_start_does_not_disturb_the_report(facts: Interpretation, venv: Path) -> None:
    noise = "import sys; print('{\"sys_path\": []}'); print('oops', file=sys.stderr)"
    (site_of(venv) / "noise.pth").write_text(noise + "\n")
    startup = start_up(facts, PLAIN)
    assert startup.problem == ""
    assert str(site_of(venv)) in startup.sys_path


def test_a_problem_contains_no_secret(facts: Interpretation, venv: Path) -> None:
    (site_of(venv) / "bad.pth").write_text("import os; os.write(2, b'bad ghp_' + b'aB3' * 12 + b' abcdef1234'); os._exit(1)\n")
    assert start_up(facts, {**PLAIN, "LICENCE": "abcdef1234"}).problem.count("<redacted>") == 2


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by signal 11 before the probe started"),
        ("raise SystemExit('no start today')", "ended with exit code 1 (Fatal Python error"),
        ("import os; os._exit(5)", "exit code 5 before the probe started"),
        ("import atexit, os; atexit.register(os._exit, 9)", "exit code 9"),
        ("import os, time; os.environ.get('HANG') and time.sleep(60)", ""),
    ],
)
def test_a_start_that_fails_is_recorded(facts: Interpretation, venv: Path, start: str, problem: str) -> None:
    (site_of(venv) / "usercustomize.py").write_text("")
    (site_of(venv) / "bad.pth").write_text(
        f"{start if start.startswith('import') else 'import sys; exec(' + repr(start) + ')'}\n"
    )
    startup = start_up(facts, PLAIN)
    assert problem in startup.problem
    assert (startup.problem == "") == (problem == "")


def test_a_start_that_hangs_is_recorded(facts: Interpretation, venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "TIMEOUT", 1.0)
    (site_of(venv) / "bad.pth").write_text("import time; time.sleep(60)\n")
    assert "did not end within 1 s before the probe started" in start_up(facts, PLAIN).problem


def test_an_extension_that_crashes_is_recorded(facts: Interpretation, venv: Path) -> None:
    """Facts from before the crash are kept."""
    (site_of(venv) / "bad.pth").write_text(
        "import sys; sys.meta_path.insert(0, type('F', (), {'find_spec': staticmethod("
        "lambda name, *args: __import__('os').abort() if name == 'sqlite3' else None)}))\n"
    )
    startup = start_up(facts, PLAIN)
    assert startup.problem == "was killed by signal 6 during import of sqlite3"
    assert startup.sys_path
    assert startup.mapped


def test_the_scratch_directory_is_replaced_in_all_values(facts: Interpretation, venv: Path) -> None:
    (site_of(venv) / "print.pth").write_text("import os, sys; sys.path.append(os.getcwd())\n")
    startup = start_up(facts, PLAIN)
    assert "<scratch>" in startup.sys_path
    assert startup == start_up(facts, PLAIN)


def test_the_package_contains_the_probes() -> None:
    for name in ("probe.py", "startup.py"):
        assert (package.GUEST / name).is_file()
    assert shutil.which("sh")


def test_a_directory_has_one_path_even_if_lib64_is_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("lib")
    assert interpreter._unaliased(str(tmp_path), "lib64/python3.11/site-packages") == "lib/python3.11/site-packages"
    assert interpreter._unaliased(str(tmp_path), "lib/python3.11/site-packages") == "lib/python3.11/site-packages"
