"""What a run sees is the captured environment, and nothing else of the host."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

from tests.e2e import parts
from tests.e2e.machine import check_two_runs


def test_console_scripts_start_the_python_next_to_them(small: parts.Project) -> None:
    output = small.run("exec", "pygmentize", "-V").out
    assert "2.21.0" in output
    assert small.run("exec", "sh", "-c", "command -v pygmentize").out.strip() == str(
        small.directory / ".venv" / "bin" / "pygmentize"
    )


def test_results_outside_the_project_and_the_console_are_kept(small: parts.Project, tmp_path: Path) -> None:
    """Each as the script of a user writes it, in one run; compared, copied and printed."""
    (small.directory / "results.py").write_text(parts.WRITES_OUTSIDE)
    secret = {"SERVICE_TOKEN": "quite-a-secret-value-1"}
    done = small.run("exec", "results.py", env=secret)
    home = Path.home()
    there = {f"{home}/results/x", "/scratch/me/y", f"{small.directory.parent}/out/w.pt"}
    assert "written outside the project: 3 files (3.0 kB)" in done.err
    end = json.loads(small.run("runs", "show", "--json").out)["end"]
    assert {output["path"] for output in end["outputs"]} == {*there, "made.txt"}
    small.run("runs", "get", "latest", "--to", tmp_path / "all")
    assert set(parts.digests(tmp_path / "all")) == {"made.txt", *(f"outside{path}" for path in there)}
    small.run("runs", "get", "latest", f"{home}/results", "--to", tmp_path / "few")
    assert set(parts.digests(tmp_path / "few")) == {f"outside{home}/results/x"}
    logs = small.run("runs", "logs")
    assert (logs.out, logs.err) == ("epoch 1\\x07\n<redacted>\n", "to stderr\n")
    text = small.run("verify", "latest", "--result", "stdout.log", env=secret)
    assert "5 results" in text.out, "four files and what was printed"


def test_a_run_has_the_callers_user_and_a_private_home(small: parts.Project) -> None:
    code = (
        "import os, getpass, json, tempfile, pathlib, socket\n"
        "tempfile.NamedTemporaryFile().close()\n"
        "(pathlib.Path.home() / 'x').write_text('x')\n"
        "print(json.dumps([os.getuid(), os.getgid(), getpass.getuser(), os.getcwd(), str(pathlib.Path.home()),"
        " os.stat('.').st_uid, socket.gethostbyname('localhost')]))"
    )
    uid, gid, name, cwd, home, owner, local = json.loads(small.python_says(code, env={"USER": "", "LOGNAME": ""}))
    assert (uid, gid, owner) == (os.getuid(), os.getgid(), os.getuid())
    assert cwd == str(small.directory)
    assert name
    assert home.startswith("/")
    assert local == "127.0.0.1"
    assert not (Path(home) / "x").exists(), "home is private"


def test_two_runs_see_the_same_machine_and_user(small: parts.Project) -> None:
    check_two_runs(small, "embedded")


def test_a_run_sees_nothing_of_the_host_outside_the_mounts(small: parts.Project, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    paths = [str(secret), str(tmp_path), str(parts.ROOT), str(small.store), "/usr/bin/apt-get", "/var/log/dpkg.log"]
    seen, listed, processes = json.loads(
        small.python_says(
            "import os, json\n"
            f"seen = {{path: os.path.exists(path) for path in {paths}}}\n"
            "listed = [name for path in ('/home', '/mnt', '/run') for name in os.listdir(path)]\n"
            "print(json.dumps([seen, listed, sum(name.isdigit() for name in os.listdir('/proc'))]))"
        )
    )
    assert not any(seen.values()), seen
    assert listed in ([], ["repro-env"]), listed
    assert processes <= 3, "other processes are to be seen"


def test_a_write_stays_in_the_run(small: parts.Project) -> None:
    small.run("exec", "hello.py")
    assert not (small.directory / "made.txt").exists()
    (small.directory / "got").mkdir(exist_ok=True)
    got = small.run("runs", "get", "latest", "made.txt", "--to", "repro/../got", "--force")
    assert got.out == f"{small.directory}/got/made.txt\n"
    assert "next: repro-env exec COMMAND\n" in small.run("doctor").err
    assert (small.directory / "got" / "made.txt").read_text() == "made"


def test_the_image_is_not_changed_by_a_run(small: parts.Project) -> None:
    code = "import mdurl, pathlib\ntry:\n pathlib.Path(mdurl.__file__).write_text('gone')\nexcept OSError: pass"
    small.run("exec", "python", "-c", code, code=None)
    assert small.python_says("import mdurl; print(mdurl.EDITED)") == "True\n"
    assert "EDITED" in Path(small.python.parents[1], "lib").glob("python*/site-packages/mdurl/__init__.py").__next__().read_text()


def test_a_run_reaches_only_its_own_loopback(small: parts.Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "import socket\n"
            "def reach(address):\n"
            "    try:\n        socket.create_connection(address, 3).close(); return True\n"
            "    except OSError: return False\n"
            f"own = socket.create_server(('127.0.0.1', 0)); print(reach(own.getsockname()), reach(('127.0.0.1', {port})))"
        )
        interfaces = "; print(*(name for _, name in socket.if_nameindex()))"
        assert small.python_says(code + interfaces) == "True False\nlo\n"
        assert small.run("exec", "--network", "python", "-c", code).out == "True True\n"


def test_words_after_the_command_are_passed_to_it(small: parts.Project) -> None:
    (small.directory / "echo.py").write_text("import sys, json; print(json.dumps(sys.argv[1:]))\n")
    words = ["--seed", "3", "--help", "--json", "--", "-x"]
    assert json.loads(small.run("exec", "echo.py", *words).out) == words
    assert json.loads(small.run("exec", "--", "echo.py", "--", *words).out) == ["--", *words]


def test_a_command_is_a_program_or_a_module(small: parts.Project) -> None:
    assert small.run("exec", "bash", "-c", "echo $0").out == "bash\n"
    assert "usage" in small.run("exec", "-m", "json.tool", "--help").out


def test_stdin_and_streams_are_untouched(small: parts.Project) -> None:
    done = small.run(
        "exec", "python", "-c", "import sys; sys.stdout.write(sys.stdin.read()); sys.stderr.write('to err')", stdin="in\n"
    )
    assert done.out == "in\n"
    assert "to err" in done.err


def test_only_requested_variables_reach_a_run(small: parts.Project) -> None:
    env = {"GIVEN": "from the host", "SECRET_TOKEN": "hidden", "OMP_NUM_THREADS": "9"}
    code = "import os; print(os.environ.get('GIVEN'), os.environ.get('OTHER'), os.environ.get('SECRET_TOKEN'), os.environ.get('FILED'))"
    file = small.directory / "variables"
    file.write_text("FILED=yes\n")
    words = ("--env", "GIVEN", "--env", "OTHER=value", "--env-file", file)
    done = small.run("exec", *words, "python", "-c", code, env=env)
    assert done.out == "from the host value None yes\n"
    shown = small.run("runs", "show", "latest", "--json").out
    assert "GIVEN" in shown
    assert "from the host" not in shown


def test_data_is_read_only_and_checkpoints_are_not(small: parts.Project, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("data")
    (tmp_path / "ck").mkdir()
    code = (
        "import pathlib, sys\n"
        f"print(pathlib.Path({str(tmp_path / 'data' / 'x')!r}).read_text())\n"
        "pathlib.Path('/ck/new').write_text('kept')\n"
        f"try: pathlib.Path({str(tmp_path / 'data' / 'x')!r}).write_text('lost')\n"
        "except OSError: print('refused')"
    )
    done = small.run("exec", "--data", tmp_path / "data", "--checkpoints", f"{tmp_path / 'ck'}:/ck", "python", "-c", code)
    assert done.out == "data\nrefused\n"
    assert (tmp_path / "ck" / "new").read_text() == "kept"
    assert (tmp_path / "ck" / "new").stat().st_uid == os.getuid()


def test_what_a_run_wrote_does_not_become_code_of_the_host(small: parts.Project, tmp_path: Path) -> None:
    """Git's hooks, files on PATH and other files that tools execute by themselves stay in the run; results are copied."""
    small.python_says(
        "import os\n"
        "for path in ('.git/hooks/post-commit', 'hooks/post-commit', 'sub/.git/hooks/pre-commit', '.envrc', '.vscode/tasks.json',"
        " 'conftest.py', 'bin/ls', 'env/x.pth', 'out/.hydra/config.yaml', 'out/weights.txt'):\n"
        "    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n"
        "    open(path, 'w').write('#!/bin/sh\\necho hook >> ran\\n'); os.chmod(path, 0o755)\n"
    )
    to = tmp_path / "to"
    subprocess.run(["git", "init", "-q", to], check=True)
    shutil.rmtree(to / ".git" / "hooks", ignore_errors=True)
    (to / "bin").mkdir()
    path = {"PATH": f"{os.environ['PATH']}:{to / 'bin'}"}
    for words in ([], ["--force"]):
        got = small.run("runs", "get", "latest", "--to", to, *words, env=path)
        assert [Path(line).name for line in got.out.splitlines()] == ["config.yaml", "weights.txt"]
        assert "skipped, because it could become code of this machine: .envrc (" in got.err
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=hooks", "commit", "-qm1", "--allow-empty"]
    subprocess.run(commit, cwd=to, check=True)
    assert not (to / "ran").exists()
    refused = small.run("runs", "get", "latest", ".git/hooks/*", "--to", to, code=19)
    assert "no outputs that can be copied" in refused.err
