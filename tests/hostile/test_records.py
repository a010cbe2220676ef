"""Run records of a stranger: each is refused with a sentence or shown safely, and none hides the others."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.cli import app, parser
from repro_env.cli.ui import messages
from repro_env.io.files import remove_tree
from repro_env.runs.records import annotation, records
from repro_env.runs.records.checkpointstate import CheckpointFile, Listing
from repro_env.runs.start import repeat
from repro_env.sandbox import outputs as collected
from repro_env.sandbox.workspace import collect
from repro_env.schema import codec
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.progress import Silent
from repro_env.schema.run import DataFact, Parent
from repro_env.store.store import Store
from tests.e2e.parts import COMMAND
from tests.parts import need
from tests.runs.records.examples import DIGEST, end, recorded

CANARY = "canary-5d81f0"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
EVIL = "\u009b31m\u202egnp.exe\u2066\u061c\u2028"
"""A colour in C1 form, text turned around: a record may hold it, a terminal may not get it."""
LONGEST = 20
"""Seconds for one command."""
SPARSE = 1 << 40

Change = Callable[[Path, Path], object]
"""Makes a run hostile: its directory, and a directory outside."""


def pipe(name: str) -> Change:
    return lambda run, _: os.mkfifo(gone(run / name))


def listening(name: str) -> Change:
    def make(run: Path, _: Path) -> None:
        path, here = gone(run / name), os.open(".", os.O_RDONLY)
        try:
            os.chdir(path.parent)  # a socket's path is short
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path.name)
        finally:
            os.fchdir(here)
            os.close(here)

    return make


def device(name: str) -> Change:
    def make(run: Path, _: Path) -> None:
        path = gone(run / name)
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            os.mkfifo(path)

    return make


def link(name: str, target: str) -> Change:
    return lambda run, outside: gone(run / name).symlink_to(target.format(outside=outside, run=run))


def directory(name: str) -> Change:
    return lambda run, _: gone(run / name).mkdir()


def holding(name: str, data: bytes) -> Change:
    return lambda run, _: gone(run / name).write_bytes(data)


def sparse(name: str) -> Change:
    def make(run: Path, _: Path) -> None:
        gone(run / name).touch()
        os.truncate(run / name, SPARSE)

    return make


def edited(name: str, change: Callable[[dict[str, Any]], object]) -> Change:
    """Other JSON in `start.json` or `end.json`; the end still vouches for the start."""

    def make(run: Path, _: Path) -> None:
        facts = json.loads((run / f"{name}.json").read_bytes())
        change(facts)
        text = json.dumps(facts).encode("utf-8", "surrogatepass")
        gone(run / f"{name}.json").write_bytes(text)
        if name == "start":
            edited("end", lambda it: it.update(start=f"sha256:{hashlib.sha256(text).hexdigest()}"))(run, run)

    return make


def replaced(name: str, old: bytes, new: bytes) -> Change:
    def make(run: Path, _: Path) -> None:
        data = (run / name).read_bytes()
        assert old in data
        gone(run / name).write_bytes(data.replace(old, new, 1))

    return make


def output(path: str) -> Change:
    return edited("end", lambda it: it["outputs"][0].update(path=path))


def both(*changes: Change) -> Change:
    return lambda run, outside: [change(run, outside) for change in changes]


def gone(path: Path) -> Path:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return path


def moved_out(name: str) -> Change:
    """A directory of the run is outside, and a link leads there."""

    def make(run: Path, outside: Path) -> None:
        there = outside / f"{run.name}-{name.replace('/', '-')}"
        shutil.move(run / name, there)
        (run / name).symlink_to(there)

    return make


def interrupted(run: Path, _: Path) -> None:
    (run / "end.json").unlink()


def annotated(text: str) -> Change:
    def make(run: Path, _: Path) -> None:
        annotation.add(run, kind="note", text="honest")
        (path,) = (run / "annotations").iterdir()
        facts = json.loads(path.read_bytes())
        gone(path).write_text(json.dumps({**facts, "text": [text], "by": text}, ensure_ascii=False))

    return make


def noted(change: Callable[[str], Change]) -> Change:
    def make(run: Path, outside: Path) -> None:
        annotation.add(run, kind="note", text="honest")
        (path,) = (run / "annotations").iterdir()
        change(f"annotations/{path.name}")(run, outside)

    return make


def evil(value: Any, key: str = "") -> Any:
    """Every string that may be any text ends with `EVIL`, a few more of them are made up."""
    if isinstance(value, dict):
        return {name: evil(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [evil(entry, key) for entry in value]
    fixed = (
        "schema",
        "digest",
        "spec",
        "image",
        "runner",
        "sha256",
        "isolation",
        "kind",
        "how",
        "start",
        "id",
        "record",
        "started",
    )
    return value + EVIL if isinstance(value, str) and key not in fixed else value


def evil_everywhere(run: Path, outside: Path) -> None:
    first = {
        "data": [{"source": "/nowhere", "target": "/t", "kind": "data", "digest": DIGEST}],
        "host": ["os Debian", "cpu x"],
        "parents": [{"id": "01a1fd02-1a59-73ca-8e91-4a5f0000000a", "record": None, "how": "resumed", "path": "p"}],
        "tool": "1",
    }
    last = {
        "special_files": ["a -> b", "pipe (pipe)"],
        "removed": ["gone.py"],
        "auto_seeded": ["numpy default_rng at train.py:3"],
        "seeded": [{"library": "numpy", "what": "seed", "value": "1", "file": "train.py", "line": 1}],
        "system_randomness": [{"what": "os.urandom", "count": 1, "file": "train.py", "line": 1}],
        "operations": [{"what": "scatter", "count": 1, "file": "train.py", "line": 1}],
        "settings": [{"name": "threads", "value": "1"}],
        "ranks": [{"rank": 0, "size": 1, "backend": "gloo", "device": "cpu"}],
        "metrics": [{"name": "loss", "file": "m.json", "count": 1, "last": 1.0, "least": 1.0, "most": 1.0}],
        "parameters": [{"name": "lr", "value": "1", "file": "c.yaml"}],
        "unparsed_outputs": ["x.json (no JSON)"],
    }
    edited("end", lambda it: it.update(evil({**it, **last})))(run, outside)
    edited("start", lambda it: it.update(evil({**it, **first})))(run, outside)
    for path in ("a.txt", "sub/b.txt"):
        (run / "files" / path).rename(run / "files" / f"{path}{EVIL}")


def marker(data: bytes) -> Change:
    """The mark that the workspace was copied, in a run that was interrupted before it was settled."""
    return unsettled(holding(".copied", data))


def unsettled(*changes: Change) -> Change:
    return both(edited("start", lambda it: it.update(runner="embedded")), *changes, interrupted)


def with_checkpoints(*changes: Change, target: str = "/ck") -> Change:
    """A run whose record claims a checkpoint in a directory of the user."""

    def make(run: Path, outside: Path) -> None:
        held = CheckpointFile(target=target, path="w.pt", sha256=DIGEST, size=3)
        data = codec.pretty(Listing(files=(held,), links=(), special_files=()))
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        for name in ("before", "after"):
            (run / f"checkpoints-{name}.json").write_bytes(data)
        fact = {"source": str(outside), "target": "/ck", "kind": "checkpoints", "digest": None}
        edited("end", lambda it: it.update(checkpoints_after=digest))(run, outside)
        edited("start", lambda it: it.update(checkpoints_before=digest, data=[fact]))(run, outside)
        for change in changes:
            change(run, outside)

    return make


def traced(*changes: Change) -> Change:
    def make(run: Path, outside: Path) -> None:
        (run / "trace").mkdir()
        (run / "trace" / "0.jsonl").write_text("{}\n")
        for change in changes:
            change(run, outside)

    return make


def elsewhere(run: Path, outside: Path) -> None:
    shutil.move(run, outside / run.name)
    run.symlink_to(outside / run.name)


NESTED = b"[" * 200_000
FILES: dict[str, Callable[[str], Change]] = {
    "a named pipe": pipe,
    "a socket": listening,
    "a device": device,
    "a link to a file of the user's": lambda name: link(name, "{outside}/secret.txt"),
    "a link to another record": lambda name: link(name, "{outside}/record/" + name),
    "a link in a circle": lambda name: link(name, "{run}/" + name),
    "a directory": directory,
    "a terabyte of nothing": sparse,
    "empty": lambda name: holding(name, b""),
    "cut off": lambda name: holding(name, b'{"schema":"repro-env/run-'),
    "nested deeply": lambda name: holding(name, NESTED),
    "nested deeply in a field": lambda name: replaced(name, b'"id": ', b'"id": ' + NESTED),
    "NaN": lambda name: replaced(name, b'"id": ', b'"id": NaN, "x": '),
    "not UTF-8": lambda name: replaced(name, b'"id": "', b'"id": "\xff\xfe'),
    "a NUL": lambda name: replaced(name, b'"id": "', b'"id": "\\u0000'),
    "a terminal's escape": lambda name: replaced(name, b'"id": "', b'"id": "\\u001b[2J'),
    "half a character": lambda name: replaced(name, b'"id": "', b'"id": "\\ud800'),
    "keys that come twice": lambda name: replaced(name, b'"id": ', b'"id": 3, "id": '),
    "other types": lambda name: edited(name.removesuffix(".json"), lambda it: it.update(id=[1])),
    "an unknown key": lambda name: edited(name.removesuffix(".json"), lambda it: it.update({EVIL: 1})),
}
CASES: dict[str, Change] = {
    **{f"start is {what}": make("start.json") for what, make in FILES.items()},
    **{f"end is {what}": make("end.json") for what, make in FILES.items()},
    **{
        f"an output at {path!r}": output(path)
        for path in ("../x", "/etc/x", "a/../../b", "", ".", "a//b", "a\0b", "a\nb", "x" * 5000)
    },
    "numbers without measure": edited("end", lambda it: it.update(seconds=1e308, outcome={**it["outcome"], "exit_code": 10**30})),
    "sizes without measure": edited(
        "end", lambda it: it.update(outputs=[{**it["outputs"][0], "size": 2**63 - 1, "path": f"f{n}"} for n in range(5)])
    ),
    "a seed without measure": edited("start", lambda it: it.update(seed=10**300)),
    "negative time": edited("end", lambda it: it.update(seconds=-5.0, ended="1970-01-01T00:00:00.000Z")),
    "an absurd time": edited("start", lambda it: it.update(started="+99999999-99-99T99:99")),
    "no time": edited("start", lambda it: it.update(started="")),
    "text that a terminal obeys": evil_everywhere,
    "an id that is none": edited("start", lambda it: it.update(id="../../../etc/passwd")),
    "an empty id": edited("start", lambda it: it.update(id="")),
    "another run's end": edited("end", lambda it: it.update(id="01a1fd02-1a59-73ca-8e91-4a5f0000000a")),
    "a start that nobody vouches for": edited("end", lambda it: it.update(start=DIGEST)),
    "its own parent": edited("start", lambda it: it.update(parents=[parent(it["id"])])),
    "data that are a device": edited("start", lambda it: it.update(data=[datum("/dev/zero")])),
    "data of the user's without a digest": edited("start", lambda it: it.update(data=[datum("/etc", digest=None)])),
    "files outside": moved_out("files"),
    "files are a pipe": pipe("files"),
    "files are missing": lambda run, _: gone(run / "files"),
    "a directory of outputs outside": moved_out("files/sub"),
    "an output outside": moved_out("files/a.txt"),
    **{f"an output is {what}": FILES[what]("files/a.txt") for what in list(FILES)[:8]},
    "an output with two names": lambda run, outside: os.link(outside / "secret.txt", gone(run / "files" / "a.txt")),
    "an output that was changed": holding("files/a.txt", b"b"),
    "an output that nobody may read": lambda run, _: (run / "files" / "a.txt").chmod(0),
    "an extra link that leads out": link("files/x", "{outside}/secret.txt"),
    "an extra link that climbs out": link("files/sub/x", "../../../../../outside/secret.txt"),
    "an extra output that a terminal obeys": holding("files/\x1b[2J\u202ex", b"x"),
    "annotations outside": both(annotated("honest"), moved_out("annotations")),
    "annotations are a pipe": pipe("annotations"),
    **{f"a note is {what}": noted(FILES[what]) for what in list(FILES)[:4] + list(FILES)[5:13]},
    "a note that a terminal obeys": annotated(EVIL),
    "a note with a terminal's escape": annotated("\x1b[2J"),
    "a lock that is a pipe": both(pipe("lock"), interrupted),
    "a lock outside": both(link("lock", "{outside}/secret.txt"), interrupted),
    "unsettled, and its list is a pipe": unsettled(pipe(".copied")),
    "unsettled, and its list climbs out": marker(b'["../../../outside/empty", "../../../outside/hollow"]'),
    "unsettled, and its list is absolute": marker(b'["/tmp"]'),
    "unsettled, and its list leads out": both(marker(b'["out/empty"]'), link("files/out", "{outside}")),
    "unsettled, files outside": unsettled(moved_out("files")),
    "unfinished, with a pipe as a checkpoint": both(interrupted, pipe("files/manifest.json")),
    "unfinished, with a checkpoint nested deeply": both(
        interrupted, holding("files/manifest.json", b'"repro-env/checkpoint/' + NESTED)
    ),
    "traces outside": traced(moved_out("trace")),
    "a trace that is a pipe": traced(pipe("trace/0.jsonl")),
    "a trace nested deeply": traced(holding("trace/0.jsonl", NESTED)),
    "checkpoints before are a pipe": with_checkpoints(pipe("checkpoints-before.json")),
    "checkpoints after are a pipe": with_checkpoints(pipe("checkpoints-after.json")),
    "checkpoints in a directory that is not its own": with_checkpoints(target="/other"),
    "the run outside": elsewhere,
    "the run is a pipe": lambda run, _: os.mkfifo(gone(run)),
}


def parent(run_id: str) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(Parent(id=run_id, record=None, how="named"))
    return made


def datum(source: str, digest: str | None = DIGEST) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(DataFact(source=source, target="/t", kind="data", digest=digest))
    return made


class HangError(BaseException):
    """No `OSError`, which might be taken for one of a file."""


class Said:
    """What the commands printed, with what went wrong."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def call(self, case: str, *words: str) -> str:
        """One command line, in this process: what it prints, whatever it ends with."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            signal.alarm(LONGEST)
            try:
                app.run(words)
            except ReproEnvError as error:
                messages.error(error)
                if not error.hint or len(str(error)) > 6000:
                    self.wrong.append(f"{case}: {words}: no sentence: {error!r}")
            except BaseException as error:  # noqa: BLE001 - any other is what this looks for
                self.wrong.append(f"{case}: {words}: {error!r}"[:600])
            finally:
                signal.alarm(0)
        text = out.getvalue() + err.getvalue()
        if match := OBEYED.search(text):
            self.wrong.append(f"{case}: {words}: {match[0]!r} reached the terminal")
        if CANARY in text:
            self.wrong.append(f"{case}: {words}: printed what is outside")
        if not text:
            self.wrong.append(f"{case}: {words}: said nothing")
        return text


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """The user's own files, outside the untrusted project."""
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "secret.txt").write_text(CANARY)
    (directory / "empty").touch()
    (directory / "hollow").mkdir()
    honest(directory / "one", 9).rename(directory / "record")
    return directory


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "clone" / "runs"


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that hangs is ended. The parser is made once for each command, which takes longer than most of them."""
    monkeypatch.setattr(parser, "make", functools.cache(parser.make))

    def stop(*_: object) -> None:
        raise HangError(f"did not end within {LONGEST} s")

    old = signal.signal(signal.SIGALRM, stop)
    yield
    signal.signal(signal.SIGALRM, old)


def honest(runs: Path, number: int) -> Path:
    """A finished run with two outputs."""
    directory = recorded(runs, number, over=False)
    for name, text in (("a.txt", "one\n"), ("sub/b.txt", "two\n")):
        path = directory / "files" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    run_id = records.read(directory).start.id
    data = (directory / "start.json").read_bytes()
    last = msgspec.structs.replace(
        end(run_id),
        outputs=collected.collect(directory / "files").outputs,
        start=f"sha256:{hashlib.sha256(data).hexdigest()}",
    )
    (directory / "end.json").write_bytes(codec.pretty(last))
    return directory


def state(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Every path below, with mode, size and time of change."""
    entries = {}
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            facts = os.lstat(f"{root}/{name}")
            entries[f"{root}/{name}"] = (facts.st_mode, facts.st_size, facts.st_mtime_ns)
    return entries


def hostile(runs: Path, outside: Path) -> dict[str, Path]:
    """Case -> its run, all in one directory with an honest run, the youngest."""
    made = {}
    for number, (case, change) in enumerate(CASES.items(), 10):
        made[case] = honest(runs, number)
        change(made[case], outside)
    honest(runs, 5000)
    return made


def test_no_record_leads_outside_hangs_or_crashes(runs: Path, outside: Path, tmp_path: Path) -> None:
    assert len(CASES) >= 80
    made = hostile(runs, outside)
    before = state(outside)
    messages = Said()
    at = ("--runs", str(runs))
    listing = messages.call("all", "runs", "list", *at)
    for case, directory in made.items():
        if directory.name[-8:] not in listing and directory.name not in listing:
            messages.wrong.append(f"{case}: is not in the list")
    if f"{5000:08x}" not in listing:
        messages.wrong.append("the honest run is not in the list")
    for words in (
        ("list", "--json"),
        ("audit",),
        ("gc", "--keep", "last=1", "--dry-run"),
        ("gc", "--keep", "last=1", "--dry-run", "--json"),
    ):
        messages.call("all", "runs", *words, *at)
    for number, (case, directory) in enumerate(made.items()):
        short, to = directory.name[-8:], tmp_path / "to" / str(number)
        messages.call(case, "runs", "show", short, "--all", *at)
        if "obeys" in case:
            messages.call(case, "runs", "show", short, "--json", *at)
        messages.call(case, "runs", "get", short, "--to", str(to), *at)
        if number % 2:
            messages.call(case, "runs", "compare", short, f"{5000:08x}", *at)
            messages.call(case, "runs", "tag", short, "seen", *at)
        else:
            messages.call(case, "lineage", str(directory), *at)
            messages.call(case, "verify", short, *at)
        for path in sorted(to.rglob("*")):
            if path.is_symlink() or (path.is_file() and CANARY in path.read_text()):
                messages.wrong.append(f"{case}: {path.relative_to(to)} was copied")
    messages.call("all", "runs", "list", *at)  # the records are old enough now, so the store keeps their lines
    messages.call("all", "lineage", f"sha256:{hashlib.sha256(b'one').hexdigest()}", *at)
    after = state(outside)
    changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    assert not changed, changed
    assert not messages.wrong, "\n".join(messages.wrong)


INSTALLED: dict[str, Change] = {
    "start is a pipe": pipe("start.json"),
    "end is a pipe": pipe("end.json"),
    "a note is a pipe": noted(pipe),
    "files outside": moved_out("files"),
    "an output outside": moved_out("files/a.txt"),
    "a lock that is a pipe": both(pipe("lock"), interrupted),
}


def test_the_installed_command_reports_bad_runs_and_continues(runs: Path, outside: Path, tmp_path: Path) -> None:
    need(COMMAND.is_file(), f"{COMMAND} is missing: run the tests by `make test`, which installs the command")
    made = {}
    for number, (case, change) in enumerate(INSTALLED.items(), 1):
        made[case] = honest(runs, number)
        change(made[case], outside)
    honest(runs, 50)
    short = {case: directory.name[-8:] for case, directory in made.items()}
    to = str(tmp_path / "to")
    calls = {
        ("runs", "list"): 0,
        ("runs", "audit"): 1,
        ("runs", "gc", "--keep", "last=1", "--dry-run"): 0,
        ("runs", "show", short["start is a pipe"]): 19,
        ("runs", "show", short["end is a pipe"]): 19,
        ("runs", "show", short["a note is a pipe"]): 19,
        ("runs", "get", short["files outside"], "--to", to): 19,
        ("runs", "get", short["an output outside"], "--to", to): 19,
        ("lineage", str(made["end is a pipe"])): 19,
        ("verify", short["start is a pipe"]): 19,
    }
    environ = {**os.environ, "REPRO_ENV_STORE": str(tmp_path / "store")}
    started = {
        words: subprocess.Popen(
            [COMMAND, *words, "--runs", str(runs)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
            cwd=tmp_path,
        )
        for words in calls
    }
    for words, process in started.items():
        try:
            text = process.communicate(timeout=60)[0]
        except subprocess.TimeoutExpired:
            for entry in started.values():
                entry.kill()
            pytest.fail(f"{words} hangs")
        assert process.returncode == calls[words], (words, text)
        assert "Traceback" not in text, text
        assert CANARY not in text, text
        if words[1] in ("list", "audit", "gc"):
            assert short["start is a pipe"] in text, text
        if words[1] == "list":
            assert f"{50:08x}" in text, text
        elif process.returncode or words[1] == "gc":
            assert re.search("it is a (named pipe|symbolic link), not a ", text), text
    assert not Path(to).exists()


def test_runs_with_one_id_and_parents_in_a_circle_are_shown(runs: Path, outside: Path) -> None:
    first, two, twin = (honest(runs, number) for number in (1, 2, 3))
    ids = [records.read(directory).start.id for directory in (first, two)]
    edited("start", lambda it: it.update(parents=[parent(ids[1])]))(first, outside)
    edited("start", lambda it: it.update(parents=[parent(ids[0])]))(two, outside)
    edited("start", lambda it: it.update(id=ids[0]))(twin, outside)
    messages = Said()
    for words in (("runs", "list"), ("runs", "audit"), ("runs", "gc", "--keep", "last=1", "--dry-run")):
        messages.call("all", *words, "--runs", str(runs))
    for directory in (first, two, twin):
        messages.call(directory.name, "lineage", str(directory), "--runs", str(runs))
        messages.call(directory.name, "runs", "show", ids[0], "--runs", str(runs))
    assert not messages.wrong, messages.wrong


@pytest.mark.parametrize("change", [link("latest", "{outside}/record"), pipe("latest"), link("specs", "{outside}/specs")])
def test_links_and_pipes_named_latest_or_specs_are_not_followed(runs: Path, outside: Path, change: Change) -> None:
    directory = honest(runs, 1)
    kept = outside / "specs" / f"sha256-{'0' * 64}"
    kept.mkdir(parents=True)
    (kept / "spec.json").write_text(CANARY)
    for path in (kept, kept / "spec.json"):
        os.utime(path, (0, 0))
    before = state(outside)
    change(runs, outside)
    messages = Said()
    shown = messages.call("latest", "runs", "show", "latest", "--runs", str(runs))
    messages.call("gc", "runs", "gc", "--keep", "last=1", "--runs", str(runs))
    messages.call("lineage", "lineage", str(directory), "--runs", str(runs))
    assert directory.name[-8:] in shown
    assert state(outside) == before
    assert not messages.wrong, messages.wrong


def test_verify_refuses_data_without_a_digest(runs: Path, outside: Path) -> None:
    """Anything of this machine could be named there, and the run of a stranger would be shown it."""
    run = records.read(honest(runs, 1))
    fact = DataFact(source=str(outside), target="/t", kind="data", digest=None)
    run = msgspec.structs.replace(run, start=msgspec.structs.replace(run.start, data=(fact,)))
    (problem,) = repeat.data_problems(run, {"/t": str(outside)}, Store.open(), Silent())
    assert str(outside) in problem
    assert "no digest" in problem


@pytest.mark.parametrize("listed", ["/p/../../../outside/empty", "{outside}/empty", "/p/out/empty", "/p/out", "\\ud800"])
def test_settling_a_run_removes_nothing_outside(runs: Path, outside: Path, tmp_path: Path, listed: str) -> None:
    run = honest(runs, 1)
    (run / "files" / "out").symlink_to(outside)
    mounted = listed.replace("{outside}", str(outside))
    (run / ".unfinished.json").write_text(f'{{"workspace": "/p", "mounted": ["{mounted}"], "kept": [], "caches": []}}')
    (tmp_path / "snapshot").mkdir()
    before = state(outside)
    for link in ("outside", "files"):
        with contextlib.suppress(OSError):
            collect(run, tmp_path / "snapshot")
        assert state(outside) == before
        remove_tree(run / link)
        (run / link).symlink_to(outside)
    with pytest.raises(OSError):  # noqa: PT011
        collect(run, tmp_path / "snapshot")
    assert state(outside) == before
