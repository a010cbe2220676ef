"""Each bad input: one clear sentence, its own exit code, nothing half-written."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts
from tests.parts import need


def refused(done: parts.Done, *expected: str) -> None:
    complaint = parts.one_sentence(done)
    for words in expected:
        assert words in complaint
    assert len(complaint.strip().splitlines()) <= 12, f"not one clear sentence: {complaint}"


# -- environments -------------------------------------------------------------------------------------------------


def test_capture_refuses_a_python_that_does_not_exist(small: parts.Project, tmp_path: Path) -> None:
    done = small.run("capture", "--python", tmp_path / "nowhere" / "python", "--output", tmp_path / "repro", code=6)
    refused(done, "nowhere")
    assert not (tmp_path / "repro").exists()


def test_capture_refuses_a_program_that_is_not_a_python(small: parts.Project, tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    refused(
        small.run("capture", "--python", tmp_path / "python", "--output", tmp_path / "repro", code=6), str(tmp_path / "python")
    )
    assert not (tmp_path / "repro").exists()


def test_capture_refuses_a_venv_whose_base_interpreter_is_missing(tmp_path: Path) -> None:
    """Its base interpreter is gone: the symlink dangles."""
    python = parts.venv(tmp_path / "project" / ".venv", own_pip=False)
    python.with_name("python").unlink()
    python.with_name("python").symlink_to("/nowhere/bin/python3")
    made = parts.project(tmp_path / "project", python, tmp_path / "store")
    refused(made.run("capture", "--python", python, code=6), ".venv")
    assert not (tmp_path / "project" / "repro").exists()


def test_capture_refuses_a_source_over_the_size_limit(small: parts.Project, tmp_path: Path) -> None:
    directory = tmp_path / "project"
    made = parts.project(directory, small.python, small.store)
    with (directory / "weights.bin").open("wb") as file:
        file.truncate(250_000_000)
    refused(made.run("capture", "--python", made.python, code=8), "weights.bin", "--exclude")
    assert not (directory / "repro").exists()
    made.capture("--exclude", "weights.bin")


def test_capture_refuses_a_secret_in_the_source(small: parts.Project, tmp_path: Path) -> None:
    directory = tmp_path / "project"
    made = parts.project(directory, small.python, small.store)
    secret = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=36))
    (directory / "settings.py").write_text(f"TOKEN = 'ghp_{secret}'\n")
    done = made.run("capture", "--python", made.python, code=8)
    refused(done, "settings.py")
    assert secret not in done.err + done.out
    assert not (directory / "repro").exists()


@pytest.mark.parametrize("words", [("capture", "--output", "never"), ("rebuild",), ("exec", "true")], ids=lambda words: words[0])
def test_commands_refuse_an_operating_system_other_than_linux(
    small: parts.Project, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The kernel says that it is another one."""
    code = (
        "import os, sys\n"
        "here = os.uname(); os.uname = lambda: os.uname_result(('Darwin', *here[1:]))\n"
        "from repro_env.__main__ import main\n"
        f"sys.argv = ['repro-env', *{words!r}]\n"
        "sys.exit(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=small.directory,
        env=parts.environ(tmp_path / "store"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 5, ended.stderr
    refused(parts.Done(ended.returncode, ended.stdout, ended.stderr), "Linux")
    assert not (small.directory / "never").exists()


# -- specs --------------------------------------------------------------------------------------------------------


def newer(spec: dict[str, Any]) -> bytes:
    return json.dumps({**spec, "schema": "repro-env/spec/99", "more": 1}).encode()


def truncated(spec: dict[str, Any]) -> bytes:
    return json.dumps(spec).encode()[:-200]


def unknown_key(spec: dict[str, Any]) -> bytes:
    return json.dumps({**spec, "identity": {**spec["identity"], "run_this": "curl"}}).encode()


def another_architecture(spec: dict[str, Any]) -> bytes:
    other = {"amd64": "arm64", "arm64": "amd64"}[spec["identity"]["platform"]["architecture"]]
    return (
        json.dumps(spec)
        .replace(f'"architecture": "{spec["identity"]["platform"]["architecture"]}"', f'"architecture": "{other}"')
        .encode()
    )


def no_spec(spec: dict[str, Any]) -> bytes:
    return b'{"name": "something else"}'


def control_character(spec: dict[str, Any]) -> bytes:
    return json.dumps(spec).replace("/.venv", "/.venv\\nRUN x", 1).encode()


@pytest.mark.parametrize("command", [("rebuild",), ("exec", "--spec")], ids=["rebuild", "exec"])
@pytest.mark.parametrize(
    ("change", "code"),
    [(newer, 4), (truncated, 3), (unknown_key, 3), (another_architecture, 5), (no_spec, 3), (control_character, 3)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_specs_that_cannot_be_used_are_refused(
    small: parts.Project, tmp_path: Path, change: Callable[[dict[str, Any]], bytes], code: int, command: tuple[str, ...]
) -> None:
    shutil.copytree(small.directory / "repro", tmp_path / "repro", ignore=shutil.ignore_patterns("blobs"))
    path = tmp_path / "repro" / "spec.json"
    path.write_bytes(change(json.loads(path.read_text())))
    words: list[str | Path] = [*command, path, *(["true"] if command[0] == "exec" else [])]
    done = small.elsewhere(tmp_path / "store").run(*words, code=code, cwd=tmp_path)
    refused(done, *([str(path)] if code != 5 else []))
    assert not done.out
    assert not list((tmp_path / "store").glob("images/*"))


def test_a_missing_spec_is_reported_with_the_command_that_writes_one(small: parts.Project, tmp_path: Path) -> None:
    for words in (("rebuild",), ("exec", "true")):
        done = small.run(*words, code=None, cwd=tmp_path)
        assert done.code in (2, 3)
        refused(done, "repro-env capture")


# -- machines -----------------------------------------------------------------------------------------------------


def in_namespace(script: str, project: parts.Project, *, user: bool) -> parts.Done:
    """A shell line in a mount namespace of its own; as root of a user namespace when `user`."""
    words = ["unshare", *(["-Urm"] if user else ["-m"]), "sh", "-c", script]
    probe = subprocess.run([*words[:-1], "true"], capture_output=True, check=False)
    need(probe.returncode == 0, f"namespaces for tests: {probe.stderr.decode()}")
    ended = subprocess.run(
        words, cwd=project.directory, env=parts.environ(project.store), capture_output=True, text=True, timeout=200, check=False
    )
    return parts.Done(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize("words", ["rebuild", "capture"])
def test_a_full_disk_is_reported(small: parts.Project, tmp_path: Path, words: str) -> None:
    """The store (for rebuild) or the output (for capture) is a tmpfs of 10 MB."""
    full = tmp_path / "full"
    full.mkdir()
    what = "rebuild" if words == "rebuild" else f"capture --python '{small.python}' --output '{full}/repro'"
    store = full if words == "rebuild" else tmp_path / "store"
    script = (
        f"mount -t tmpfs -o size=10m,mode=0700 none '{full}' && REPRO_ENV_STORE='{store}' '{parts.COMMAND}' {what}; code=$?; "
        f"find '{full}' -type f -size +64k; test -e '{full}/repro/spec.json' && echo half; exit $code"
    )
    done = in_namespace(script, small, user=os.geteuid() != 0)
    assert done.code == 13, done.err
    refused(done)
    assert not done.out, "nothing is left in the way"


def test_a_run_is_refused_without_namespaces(small: parts.Project) -> None:
    """The kernel gives no more of them, and the caller has no capabilities."""
    script = (
        "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "
        f"'{parts.COMMAND}' exec true"
    )
    done = in_namespace(script, small, user=True)
    assert done.code == 15, done.err
    refused(done, "namespace")


def test_a_store_that_cannot_be_written_is_reported(small: parts.Project, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = small.elsewhere(tmp_path / "file" / "store").run("rebuild", code=14)
    refused(done, str(tmp_path / "file"))


# -- commands -----------------------------------------------------------------------------------------------------


def test_a_missing_command_is_reported(small: parts.Project) -> None:
    refused(small.run("exec", "no-such-program", code=127), "no-such-program")


def test_a_missing_script_is_reported(small: parts.Project) -> None:
    done = small.run("exec", "no_such_script.py", code=None)
    assert done.code not in (0, 1)
    assert "no_such_script.py" in parts.one_sentence(done)


def test_a_killed_command_is_recorded_with_its_signal(small: parts.Project) -> None:
    small.run("exec", "sh", "-c", "kill -KILL $$", code=137)
    shown = json.loads(small.run("runs", "show", "latest", "--json").out)
    assert '"signal": 9' in json.dumps(shown)


def test_a_command_that_runs_out_of_memory_fails_with_its_own_error(small: parts.Project) -> None:
    done = small.run("exec", "python", "-c", "x = bytearray(1 << 50)", code=1)
    assert "MemoryError" in done.err


def test_drift_is_refused_on_the_host(small: parts.Project) -> None:
    small.run("exec", "--runner", "host", "python", "-c", "import packaging")
    (module,) = small.python.parents[1].glob("lib/python*/site-packages/packaging/__init__.py")
    before = module.read_text()
    module.write_text(f"{before}\nCHANGED = 1\n")
    try:
        done = small.run("exec", "--runner", "host", "python", "-c", "print('ran')", code=18)
    finally:
        module.write_text(before)
    refused(done, "packaging")
    assert not done.out


def test_a_run_is_not_overwritten(small: parts.Project, tmp_path: Path) -> None:
    small.run("exec", "hello.py")
    small.run("runs", "get", "latest", "--to", tmp_path)
    (tmp_path / "made.txt").write_text("mine")
    refused(small.run("runs", "get", "latest", "--to", tmp_path, code=19), "made.txt", "--force")
    assert (tmp_path / "made.txt").read_text() == "mine"
    refused(small.run("runs", "show", "no-such-run", code=19), "no-such-run")


@pytest.mark.parametrize("words", [("exec", "sh", "-c", "echo begun; exec sleep 300"), ("capture",)], ids=["exec", "capture"])
def test_ctrl_c_ends_a_command_that_is_at_work(small: parts.Project, tmp_path: Path, words: tuple[str, ...]) -> None:
    """The terminal signals the whole foreground group, which is at work."""
    store = tmp_path / "store"
    more = ("--python", str(small.python), "--output", str(tmp_path / "repro")) if words == ("capture",) else ()
    with (
        (tmp_path / "err").open("w") as err,
        subprocess.Popen(
            [parts.COMMAND, *words, *more],
            cwd=small.directory,
            env=parts.environ(store if more else small.store),
            stdout=subprocess.PIPE,
            stderr=err,
            start_new_session=True,
        ) as child,
    ):
        try:
            if more:
                while not store.exists() and child.poll() is None:
                    time.sleep(0.01)
            else:
                assert child.stdout is not None
                assert child.stdout.readline() == b"begun\n"
            os.killpg(child.pid, signal.SIGINT)
            assert child.wait(100) == 130
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    assert "Traceback" not in (tmp_path / "err").read_text()
    assert not (tmp_path / "repro").exists()


def test_an_output_inside_the_environment_is_refused(small: parts.Project) -> None:
    inside = small.python.parent.parent / "repro"
    refused(small.run("capture", "--python", small.python, "--output", inside, code=7), str(inside), "--output")
    assert not inside.exists()


def test_invalid_command_lines_are_refused(small: parts.Project) -> None:
    refused(small.run("capture", "--no-such-option", code=2), "--no-such-option")
    refused(small.run("exec", "--runner", "nothing", "true", code=2), "nothing")
    refused(small.run("exec", code=2))
    refused(small.run("no-such-command", code=2), "no-such-command")


def test_a_mistyped_script_is_refused_before_a_rebuild(small: parts.Project, tmp_path: Path) -> None:
    """From an empty store: a rebuild would fill it."""
    fresh = small.elsewhere(tmp_path / "store")
    before = sorted((small.directory / "runs").glob("*"))
    (small.directory / "deep").mkdir()
    for words, near in ((["helo.py"], "hello.py"), (["python", "helo.py"], "hello.py"), (["./helo.py"], "hello.py")):
        refused(fresh.run("exec", *words, code=127), "helo.py", f"did you mean {near}?")
    refused(fresh.run("exec", "hello.py", cwd=small.directory / "deep", code=127), "did you mean ../hello.py?")
    refused(fresh.run("exec", "--runner", "host", "helo.py", code=127), "did you mean hello.py?")
    assert sorted((small.directory / "runs").glob("*")) == before
    assert not list((tmp_path / "store").rglob("os.py"))


def test_a_run_that_misses_its_git_repository_gets_a_hint(small: parts.Project) -> None:
    subprocess.run(["git", "init", "-q"], cwd=small.directory, check=True)
    (small.directory / "stages.py").write_text(
        "import os, sys\n"
        "texts = ['ERROR: %s is not a git repository', 'fatal: not a git repository (or any of the parent directories): .git']\n"
        "print(texts[int(sys.argv[1])].replace('%s', os.getcwd()), file=(sys.stderr, sys.stdout)[int(sys.argv[1])])\n"
        "sys.exit(int(sys.argv[2]))\n"
    )
    for number, code in (("0", 255), ("1", 128)):
        done = small.run("exec", "stages.py", number, str(code), code=code)
        assert "the project's .git is not in the run; to add it, with git: capture again with --with git" in done.err
    assert "--with git" not in small.run("exec", "stages.py", "0", "0").err
