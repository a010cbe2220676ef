"""What a run sees of the project's files, through the installed command: their times, empty directories, links, and what is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts
from tests.parts import need

NEWEST = """\
import glob, json, os, sys
newest = [max(glob.glob(pattern), key=os.path.getmtime) for pattern in sys.argv[1:]]
times = {path: os.stat(path).st_mtime_ns for path in ("stages/a.txt", "stages/b.txt", "stages", *newest)}
print(*newest)
json.dump(times, open("out.json", "w"))
"""
TIMES = {
    "stages/b.txt": 1_600_000_001_123_456_789,
    "stages/a.txt": 1_600_000_002_000_000_007,
    "stages": 1_600_000_000_000_000_001,
}
IGNORED = {"ckpt/z.pt": 1_500_000_000_000_000_003, "ckpt/m.pt": 1_700_000_000_999_999_999, "ckpt/a.pt": 1_400_000_000_000_000_000}


def write(directory: Path, **texts: str) -> None:
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def set_times(directory: Path, times: dict[str, int]) -> None:
    for path, when in times.items():
        os.utime(directory / path, ns=(when, when))


def commit(directory: Path) -> None:
    subprocess.run(["git", "init", "-q", str(directory)], check=True)
    for words in (["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=directory, check=True)


@pytest.fixture(scope="module")
def made(small: parts.Project, ground: Path) -> parts.Project:
    directory = ground / "seen" / "project"
    write(
        directory,
        **{
            ".gitignore": "/ckpt/\n/outputs/\n/data/\n/big/\n/cache/\n.venv\nrepro/\nruns\n",
            "newest.py": NEWEST,
            "stages/a.txt": "a",
            "stages/b.txt": "b",
            **dict.fromkeys(IGNORED, "weights"),
        },
    )
    commit(directory)
    set_times(directory, {**TIMES, **IGNORED})
    project = parts.project(directory, parts.venv(directory / ".venv", own_pip=False), small.store)
    need(Path("/usr/bin/git").exists(), "git as a program of the machine")
    project.capture("--with", "git")
    return project


def last(project: parts.Project) -> Path:
    return (project.directory / "runs" / "latest").resolve()


def record(project: parts.Project) -> dict[str, Any]:
    start = json.loads((last(project) / "start.json").read_text())
    assert isinstance(start, dict)
    return start


def seen(project: parts.Project) -> dict[str, int]:
    times = json.loads((last(project) / "files" / "out.json").read_text())
    assert isinstance(times, dict)
    return times


@pytest.mark.parametrize("runner", ["embedded", "host"])
def test_the_newest_file_is_the_same_as_on_the_host(made: parts.Project, runner: str) -> None:
    done = made.run("exec", "--runner", runner, "newest.py", "ckpt/*.pt", "stages/*")
    assert done.out == "ckpt/m.pt stages/a.txt\n"
    assert seen(made) == {**TIMES, "ckpt/m.pt": IGNORED["ckpt/m.pt"]}
    assert [path.name for path in (last(made) / "files").iterdir()] == ["out.json"], "unchanged files are not outputs"


def test_a_clone_with_new_times_repeats_the_recorded_order(made: parts.Project, tmp_path: Path) -> None:
    made.run("exec", "newest.py", "ckpt/*.pt")
    recorded, before = last(made), record(made)
    then = {**TIMES, **IGNORED}
    try:
        set_times(
            made.directory, {path: 1_750_000_000_000_000_000 + number for number, path in enumerate(sorted(then, reverse=True))}
        )
        done = made.run("verify", recorded.name)
        assert "bitwise" in done.out, "the repeat sees the times in the record"
        made.run("exec", "newest.py", "ckpt/*.pt")
        assert record(made)["source"]["digest"] == before["source"]["digest"]
        assert record(made)["source"]["with_ignored"] == before["source"]["with_ignored"]
        assert made.run("exec", "--frozen", "newest.py", "stages/*").out == "stages/a.txt\n"
        assert seen(made) == TIMES, "the captured files have the times of the capture"
    finally:
        set_times(made.directory, then)


def test_a_resumed_run_sees_when_its_outputs_were_written(made: parts.Project) -> None:
    script = (
        "import glob, os; made = sorted(glob.glob('ck/*'), key=os.path.getmtime); print(made);"
        "os.makedirs('ck', exist_ok=True); n = len(made);"
        "[os.utime(open(f'ck/{name}', 'w').name, ns=(5, 10**18 + time * 10**9)) for name, time in (('a', 3), ('b', 1), ('c', 2)) if not n]"
    )
    made.run("exec", "-c", script)
    first = last(made)
    assert made.run("exec", "--resume", first.name, "-c", script).out == "['ck/b', 'ck/c', 'ck/a']\n"
    resumed = last(made)
    assert sorted(path.name for path in (resumed / "files" / "ck").iterdir()) == ["a", "b", "c"]
    for path in (first / "files" / "ck").iterdir():
        os.utime(path, ns=(1, ord(path.name)))
    assert "bitwise" in made.run("verify", resumed.name).out


def test_git_in_a_run_sees_no_change(made: parts.Project) -> None:
    script = "git status --porcelain; git diff-files; git describe --always --dirty"
    assert made.run("exec", "sh", "-c", script).out.count("\n") == 1


WALK = "import os; print(sorted(path for top, names, files in os.walk('.') for path in (top, *(os.path.join(top, f) for f in files))))"


def test_ignored_directories_without_bytes_and_links_are_in_the_run(made: parts.Project, tmp_path: Path) -> None:
    store = made.directory / "cache" / "ab"
    links = {"data/near.csv": "../cache/ab/near", "data/full.csv": str(store / "near"), "data/gone.csv": "../no/such"}
    (made.directory / "outputs" / "deep").mkdir(parents=True)
    write(made.directory, **{"cache/ab/near": "near"})
    (made.directory / "data").mkdir()
    for link, target in links.items():
        (made.directory / link).symlink_to(target)
    done = made.run("exec", "-c", WALK + "; print(open('data/near.csv').read(), open('data/full.csv').read())")
    assert all(repr(f"./{path}") in done.out for path in ("outputs/deep", *links))
    assert done.out.endswith("near near\n")
    assert "not in this run" not in done.err, "a link that leads nowhere here leads nowhere there"
    assert "no outputs" in done.err

    away = tmp_path / "mnt" / "files"
    write(away, x="x", y="y")
    for name in ("x", "y"):
        (made.directory / "data" / name).symlink_to(away / name)
    (made.directory / "big").mkdir()
    with (made.directory / "big" / "w.bin").open("wb") as file:
        file.truncate(300_000_000)
    done = made.run("exec", "-c", "import os; print(os.path.exists('big'), os.path.exists('data/x'))")
    assert done.out == "False False\n"
    (line,) = (line for line in done.err.splitlines() if "not in this run" in line)
    assert "big (300 MB)" in line
    assert f"{away}, to which 2 symlinks like data/x lead" in line
    assert f"--data {made.directory}/big" in line
    done = made.run(
        "exec", "--data", "big", "--data", away, "-c", "import os; print(os.path.exists('big/w.bin'), open('data/x').read())"
    )
    assert done.out == "True x\n"
    assert "not in this run" not in done.err


def test_runs_in_a_directory_of_the_project_are_no_code(made: parts.Project) -> None:
    made.run("exec", "--runs", "exp/all", "-c", "print(1)")
    (made.directory / "exp" / "jobs" / ".jobs").mkdir(parents=True)
    done = made.run("exec", "--runs", "exp/all", "-c", "import os; print(os.path.exists('exp')); open('o.txt', 'w').write('o')")
    assert (done.out, "source as captured" in done.err) == ("False\n", True), done.err
    assert "bitwise" in made.run("verify", "latest", "--runs", "exp/all").out
    done = made.run("exec", "-c", "print(1)")
    assert "source as captured" in done.err, "also for a run that is recorded elsewhere"
    made.run("check")


def test_outputs_with_holes_and_below_deep_directories_are_recorded(made: parts.Project) -> None:
    script = (
        "import os; open('good.txt', 'w').write('good'); file = open('hole.bin', 'wb'); file.truncate(1 << 26); file.seek(1 << 25);"
        "file.write(b'data'); file.close(); os.mkdir('deep'); os.chdir('deep'); open('near.txt', 'w').write('near');"
        "[(os.mkdir('d' * 200), os.chdir('d' * 200)) for _ in range(25)]; open('far.txt', 'w').write('far')"
    )
    made.run("exec", "-c", script)
    end = json.loads((last(made) / "end.json").read_text())
    hole = last(made) / "files" / "hole.bin"
    digests = {output["path"]: output["sha256"] for output in end["outputs"]}
    assert set(digests) == {"good.txt", "hole.bin", "deep/near.txt"}
    assert digests["hole.bin"][7:] == subprocess.run(["sha256sum", hole], capture_output=True, text=True, check=True).stdout[:64]
    assert hole.stat().st_blocks < 1000, "the hole is not written out"
    (line,) = end["special_files"]
    assert line.endswith(" (File name too long)")


def test_a_signal_ends_the_reading_of_outputs_and_the_record_says_so(made: parts.Project) -> None:
    script = "open('a.txt', 'w').write('a'); open('big.bin', 'wb').truncate(1 << 40); print('ends', flush=True)"
    environ = parts.environ(made.store)
    words = [str(parts.COMMAND), "exec", "-c", script]
    with subprocess.Popen(
        words, cwd=made.directory, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ends\n"
        time.sleep(1)  # the command ends, and its outputs are read
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    end = json.loads((last(made) / "end.json").read_text())
    assert end["special_files"] == ["big.bin (SIGTERM ended the reading)"]
    assert [output["path"] for output in end["outputs"]] == ["a.txt"]
    assert "the record is not complete" in err
    assert "ended by signal" in made.run("verify", "latest", code=None).err


def test_places_that_libraries_search_are_named_and_can_be_held(made: parts.Project, tmp_path: Path) -> None:
    """The library is a stand-in with the name of a real one: only its name decides which places are searched."""
    (site,) = (made.directory / ".venv" / "lib").glob("python*/site-packages")
    write(site, **{"nltk-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: nltk\nVersion: 1.0\n"})
    write(tmp_path, **{"nltk_data/corpora/words": "words", ".config/nltk/nltk.ini": "x"})
    home = {"HOME": str(tmp_path)}
    words = [
        "exec",
        "-c",
        "import os; print(*[os.path.exists(os.path.expanduser(p)) for p in ('~/nltk_data/corpora', '~/.config/nltk')])",
    ]
    notes = made.run("capture", "--python", made.python, env=home).out
    assert (
        f"not in runs, although libraries search there: {tmp_path}/nltk_data (NLTK data), {tmp_path}/.config/nltk (nltk)" in notes
    )
    assert made.run(*words, env=home).out == "False False\n"
    options: list[str | Path] = ["--data", tmp_path / "nltk_data", "--data", tmp_path / ".config" / "nltk"]
    assert "libraries search there" not in made.run("capture", "--python", made.python, *options, env=home).out
    assert made.run(*words, env=home).out == "True True\n"
