"""Hostile environments harm neither files nor the capture, and are named."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from repro_env.io.package import GUEST
from tests.e2e import parts
from tests.hostile.ground import PYTHON, Ground
from tests.parts import need


@pytest.fixture
def ground(tmp_path: Path, store: Path, blobs: list[Path]) -> Ground:
    """Beside what an earlier capture left, so that what is the same each time is not compressed a hundred times."""
    made = Ground(tmp_path / "ground", store)
    parts.copy_blobs(blobs, made.project, store)
    made.laid = tuple(blobs)
    return made


class Case(NamedTuple):
    plant: Callable[[Ground], None]
    named: str
    """What of it has to be said, in the output or the spec."""
    code: int | None = 0
    """0 captured, else the error's own; None: either."""
    held: tuple[bytes, ...] = ()
    """Bytes that are bundled: what is strange and can be held as it is needs no word."""
    soak: bool = False
    """Similar to a case that always runs; included only in `make soak`."""


def names_of(cases: dict[str, Case]) -> list[ParameterSet]:
    return [pytest.param(name, marks=[pytest.mark.soak] * case.soak) for name, case in cases.items()]


# -- distributions ------------------------------------------------------------------------------------------------


def climbing_name(ground: Ground) -> None:
    ground.install("x", metadata="Metadata-Version: 2.1\nName: ../../x\nVersion: 1.0\n")


def climbing_version(ground: Ground) -> None:
    ground.install("x", metadata="Metadata-Version: 2.1\nName: x\nVersion: 1.0/../../../canary\n")


def absolute_record(ground: Ground) -> None:
    ground.install("x", record=["/etc/shadow,,", f"{ground.canary}/private.txt,,"])


def climbing_record(ground: Ground) -> None:
    up = os.path.relpath(ground.canary / "private.txt", ground.site)
    ground.install("x", record=[f"{up},sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,1"])


def record_of_another(ground: Ground) -> None:
    ground.install("x", record=["plain.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0"])


def record_with_strange_rows(ground: Ground) -> None:
    ground.install(
        "x", record=['"a\nb.py",,', "tab\there.py,,", "esc\x1b[31m.py,,", "\u202egnp.py,,", ",,", "a,b,c,d,e", "x.py,md5=zz,-5"]
    )


def record_of_no_text(ground: Ground) -> None:
    (ground.install("x") / "RECORD").write_bytes(b"\xff\xfe\x00\x01" * 1000)


def huge_metadata(ground: Ground) -> None:
    ground.install("big", metadata="Metadata-Version: 2.1\nName: big\nVersion: 1.0\n\n" + "readme\n" * 7_500_000)


def huge_metadata_without_a_head(ground: Ground) -> None:
    ground.install("big", metadata="X" * 50_000_000)


def huge_record(ground: Ground) -> None:
    info = ground.install("big")
    with (info / "RECORD").open("a") as file:
        for number in range(1_300_000):
            file.write(f"pkg/{number:020}/{'x' * 40}.py,,\n")


def many_rows(ground: Ground) -> None:
    info = ground.install("big")
    with (info / "RECORD").open("a") as file:
        for number in range(200_000):
            file.write(f"pkg/{number:06}.py,,\n")


def linked_dist_info(ground: Ground) -> None:
    real = ground.install("x")
    real.rename(ground.site / "kept-elsewhere")
    real.symlink_to("kept-elsewhere")


def linked_metadata(ground: Ground) -> None:
    info = ground.install("x")
    (info / "METADATA").unlink()
    (info / "METADATA").symlink_to(ground.canary / "private.txt")


def pipe_as_record(ground: Ground) -> None:
    info = ground.install("x")
    (info / "RECORD").unlink()
    os.mkfifo(info / "RECORD")


def directory_as_metadata(ground: Ground) -> None:
    info = ground.install("x")
    (info / "METADATA").unlink()
    (info / "METADATA").mkdir()


def a_million_tags(ground: Ground) -> None:
    ground.install("x", tags="".join(f"Tag: py3-none-p{number}\n" for number in range(1_000_000)))


def tags_that_multiply(ground: Ground) -> None:
    """A few thousand bytes that stand for hundreds of millions of tags."""
    part = ".".join(f"p{number}" for number in range(30))
    ground.install("x", tags=f"Tag: {part}-{part}-{part}\n" * 500)


def climbing_entry_points(ground: Ground) -> None:
    info = ground.install("x")
    (info / "entry_points.txt").write_text(
        "[console_scripts]\n../../evil = x:NAME\nbin/../y = x:NAME\n/etc/z = x:NAME\n.. = x:NAME\n\x1b[2J = x:NAME\n"
    )


def entry_points_of_no_text(ground: Ground) -> None:
    (ground.install("x") / "entry_points.txt").write_bytes(b"\xff\x00[console_scripts\n= = =\n[[[")


def two_of_one_name(ground: Ground) -> None:
    ground.install("x")
    ground.install("x", directory="X-2.0.dist-info", metadata="Metadata-Version: 2.1\nName: X\nVersion: 2.0\n")


def huge_direct_url(ground: Ground) -> None:
    (ground.install("x") / "direct_url.json").write_text(json.dumps({"url": "https://example.org/" + "x" * 10_000_000}))


def climbing_direct_url(ground: Ground) -> None:
    info = ground.install("x")
    (info / "direct_url.json").write_text(json.dumps({"url": "file:///../..", "dir_info": {"editable": True}}))


def everything_editable(ground: Ground) -> None:
    info = ground.install("x")
    (info / "direct_url.json").write_text(json.dumps({"url": "file:///", "dir_info": {"editable": True}}))


def deep_direct_url(ground: Ground) -> None:
    (ground.install("x") / "direct_url.json").write_text("[" * 400_000)


def strange_direct_url(ground: Ground) -> None:
    (ground.install("x") / "direct_url.json").write_text(json.dumps({"url": {"a": 1}, "vcs_info": [], "dir_info": 3}))


def strange_names_in_dist_infos(ground: Ground) -> None:
    for name in ("-1.0.dist-info", ".dist-info", "a\x1b[31m-1.0.dist-info", "\u202ex-1.0.dist-info", "x-1.0-2.0.dist-info"):
        directory = ground.site / name
        directory.mkdir()
        (directory / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1.0\n")


DISTRIBUTIONS = {
    "a name that climbs": Case(climbing_name, "an invalid name"),
    "a version that climbs": Case(climbing_version, "an invalid version", soak=True),
    "RECORD with absolute paths": Case(absolute_record, "/etc/shadow"),
    "RECORD with ..": Case(climbing_record, "private.txt", soak=True),
    "RECORD naming another's file": Case(record_of_another, "x 1.0", soak=True),
    "RECORD with strange rows": Case(record_with_strange_rows, "x 1.0"),
    "RECORD that is no text": Case(record_of_no_text, "x 1.0", soak=True),
    "METADATA of 50 MB": Case(huge_metadata, "big"),
    "METADATA of 50 MB in one line": Case(huge_metadata_without_a_head, "big-1.0.dist-info", soak=True),
    "RECORD of 100 MB": Case(huge_record, "big-1.0.dist-info: its RECORD cannot be read: it is larger than", soak=True),
    "RECORD of 200 000 rows": Case(many_rows, "its RECORD lists missing files", soak=True),
    "a symlink as dist-info": Case(linked_dist_info, "x-1.0.dist-info"),
    "a symlink as METADATA": Case(linked_metadata, "METADATA cannot be read: it is a symbolic link"),
    "a pipe as RECORD": Case(pipe_as_record, "RECORD", None),
    "a directory as METADATA": Case(directory_as_metadata, "METADATA", soak=True),
    "a million tags": Case(a_million_tags, "its WHEEL", soak=True),
    "tags that multiply": Case(tags_that_multiply, "its WHEEL"),
    "entry points that climb": Case(climbing_entry_points, "x 1.0"),
    "entry points that are no text": Case(entry_points_of_no_text, "x 1.0", soak=True),
    "two of one name": Case(two_of_one_name, "claim to be x"),
    "direct_url.json of 10 MB": Case(huge_direct_url, "direct_url.json", soak=True),
    "direct_url.json that climbs": Case(climbing_direct_url, "x", None),
    "direct_url.json of everything": Case(everything_editable, "x", None, soak=True),
    "direct_url.json too deep": Case(deep_direct_url, "direct_url.json cannot be read"),
    "direct_url.json of other types": Case(strange_direct_url, "direct_url.json cannot be read", soak=True),
    "strange dist-info names": Case(strange_names_in_dist_infos, "x-1.0"),
}


@pytest.mark.parametrize("name", names_of(DISTRIBUTIONS))
def test_hostile_distributions_are_captured_or_refused(ground: Ground, name: str) -> None:
    judged(ground, DISTRIBUTIONS[name])


def judged(ground: Ground, case: Case) -> None:
    case.plant(ground)
    ended = ground.capture()
    assert case.code is None or ended.code == case.code, ended.output
    assert case.named in ground.messages(ended), f"{case.named!r} is not named: {ended.output}"
    assert ended.seconds < 200
    if ended.code == 0:
        named = any("canary/private.txt" in bundled["name"] for bundled in ground.facts()["observed"]["bundled"])
        assert named == ground.carries(b"canary-7c1e9a"), "a file outside was bundled without a word"
        entries = ground.facts()["observed"]["distributions"] + ground.facts()["observed"]["bundled"]
        assert any(entry["name"] == "plain" for entry in entries), "the others are captured all the same"
        for word in case.held:
            assert ground.carries(word), f"{word!r} is not in what is bundled"


# -- files --------------------------------------------------------------------------------------------------------


def pipe(ground: Ground) -> None:
    os.mkfifo(ground.site / "pipe.py")


def unix_socket(ground: Ground) -> None:
    here = Path.cwd()
    os.chdir(ground.site)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("sock")
    finally:
        os.chdir(here)


def device(ground: Ground) -> None:
    try:
        os.mknod(ground.site / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        need(False, "the right to make a device: run as root")


def link_loop(ground: Ground) -> None:
    (ground.site / "a").symlink_to("b")
    (ground.site / "b").symlink_to("a")
    (ground.site / "self").symlink_to("self")


def directory_loop(ground: Ground) -> None:
    (ground.site / "deep").mkdir()
    (ground.site / "deep" / "again").symlink_to("..")


def link_to_root(ground: Ground) -> None:
    (ground.site / "all").symlink_to("/")


def link_to_processes(ground: Ground) -> None:
    (ground.site / "proc").symlink_to("/proc")


def link_to_a_pipe(ground: Ground) -> None:
    os.mkfifo(ground.canary / "pipe")
    (ground.site / "linked").symlink_to(ground.canary / "pipe")


def link_to_endless_zeros(ground: Ground) -> None:
    (ground.site / "zeros").symlink_to("/dev/zero")


def newline(ground: Ground) -> None:
    (ground.site / "a\nRUN evil.py").write_text("")


def escape(ground: Ground) -> None:
    (ground.site / "a\x1b[2J\x07.py").write_text("")


def undecodable(ground: Ground) -> None:
    Path(os.fsdecode(os.fsencode(ground.site) + b"/caf\xe9.py")).write_text("")


def right_to_left(ground: Ground) -> None:
    (ground.site / "\u202egpj.py").write_text("")


def long_names(ground: Ground) -> None:
    (ground.site / ("n" * 255)).write_text("")
    directory = os.open(ground.site, os.O_RDONLY)
    for _ in range(16):
        os.mkdir("d" * 200, dir_fd=directory)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(os.open("end.py", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    os.close(directory)


def case_twins(ground: Ground) -> None:
    (ground.site / "Twin.py").write_text("A = 1\n")
    (ground.site / "twin.py").write_text("A = 2\n")


def linked_site(ground: Ground) -> None:
    ground.site.rename(ground.venv / "elsewhere")
    ground.site.symlink_to(ground.venv / "elsewhere")


def linked_site_outside(ground: Ground) -> None:
    shutil.move(ground.site, ground.directory / "home" / "site")
    ground.site.symlink_to(ground.directory / "home" / "site")


def odd_settings(ground: Ground) -> None:
    with (ground.venv / "pyvenv.cfg").open("ab") as file:
        file.write(b"= = =\nhome\nprompt = \x1b[31m\n\xff\xfe = \x00\nunknown = " + b"x" * 5_000_000 + b"\n")


def setuid(ground: Ground) -> None:
    (ground.site / "tool.py").write_text("")
    (ground.site / "tool.py").chmod(0o6755)


def a_sparse_terabyte(ground: Ground) -> None:
    with (ground.site / "data.bin").open("wb") as file:
        file.truncate(1 << 40)


FILES = {
    "a pipe": Case(pipe, "pipe.py", 7),
    "a socket": Case(unix_socket, "sock", 7, soak=True),
    "a device": Case(device, "zero", 7, soak=True),
    "symlinks that loop": Case(link_loop, "", 0, (b"site-packages/self",)),
    "a directory that loops": Case(directory_loop, "", 0, (b"deep/again",), soak=True),
    "a symlink to /": Case(link_to_root, "all", 7),
    "a symlink to /proc": Case(link_to_processes, "", 0, (b"site-packages/proc",), soak=True),
    "a symlink to a pipe": Case(link_to_a_pipe, "linked", 7),
    "a symlink to /dev/zero": Case(link_to_endless_zeros, "zeros", 7, soak=True),
    "a name with a newline": Case(newline, "", 0, (b"a\nRUN evil.py",)),
    "a name with escapes": Case(escape, "", 0, (b"a\x1b[2J\x07.py",), soak=True),
    "a name that is not UTF-8": Case(undecodable, "not valid UTF-8", 7),
    "a name that runs right to left": Case(right_to_left, "", 0, ("\u202egpj.py".encode(),), soak=True),
    "names as long as can be": Case(long_names, "", 0, (b"n" * 255, b"d" * 200), soak=True),
    "names that differ in case": Case(case_twins, "", 0, (b"Twin.py", b"twin.py"), soak=True),
    "site-packages is a symlink": Case(linked_site, "plain 1.0", 0),
    "site-packages lies outside": Case(linked_site_outside, "site", None),
    "an odd pyvenv.cfg": Case(odd_settings, "", None, soak=True),
    "a setuid file": Case(setuid, "", 0, (b"tool.py",)),
}


@pytest.mark.parametrize("name", names_of(FILES))
def test_hostile_files_are_captured_or_refused(ground: Ground, name: str) -> None:
    judged(ground, FILES[name])


# -- code that runs as Python starts ------------------------------------------------------------------------------

STARTS = {
    "prints": ("print('noise ' * 50)", ""),
    "prints without end": ("import sys\nfor _ in range(400000): sys.stdout.write('flood ' * 20 + '\\n')", ""),
    "prints control characters": ("print('\\x1b[2J\\x07\\x1b]0;title\\x07 \\u202e noise')", ""),
    "exits": ("raise SystemExit(0)", "ended with exit code"),
    "leaves at once": ("import os\nos._exit(0)", "ended with exit code 0"),
    "leaves with a code": ("import os\nos._exit(7)", "ended with exit code 7"),
    "crashes": (
        "import ctypes, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nctypes.string_at(0)",
        "killed by signal 11",
    ),
    "kills itself": ("import os\nos.kill(os.getpid(), 9)", "killed by signal 9"),
    "forks": ("import os, time\nif not os.fork():\n    time.sleep(300)", ""),
    "forks away": ("import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(20)\n    os._exit(0)", ""),
    "deletes the report": (
        "import atexit, os, sys\natexit.register(lambda: os.path.exists(sys.argv[1]) and os.unlink(sys.argv[1]))",
        "Python did not start properly",
    ),
    "removes the directory": (
        "import os, shutil, sys\nif len(sys.argv) > 1 and sys.argv[0].endswith('startup.py'):\n    shutil.rmtree(os.path.dirname(sys.argv[0]))",
        "Python did not start properly",
    ),
    "writes another report": (
        (
            "import os, sys\nif len(sys.argv) > 1 and sys.argv[1].endswith('report'):\n    open(sys.argv[1], 'w').write("
            '\'[1, 2]\\n{"sys_path": 5, "mapped": {"a": 1}, "locale": null}\\n\')\n    os._exit(0)'
        ),
        "Python did not start properly",
    ),
    "makes the report a pipe": (
        "import os, sys\nif len(sys.argv) > 1 and sys.argv[1].endswith('report'):\n    os.mkfifo(sys.argv[1])\n    os._exit(0)",
        "Python did not start properly",
    ),
    "makes the report endless": (
        "import os, sys\nif len(sys.argv) > 1 and sys.argv[1].endswith('report'):\n    os.symlink('/dev/zero', sys.argv[1])\n    os._exit(0)",
        "Python did not start properly",
    ),
    "writes into the working directory": ("open('dropped-by-start', 'w').write('x')", ""),
    "changes sys.path": ("import sys\nsys.path[:] = [5, None, b'x', '/proc', '\\x1b[31m', 'a' * 100000]", ""),
    "takes the standard library away": ("import sys\nsys.path[:] = []", ""),
    "breaks json": ("import sys\nsys.modules['json'] = None", "Python did not start properly"),
    "closes everything": ("import os\nos.closerange(0, 100)", ""),
    "takes memory": ("import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))", ""),
}
SIMILAR = {
    "prints",
    "prints without end",
    "exits",
    "leaves with a code",
    "kills itself",
    "forks",
    "removes the directory",
    "makes the report a pipe",
    "writes into the working directory",
    "takes the standard library away",
    "closes everything",
}
"""Similar to a case that always runs; included only in `make soak`."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.soak] * (name in SIMILAR)) for name in STARTS])
@pytest.mark.parametrize("kind", ["sitecustomize", pytest.param("pth", marks=pytest.mark.soak)])
def test_code_at_start_cannot_harm_the_capture(ground: Ground, name: str, kind: str) -> None:
    code, named = STARTS[name]
    if kind == "pth" and "\n    " in code:
        pytest.skip("a .pth line holds no block")
    if kind == "sitecustomize":
        (ground.site / "sitecustomize.py").write_text(code + "\n")
    else:
        (ground.site / "odd.pth").write_text("import sys; exec(" + repr(code) + ")\n")
    ended = ground.capture()
    assert ended.code == 0, ended.output
    startup = ground.facts()["observed"]["startup"]
    assert named in ended.output + json.dumps(startup), f"{named!r} is not named: {startup}"
    assert startup["problem"] or not named


@pytest.mark.soak  # minutes of waiting
@pytest.mark.parametrize("where", ["sitecustomize", "torch"])
def test_code_that_hangs_is_stopped(ground: Ground, where: str) -> None:
    """The start has a time limit, and so has the import of what is measured by loading it."""
    code = "import time\ntime.sleep(10_000)\n"
    if where == "torch":
        ground.install("torch", files={"torch/__init__.py": code.encode(), "torch/version.py": b""})
    else:
        (ground.site / "sitecustomize.py").write_text(code)
    ended = ground.capture(timeout=500)
    assert ended.code == 0, ended.output
    assert "did not end within" in ground.messages(ended)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("print('noise')", marks=pytest.mark.soak),
        pytest.param("raise SystemExit(3)", marks=pytest.mark.soak),
        pytest.param("import os\nos._exit(4)", marks=pytest.mark.soak),
        "import ctypes\nctypes.string_at(0)",
    ],
)
def test_a_fake_torch_is_captured_without_harm(ground: Ground, code: str) -> None:
    """What is loaded to be measured may do anything."""
    ground.install("torch", files={"torch/__init__.py": code.encode(), "torch/version.py": b"__version__ = '\x1b[2J'\n"})
    ended = ground.capture()
    assert ended.code == 0, ended.output


@pytest.mark.parametrize(
    "line",
    [
        "/",
        "/proc",
        "../../../../..",
        "\x1b[31m",
        *(
            pytest.param(line, marks=pytest.mark.soak)
            for line in ("/dev", "/sys", "x" * 5000, "/dev/zero", "import os; os.mkdir('/nowhere/x')")
        ),
    ],
)
def test_a_system_directory_on_the_path_is_refused_or_reported(ground: Ground, line: str) -> None:
    """A directory on sys.path outside the environment is bundled; `/` is no such directory."""
    (ground.site / "all.pth").write_text(line + "\n")
    ended = ground.capture()
    assert ended.code in (0, 6, 7, 8), ended.output
    if line in ("/", "/proc", "/dev", "/sys", "../../../../.."):
        assert ended.code != 0 or "sys.path" in ended.output or "Python imports from there" in ended.output
        assert ended.seconds < 60


# -- interpreters -------------------------------------------------------------------------------------------------

SAYINGS = {
    "nothing of ours": {},
    "no types": {"version": 5, "prefix": [], "conda": "x", "implementation": None},
    "a version of words": {"version": ["a", "b"], "prefix": "/", "conda": False, "implementation": "cpython", "facts": {}},
    "no facts": {"version": [3, 11, 7], "prefix": "/", "conda": False, "implementation": "cpython", "facts": 5},
    "facts of other types": {
        "version": [3, 11, 7], "prefix": "/", "conda": False, "implementation": "cpython",
        "facts": {"interpreter": [], "layout": 3, "kind": {}, "command": None},
    },
    "a terminal's codes": {"version": [3, 11, 7], "prefix": "\x1b[2J", "conda": False, "implementation": "\x1b]0;x\x07"},
}  # fmt: skip


@pytest.mark.parametrize("name", SAYINGS)
def test_a_python_with_invalid_answers_is_refused(ground: Ground, name: str) -> None:
    fake = ground.project / "python"
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(SAYINGS[name])}\nEND\n")
    fake.chmod(0o755)
    ended = ground.capture(python=fake)
    assert ended.code == 6, ended.output
    assert str(fake) in ended.output


def test_a_python_that_reports_wrong_paths_is_refused(ground: Ground) -> None:
    """It answers with the real facts, and paths of its own choosing."""
    import subprocess

    output = json.loads(
        subprocess.run([PYTHON, "-I", "-S", "-B", str(GUEST / "probe.py")], capture_output=True, check=True).stdout
    )
    for place in ("/../../etc", "/etc\nx", "relative", "/", "/proc", "/dev"):
        lie = json.loads(json.dumps(output))
        lie["facts"]["layout"] |= {"prefix": place, "purelib": "../../canary", "platlib": "../../canary"}
        lie["facts"]["kind"] = "venv"
        fake = ground.project / "python"
        fake.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(lie)}\nEND\n")
        fake.chmod(0o755)
        ended = ground.capture(python=fake)
        assert ended.code in (6, 7), (place, ended.output)


def test_a_python_that_prints_without_end_is_refused(ground: Ground) -> None:
    fake = ground.project / "python"
    fake.write_text("#!/bin/sh\nhead -c 300000000 /dev/zero | tr '\\0' x\n")
    fake.chmod(0o755)
    ended = ground.capture(python=fake)
    assert ended.code == 6


# -- what a plain user may not read -------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "directory", "dist-info", "RECORD"])
def test_unreadable_files_are_reported(ground: Ground, what: str) -> None:
    """As a user without root's right to read everything: root gives its capabilities away."""
    info = ground.install("x")
    closed = {"file": ground.site / "x.py", "directory": ground.site / "shut", "dist-info": info, "RECORD": info / "RECORD"}[what]
    if not closed.exists():
        closed.mkdir()
    away = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if os.geteuid() == 0 else []
    need(not away or shutil.which("setpriv"), "setpriv is missing: apt-get install util-linux")
    mode = closed.stat().st_mode
    closed.chmod(0)
    try:
        ended = ground.capture(prefix=away)
    finally:
        closed.chmod(mode)
    assert ended.code == 7, ended.output
    assert closed.name in ended.output
