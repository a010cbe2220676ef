"""Bytecode from one run to the next, in real runs: what is used again, what never is, and what happens to damage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.image import layout
from repro_env.model import codec
from repro_env.model.environment import Variable
from repro_env.model.image import Expected, Layer
from repro_env.model.spec import Spec
from tests.fakes import rootfs, specs
from tests.flows.keeping import Answer, Plan
from tests.parts import need
from tests.run.conftest import REPOSITORY, Place, environ, image, place, python, stores  # noqa: F401

STDLIB = Path(os.__file__).parent
MANY = "import inspect, json, subprocess, sysconfig, tempfile"
"""Modules enough to be worth keeping."""


class Kept:
    """A place to run in, with a spec whose image is the tiny one."""

    def __init__(self, place: Place, spec: Spec) -> None:  # noqa: F811
        self.place = place
        self.count = 0
        self.name = place.root / "store"
        subprocess.run(["cp", "-a", str(place.store), str(self.name)], check=True)
        self.spec = self.of_image(spec, 77)

    def of_image(self, spec: Spec, number: int) -> Spec:
        stdlib = str(STDLIB)
        real = str(Path(sys._base_executable).resolve())  # type: ignore[attr-defined]
        identity, observed = spec.identity, spec.observed
        layers = tuple(Layer(kind="base", diff_id=diff_id, holds=()) for diff_id in self.place.layers)
        interpreter = msgspec.structs.replace(
            observed.interpreter, stdlib=stdlib, platstdlib=stdlib, cache_tag=sys.implementation.cache_tag or ""
        )
        return msgspec.structs.replace(
            spec,
            expected=Expected(layers=layers, image_id=rootfs.digest(number)),
            identity=msgspec.structs.replace(
                identity,
                layout=msgspec.structs.replace(identity.layout, prefix=rootfs.PREFIX),
                interpreter=msgspec.structs.replace(identity.interpreter, executable=real),
            ),
            observed=msgspec.structs.replace(observed, interpreter=interpreter),
        )

    def run(
        self, code: str, *, around: str = "", folder: Path | None = None, compiler: str = "", **changes: Any
    ) -> tuple[Answer, str]:
        """A run of Python code as the place's user. Returns the answer, and what the run printed.

        `around`: shell commands as root before it, in mounts of their own.
        """
        self.count += 1
        here = self.place
        env = (Variable(name="PATH", value="/bin"), Variable(name="PYTHONPYCACHEPREFIX", value=layout.PYCACHE))
        launch = here.launch("python", "-c", code, env=env, image=self.spec.expected.image_id, **changes)
        folder = folder or here.runs / f"kept-{self.count}"
        answer, plan, spec = (here.root / f"{word}-{self.count}" for word in ("answer", "plan", "spec"))
        spec.write_bytes(codec.pretty(self.spec))
        plan.write_bytes(msgspec.json.encode(Plan(str(self.name), str(folder), launch, str(spec), str(answer), compiler)))
        answer.touch()
        here.own(answer)
        command = [*here.identity(), python(here.uid), "-m", "tests.flows.keeping", str(plan)]
        made = f'{around or ":"}; mkdir -p "{folder}"; chown {here.uid}:{here.uid} "{folder}" "{folder.parent}"; exec "$@"'
        command = [*(["unshare", "-m"] if around else []), "sh", "-ec", made, "sh", *command]
        more = {"TMPDIR": str(folder.parent)} if around else {}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environ() | more, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr or "Traceback" not in done.stderr, done.stderr
        return msgspec.json.decode(answer.read_bytes(), type=Answer), done.stdout

    def files(self) -> list[Path]:
        folder = self.name / "bytecode" / self.spec.expected.image_id[7:]
        return sorted(folder.rglob("*.pyc"))


@pytest.fixture
def kept(place: Place, tmp_path: Path) -> Kept:  # noqa: F811
    return Kept(place, specs.make(tmp_path / "repro", {}))


def test_what_one_run_compiled_the_next_ones_find(kept: Kept) -> None:
    first, _ = kept.run(MANY)
    assert len(first.compiled) >= 20
    assert [line.split(" for later")[0] for line in first.said] == [f"keeping bytecode of {len(first.compiled)} modules"]
    assert all(path.read_bytes()[4:8] == b"\3\0\0\0" for path in kept.files())
    second, printed = kept.run(
        f"{MANY}\nimport os; print(json.__file__, json.dumps.__code__.co_filename, inspect.getsource(json.dumps)[:9], os.path.exists(json.__cached__))"
    )
    assert (second.compiled, second.said) == ((), ())
    source = STDLIB / "json/__init__.py"
    assert printed == f"{source} {source} def dumps True\n"


def test_a_small_run_is_not_worth_it(kept: Kept) -> None:
    kept.run(MANY)
    before = kept.files()
    more, _ = kept.run("import py_compile")
    assert (more.said, kept.files() == before) == ((), True)


def test_what_a_script_writes_there_reaches_no_other_run(kept: Kept) -> None:
    """Over a module that is kept, for one that is not, and by writing to whatever else can be written."""
    evil = f"""
{MANY}
import os, importlib.util, marshal, sys
raw = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, 'little') + bytes(8) + marshal.dumps(compile('raise SystemExit(99)', 'x', 'exec'))
for name in ('json/decoder', 'stat', 'py_compile'):
    path = importlib.util.cache_from_source(os.path.join(os.path.dirname(os.__file__), name + '.py'))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path): os.unlink(path)
    open(path, 'wb').write(raw)
for root, _, names in os.walk({layout.PYCACHE!r}):
    for name in names:
        with open(os.path.join(root, name), 'r+b') as file: file.write(raw)
"""
    for _ in range(2):
        kept.run(evil)
        _, printed = kept.run(f"{MANY}\nimport py_compile; print(json.loads('[1]'))")
        assert printed == "[1]\n"
    assert not any(b"SystemExit" in path.read_bytes() and path.stat().st_size < 400 for path in kept.files())


def test_the_source_is_never_kept(kept: Kept) -> None:
    """An edit of the same size, with the same time: what is unpacked always has the same."""
    printed = []
    for number, text in ((1001, "VALUE = 1\n"), (1002, "VALUE = 2\n")):
        tree = kept.name / "layers" / rootfs.digest(number)[7:]
        tree.mkdir()
        (tree / "mine.py").write_text(text)
        os.utime(tree / "mine.py", (0, 0))
        kept.place.own(tree)
        printed.append(
            kept.run(
                f"{MANY}\nimport sys; sys.path.insert(0, ''); import mine; print(mine.VALUE)", snapshot=rootfs.digest(number)
            )[1]
        )
    assert printed == ["1\n", "2\n"]
    assert kept.files()
    assert not [path for path in kept.files() if path.name.startswith("mine")]


def test_another_image_has_its_own(kept: Kept) -> None:
    first, _ = kept.run(MANY)
    kept.spec = kept.of_image(kept.spec, 78)
    other, _ = kept.run(MANY)
    assert other.compiled == first.compiled


@pytest.mark.parametrize("size", [0, 10, 40])
def test_a_damaged_file_harms_no_run_and_is_made_anew(kept: Kept, size: int) -> None:
    kept.run(MANY)
    victim = next(path for path in kept.files() if path.match("json/decoder.*"))
    os.truncate(victim, size)
    after, printed = kept.run(f"{MANY}; print(json.loads('[1]'))")
    assert (after.exit_code, printed) == (0, "[1]\n")
    assert len(after.said) == 1
    assert kept.run(MANY)[0].compiled == ()


def test_without_overlay_links_do_the_same(kept: Kept) -> None:
    """An overlay does not take another overlay as its upper side: so it is inside most containers."""
    need(
        os.getuid() == 0 and shutil.which("unshare"), "uid 0 and unshare (package util-linux) to mount an overlay around the runs"
    )
    root = kept.place.root
    around = f'cd "{root}"; mkdir -p l u w; mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w runs; cd "{REPOSITORY}"'

    def run(code: str) -> tuple[Answer, str]:
        return kept.run(code, around=around, folder=kept.place.runs / "in" / f"run-{kept.count}")

    first, _ = run(MANY)
    assert first.means[0] == "root: overlay, upper side in memory"
    assert len(first.said) == 1
    code = f"{MANY}\nimport os; print(os.path.islink(json.__cached__), os.access(os.path.realpath(json.__cached__), os.W_OK))"
    second, printed = run(code)
    assert (second.compiled, printed) == ((), "True False\n")


def test_a_compilation_that_cannot_be_is_a_note(kept: Kept) -> None:
    done, _ = kept.run(MANY, compiler="/no/such/python")
    assert done.exit_code == 0
    assert [line.split(":")[0] for line in done.said] == ["the bytecode of this run's modules was not kept"]
    assert kept.files() == []
