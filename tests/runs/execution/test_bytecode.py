"""The bytecode of an image in real runs: runs use it, cannot change it, and damaged files are replaced."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.io import package
from repro_env.oci import paths as layout
from repro_env.oci import tar
from repro_env.runs.execution import bytecode, imageprogram
from repro_env.runs.start.request import RunOptions
from repro_env.schema import codec
from repro_env.schema.environment import Variable
from repro_env.schema.image import Config, Expected, Layer
from repro_env.schema.run import Launch, Outcome
from repro_env.schema.spec import Spec
from repro_env.store.facts import FactCache
from repro_env.store.filenames import hex_of
from repro_env.store.store import Store
from tests.api.keeping import Answer, Collected, Plan
from tests.fakes import rootfs, specs
from tests.sandbox.conftest import REPOSITORY, Place, environ, image, place, python, stores  # noqa: F401

STDLIB = Path(os.__file__).parent
OPTIONS = RunOptions(command=(), here=Path("/"), environ={})


class Machine:
    """A place to run in, and a spec of the small test image."""

    def __init__(self, place: Place, spec: Spec) -> None:  # noqa: F811
        self.place = place
        self.count = 0
        self.store = place.root / "store"
        subprocess.run(["cp", "-a", str(place.store), str(self.store)], check=True)
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

    def run(self, code: str, **changes: Any) -> tuple[Answer, str]:
        """Run Python code as the user of the place. Returns the answer, and what the code printed."""
        self.count += 1
        env = (Variable(name="PATH", value="/bin"), Variable(name="PYTHONPYCACHEPREFIX", value=layout.PYCACHE))
        launch = self.place.launch("python", "-c", code, env=env, image=self.spec.expected.image_id, **changes)
        directory = self.place.runs / f"bytecode-{self.count}"
        answer, plan, spec = (self.place.root / f"{word}-{self.count}" for word in ("answer", "plan", "spec"))
        spec.write_bytes(codec.pretty(self.spec))
        plan.write_bytes(msgspec.json.encode(Plan(str(self.store), str(directory), launch, str(spec), str(answer))))
        answer.touch()
        directory.mkdir()
        self.place.own(answer)
        self.place.own(directory)
        command = [*self.place.identity(), python(self.place.uid), "-m", "tests.api.keeping", str(plan)]
        done = subprocess.run(command, cwd=REPOSITORY, env=environ(), capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return msgspec.json.decode(answer.read_bytes(), type=Answer), done.stdout


@pytest.fixture
def machine(place: Place, tmp_path: Path) -> Machine:  # noqa: F811
    return Machine(place, specs.make(tmp_path / "repro", {}))


def test_modules_are_compiled_once_and_used_by_every_run(machine: Machine) -> None:
    code = "import inspect, json, os; print(json.__file__, json.dumps.__code__.co_filename, inspect.getsource(json.dumps)[:9], os.path.exists(json.__cached__))"
    (first, printed), (second, same) = machine.run(code), machine.run(code)
    source = STDLIB / "json/__init__.py"
    assert printed == same == f"{source} {source} def dumps True\n"
    assert (first.printed, second.printed) == (("compiling the image's modules, once",), ())
    assert (second.bytecode, second.means) == (first.bytecode, first.means)
    assert not [line for line in first.means if line.startswith("bytecode")]
    paths = sorted(Path(first.bytecode).rglob("*.pyc"))
    assert {path.read_bytes()[4:8] for path in paths} == {b"\3\0\0\0"}, "Python checks the hash of the source"
    hooks = Path(f"{first.bytecode}{layout.SEEDS}/{layout.HOOKS}")
    assert {path.name.partition(".")[0] for path in paths if path.parent == hooks} == {
        path.stem for path in (package.ROOT / layout.HOOKS).glob("*.py")
    }


_interpreter = python  # the test has a local of that name


def test_images_with_the_same_python_share_its_bytecode(machine: Machine, tmp_path: Path) -> None:
    """The second image gets the file that was compiled for the first one."""
    python = tuple(msgspec.structs.replace(layer, kind="interpreter") for layer in machine.spec.expected.layers)
    package = Store.open(tmp_path / "store").layers.add(())
    (machine.store / "layers" / hex_of(package)).mkdir(exist_ok=True)
    machine.place.own(machine.store)
    layers = (*python, Layer(kind="distributions", diff_id=package, holds=()))
    found = []
    for number in (81, 82):
        machine.spec = msgspec.structs.replace(machine.spec, expected=Expected(layers=layers, image_id=rootfs.digest(number)))
        found.append(next(Path(machine.run("pass")[0].bytecode).rglob("json/decoder.*")).read_bytes())
        shared = bytecode._python_of(machine.spec)
        assert shared is not None
        tree = FactCache(machine.store / "facts").get("bytecode", bytecode._key(shared))
        assert tree is not None
        path = next((machine.store / "layers" / hex_of(tree.decode())).rglob("json/decoder.*"))
        path.write_bytes(path.read_bytes() + b"shared")
        os.utime(path, (tar.MTIME, tar.MTIME))
        code = f"from pathlib import Path; from repro_env.store.store import Store; Store.open(Path({str(machine.store)!r})).layers.mark({tree.decode()!r})"
        words = [*machine.place.identity(), _interpreter(machine.place.uid), "-c", code]
        subprocess.run(words, check=True, cwd=REPOSITORY, env=environ())  # or else the change would be found as damage
    assert found[1] == found[0] + b"shared"


def test_a_run_cannot_write_bytecode(machine: Machine) -> None:
    """Neither for its own modules nor for those of the image."""
    evil = f"""
import importlib.util, json, marshal, os
raw = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, 'little') + bytes(8) + marshal.dumps(compile('raise SystemExit(99)', 'x', 'exec'))
for path in (json.decoder.__cached__, {layout.PYCACHE + "/new.pyc"!r}):
    for change in (lambda: open(path, 'wb').write(raw), lambda: os.unlink(path), lambda: os.rename(path, path + 'x')):
        try: change()
        except OSError as error: print(error.errno)
"""
    _, printed = machine.run(evil)
    assert set(printed.split()) <= {str(errno.EROFS), str(errno.ENOENT)}
    assert len(printed.split()) == 6
    assert machine.run("import json; print(json.loads('[1]'))")[1] == "[1]\n"


def test_bytecode_of_an_edited_source_is_not_used(machine: Machine) -> None:
    """The edited file has the same size and time, because all unpacked files have the same time."""
    printed = []
    for number, text in ((1001, "VALUE = 1\n"), (1002, "VALUE = 2\n")):
        tree = machine.store / "layers" / rootfs.digest(number)[7:]
        tree.mkdir()
        (tree / "own.py").write_text(text)
        os.utime(tree / "own.py", (0, 0))
        machine.place.own(tree)
        code = "import sys; sys.path.insert(0, ''); import own; print(own.VALUE)"
        printed.append(machine.run(code, snapshot=rootfs.digest(number))[1])
    assert printed == ["1\n", "2\n"]


def test_a_damaged_file_is_not_used_and_is_compiled_again(machine: Machine) -> None:
    first, _ = machine.run("pass")
    os.truncate(next(Path(first.bytecode).rglob("json/decoder.*")), 10)
    for mark in (machine.store / "boot").iterdir():
        os.utime(mark, (0, 0))  # as if the last check was long ago
    after, printed = machine.run("import json; print(json.loads('[1]'))")
    assert (after.exit_code, printed) == (0, "[1]\n")
    assert after.printed
    assert not machine.run("pass")[0].printed


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return specs.make(tmp_path / "repro", {})


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Set the exit code of the compiler, and the signal that ends it."""

    def define(exit_code: int, signal: int) -> None:
        outcome = Outcome(exit_code=exit_code, signal=signal, out_of_memory=False, isolation="embedded", methods=())
        monkeypatch.setattr(imageprogram, "run", lambda *_, **_others: outcome)

    return define


def test_a_failed_compilation_is_a_warning(spec: Spec, end: Callable[[int, int], None], tmp_path: Path) -> None:
    end(1, 0)
    tell = Collected()
    store = Store.open(tmp_path / "store")
    assert bytecode.of_image(spec, OPTIONS, store=store, tell=tell) is None
    assert "could not be compiled (exit code 1)" in tell.lines[-1]
    assert store.facts.get("bytecode", spec.expected.image_id) is None


def test_ctrl_c_during_compilation_ends_the_command(spec: Spec, end: Callable[[int, int], None], tmp_path: Path) -> None:
    end(130, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        bytecode.of_image(spec, OPTIONS, store=Store.open(tmp_path / "store"), tell=Collected())


def test_the_compiler_has_no_access_to_user_files_and_variables(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = (Variable(name="LD_LIBRARY_PATH", value="/opt/lib"), Variable(name="PYTHONPATH", value="/mine"))
    spec = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, config=Config(env=variables)))
    launches: list[Launch] = []

    def run(launch: Launch, *_: object, **_others: object) -> Outcome:
        launches.append(launch)
        return Outcome(exit_code=1, signal=0, out_of_memory=False, isolation="embedded", methods=())

    monkeypatch.setattr(imageprogram, "run", run)
    bytecode.of_image(spec, OPTIONS, store=Store.open(tmp_path / "store"), tell=Collected())
    python, launch = launches
    assert [layer.kind for layer in spec.expected.layers] == ["base", "interpreter", "marker"]
    assert python.layers == launch.layers[:2], "what all images with this Python share is made without their other layers"
    assert (python.mounts, python.network, python.trees, python.argv) == ((), False, (), launch.argv)
    assert python.image != launch.image
    assert {variable.name: variable.value for variable in python.env if variable.name not in ("HOME", "PYTHONHASHSEED")} == {
        "LD_LIBRARY_PATH": "/opt/lib",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    assert (launch.mounts, launch.network, launch.workspace, launch.image) == ((), False, layout.COMPILED, spec.expected.image_id)
    assert launch.argv[:3] == (spec.identity.interpreter.executable, "-s", "-S")
    values = {variable.name: variable.value for variable in launch.env}
    assert values["LD_LIBRARY_PATH"] == "/opt/lib"
    assert "PYTHONPATH" not in values
