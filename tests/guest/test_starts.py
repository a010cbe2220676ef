"""Programs that a script starts: which ones no seed reaches, and what a Python without repro-env's variables gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.guest.scripts import PYTHONS, Script

QUIET: tuple[list[str], ...] = (
    ["git", "commit", "-m", "perl and ruby"],
    ["bash", "-c", "cat perl.txt | sort; echo ruby"],
    ["python", "-s", "-c", "1", "-S"],
    ["python", "-X", "S", "x.py", "-I"],
    ["timeout", "5s", "env", "A=b", "python", "-Wignore", "x.py"],
    ["sh", "-c", "RANDOM=1; echo $RANDOM"],
    [],
)
NAMED = (
    (["/usr/bin/perl5.36", "x.pl"], ["perl"]),
    (["Rscript", "x.R"], ["Rscript"]),
    (["python", "-S", "x.py"], ["python -S"]),
    (["python", "-sSE", "x.py"], ["python -ES"]),
    (["python", "-Ic", "print()"], ["the hash order of python -I"]),
    (["python", "-W", "ignore", "-E", "x.py"], ["the hash order of python -E"]),
    (["env", "-i", "python", "-I", "x.py"], ["the hash order of python -I"]),
    (["bash", "-ec", "cd x && python -S y.py | perl -n"], ["python -S", "perl"]),
    (["sh", "-c", "if true; then nice -n 5 ruby x.rb; fi"], ["ruby"]),
    (["sh", "-c", "sort <(echo $RANDOM)"], ["random numbers of the shell"]),
)


def ask(tmp_path: Path, commands: list[list[str]], *, has_site: bool = True) -> list[list[str]]:
    code = f"""
    import json, os, sys
    os.symlink(os.path.realpath(sys.executable), "python") if not os.path.exists("python") else None
    os.environ["PATH"] = os.getcwd() + ":" + os.environ["PATH"]
    import _repro_env_starts as starts
    sys.executable = os.path.realpath(sys.executable)
    print(json.dumps([[what for what, _ in starts.unreached(words, has_hooks=True, has_site={has_site})] for words in {commands!r}]))
    """
    result: list[list[str]] = json.loads(Script(tmp_path).run(code))
    return result


def test_commands_without_random_numbers_of_their_own_are_not_named(tmp_path: Path) -> None:
    assert ask(tmp_path, [*QUIET]) == [[]] * len(QUIET)


def test_programs_that_no_seed_reaches_are_named(tmp_path: Path) -> None:
    assert ask(tmp_path, [command for command, _ in NAMED]) == [names for _, names in NAMED]


def test_a_python_that_does_not_find_the_hooks_is_named(tmp_path: Path) -> None:
    found = ask(tmp_path, [["python", "-I", "x.py"], ["sh", "-c", "env -i python x.py"], ["python", "x.py"]], has_site=False)
    assert found == [["python -I"], ["python without the hooks"], []]


def test_lines_of_shell_scripts_and_first_lines_of_scripts_are_followed(tmp_path: Path) -> None:
    for name, text in (
        ("a.sh", "#!/bin/sh\n# perl\n\n./b.rb\nbash c.sh\n"),
        ("b.rb", "#!/usr/bin/env ruby\n"),
        ("c.sh", "exit\nsh a.sh\nperl -e 1\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script = Script(tmp_path)
    script.run("import subprocess; subprocess.run(['./a.sh'], capture_output=True)", quiet=False)
    found = [(note["system_randomness"], note["file"], note["line"]) for note in script.reports if "system_randomness" in note]
    assert (("unseeded: ruby", str(tmp_path / "a.sh"), 4)) in found
    assert (("unseeded: perl", str(tmp_path / "c.sh"), 3)) in found


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("how", ["subprocess", "spawn", "posix_spawn", "fork"])
def test_a_child_without_variables_has_the_numbers_and_hash_seed_of_others(tmp_path: Path, python: str, how: str) -> None:
    """The child has no variables that the script did not give it."""
    (tmp_path / "child.py").write_text("import os, random\nprint(random.random(), hash('a'), sorted(os.environ), flush=True)\n")
    code = f"""
    import os, subprocess, sys
    def start(env):
        command = [sys.executable, "child.py"]
        if {how!r} == "subprocess":
            subprocess.check_call(command, env=env)
        elif {how!r} == "spawn":
            subprocess.check_call([sys.executable, "-c", "import subprocess; subprocess.check_call(%r)" % command], env=env)
        elif {how!r} == "posix_spawn":
            os.waitpid(os.posix_spawn(sys.executable, command, env), 0)
        elif os.fork() == 0:
            os.execve(sys.executable, command, env)
        else:
            os.wait()
    start({{"A": "b", "LC_ALL": "C.UTF-8"}})
    start({{**os.environ, "LC_ALL": "C.UTF-8"}})
    """
    script = Script(tmp_path, python)
    cleaned, inherited = (line.split(" ", 2) for line in script.run(code).splitlines())
    assert cleaned[:2] == inherited[:2]
    assert cleaned[2] == "['A', 'LC_ALL']"
    assert not [note for note in script.reports if "problem" in note or "system_randomness" in note]


def test_a_child_keeps_its_own_python_path_and_hash_seed(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('own')\n")
    code = """
    import subprocess, sys
    ask = "import os, sys; print(os.environ, sys.path[1], hash('a'))"
    subprocess.check_call([sys.executable, "-c", ask], env={"PYTHONPATH": OWN, "PYTHONHASHSEED": "5", "LC_ALL": "C.UTF-8"})
    """.replace("OWN", repr(str(tmp_path / "own")))
    first, second = Script(tmp_path).run(code).splitlines()
    assert first == "own"
    assert f"'PYTHONPATH': '{tmp_path}/own', 'PYTHONHASHSEED': '5'" in second
    assert f" {tmp_path}/own " in second


def test_starting_no_program_loads_nothing(tmp_path: Path) -> None:
    code = "import sys; print([n for n in ('subprocess', '_repro_env_starts', 're') if n in sys.modules])"
    assert Script(tmp_path).run(code) == "[]\n"
