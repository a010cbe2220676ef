"""The bytecode of an image in real runs: runs use it, cannot change it, and damaged files are replaced."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.io import package
from repro_env.oci import paths as layout
from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.runs.execution import bytecode, imageprogram
from repro_env.runs.start.request import RunOptions
from repro_env.schema import codec
from repro_env.schema.environment import Variable
from repro_env.schema.errors import ArtifactError, BuildError
from repro_env.schema.image import Config, Expected, Layer
from repro_env.schema.run import Launch, Outcome
from repro_env.schema.rundirectory import FILES
from repro_env.schema.spec import Spec
from repro_env.store.filenames import hex_of
from repro_env.store.layers import _set_times
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


HOOKS = f"{layout.SEEDS}/{layout.HOOKS}"


def use_layers(machine: Machine, image: int, *modules: str) -> None:  # noqa: F811
    """Give the machine an image with a layer for each module, above those of Python."""
    layout_ = machine.spec.identity.layout
    place, python = machine.place, tuple(layer for layer in machine.spec.expected.layers if not layer.holds)  # noqa: F811
    added = []
    for name in modules:
        diff_id = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
        site = machine.store / "layers" / hex_of(diff_id) / layout.inside(f"{layout.ENVIRONMENT}/{layout_.purelib}")
        site.mkdir(parents=True, exist_ok=True)
        (site / f"{name}.py").write_text(f"def call(): return {name!r}\n")
        place.own(machine.store / "layers" / hex_of(diff_id))
        added.append(Layer(kind="distributions", diff_id=diff_id, holds=(f"{name}==1",)))
    place.layers = [layer.diff_id for layer in (*python, *added)]
    layers = (*(msgspec.structs.replace(layer, kind="interpreter") for layer in python), *added)
    machine.spec = msgspec.structs.replace(machine.spec, expected=Expected(layers=layers, image_id=rootfs.digest(image)))


def test_images_share_the_bytecode_of_python_and_of_each_layer(machine: Machine) -> None:
    site = f"{rootfs.PREFIX}/{machine.spec.identity.layout.purelib}"
    code = (
        f"import sys; sys.path.append({site!r}); import one; print(one.__file__, one.call.__code__.co_filename, one.__cached__)"
    )
    printed = []
    for image_, modules, compiled in (
        (81, ["one"], [str(STDLIB), HOOKS, "one"]),
        (82, ["two", "one"], ["two"]),
        (82, ["two", "one"], []),
        (83, ["one", "two"], []),
        (84, ["three"], ["three"]),
    ):
        use_layers(machine, image_, *modules)
        names = {layer.diff_id: layer.holds[0].removesuffix("==1") for layer in machine.spec.expected.layers if layer.holds}
        answer, text = machine.run(code if "one" in modules else "pass")
        assert [names.get(what, what) for what in answer.compiled] == compiled
        printed += [text] if "one" in modules else []
        paths = Path(answer.bytecode).rglob("*.pyc")
        found = {path.name.partition(".")[0] for path in paths if f"{layout.ENVIRONMENT}/" in str(path)}
        assert found == set(modules)
    assert set(printed) == {f"{site}/one.py {site}/one.py {layout.PYCACHE}{site}/one.{sys.implementation.cache_tag}.pyc\n"}


def test_a_run_uses_the_shared_bytecode_of_a_layer(machine: Machine) -> None:
    """Its modules are compiled as `/opt/env/...`, and runs import them from the prefix of their environment."""
    use_layers(machine, 85, "one")
    site = f"{rootfs.PREFIX}/{machine.spec.identity.layout.purelib}"
    code = "import sys; sys.path.append({site!r}); sys.dont_write_bytecode = True; import importlib.machinery as m\n"
    code += "m.SourceFileLoader.source_to_code = lambda *_: print('compiled') or exit(1)\nimport one; print(one.call())"
    answer, printed = machine.run(code.replace("{site!r}", repr(site)))
    assert (answer.exit_code, printed) == (0, "one\n")


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
    store = Store.open(tmp_path / "store")
    site = f"{layout.ENVIRONMENT}/{spec.identity.layout.purelib}"
    module = Entry.of(layout.inside(f"{site}/one.py"), b"")
    diff_id = store.layers.add((entry, ()) for entry in sort_with_parents([module]))
    layers = (*spec.expected.layers, Layer(kind="distributions", diff_id=diff_id, holds=()))
    spec = msgspec.structs.replace(spec, expected=msgspec.structs.replace(spec.expected, layers=layers))
    launches: list[Launch] = []

    def run(launch: Launch, directory: Path, *_: object, bytecode: Path | None) -> Outcome:
        assert (bytecode is None) == (not launches), "Python starts with its own bytecode as soon as there is some"
        launches.append(launch)
        (directory / FILES).mkdir()
        return Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="embedded", methods=())

    monkeypatch.setattr(imageprogram, "run", run)
    bytecode.of_image(spec, OPTIONS, store=store, tell=Collected())
    library, hooks, layer = launches
    assert [layer.kind for layer in spec.expected.layers] == ["base", "interpreter", "marker", "distributions"]
    python = (spec.identity.interpreter.executable, "-s", "-S", "-X", f"pycache_prefix={layout.PYCACHE}")
    start = (*python, f"{layout.SEEDS}/guest/compile.py", layout.COMPILED)
    assert hooks.argv == (*start, "", f"{layout.SEEDS}/{layout.HOOKS}")
    assert library.argv == (*start, "", *spec.observed.interpreter.library)
    assert layer.argv == (*start, layout.LAYER, site)
    for launch in launches:
        assert launch.layers == tuple(layer.diff_id for layer in spec.expected.layers[:2]), "no package is there"
        assert (launch.network, launch.trees, launch.workspace) == (False, (), layout.COMPILED)
        assert launch.image != spec.expected.image_id
        assert {variable.name: variable.value for variable in launch.env if variable.name not in ("HOME", "PYTHONHASHSEED")} == {
            "LD_LIBRARY_PATH": "/opt/lib",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
    assert [launch.mounts for launch in launches[:2]] == [(), ()]
    (mount,) = layer.mounts
    assert (mount.source, mount.target, mount.read_only) == (str(store.layers.path(diff_id)), layout.LAYER, True)


def test_what_the_compiler_writes_is_not_trusted(spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs the image's Python. A link is not followed, and a name cannot leave the layer."""
    store = Store.open(tmp_path / "store")
    secret = tmp_path / "secret"
    secret.write_bytes(b"")

    def attempt(write: Callable[[Path], object]) -> str | None:
        def run(_: Launch, directory: Path, *_others: object, **_options: object) -> Outcome:
            (directory / FILES).mkdir()
            write(directory / FILES)
            return Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="embedded", methods=())

        monkeypatch.setattr(imageprogram, "run", run)
        part = next(bytecode.parts(spec, "", store, shares=True))
        return bytecode._compile(part, None, OPTIONS, store, Collected())

    with pytest.raises(BuildError, match="symbolic link"):
        attempt(lambda files: (files / "0").symlink_to(secret))
    for name in ("../a.pyc", "a/../../b.pyc"):
        pack = b"".join(len(data).to_bytes(4, "little") for data in (name.encode(), b"")) + name.encode()
        with pytest.raises(BuildError):
            attempt(lambda files, pack=pack: (files / "0").write_bytes(pack))  # type: ignore[misc]
    with pytest.raises(ArtifactError, match="has 0 bytes instead of"):
        attempt(lambda files: (files / "0").write_bytes(b"\1\0\0\0\1\0\0\0a"))
    assert not list((store.root / "temp").iterdir())


def test_a_runner_of_complete_images_compiles_all_modules_in_the_image(spec: Spec, tmp_path: Path) -> None:
    """Such as an engine, and for packages of conda, one of which is Python."""
    store = Store.open(tmp_path / "store")
    conda = [
        msgspec.structs.replace(layer, kind=kind)
        for layer, kind in zip(spec.expected.layers, ("base", "conda", "marker"), strict=True)
    ]
    of_conda = msgspec.structs.replace(spec, expected=msgspec.structs.replace(spec.expected, layers=tuple(conda)))
    for made in (bytecode.parts(spec, "", store, shares=False), bytecode.parts(of_conda, "", store, shares=True)):
        assert {(part.compiler.expected.image_id, part.layer) for part in made} == {(spec.expected.image_id, "")}


def test_layers_are_compiled_while_others_are_made(machine: Machine) -> None:
    if machine.place.uid != os.getuid():
        pytest.skip("the other process has the user of this one")
    use_layers(machine, 91, "one", "two")
    store, spec = Store.open(machine.store), machine.spec
    for layer in spec.expected.layers:
        _set_times(store.root / "layers" / hex_of(layer.diff_id))
        store.layers.mark(layer.diff_id)
    late = store.root / "layers" / hex_of(spec.expected.layers[-1].diff_id)
    late.rename(store.root / "late")
    with bytecode.compiling(spec, store, Collected()):
        deadline = time.monotonic() + 100
        while len(list((store.root / "facts" / "bytecode").glob("*"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (store.root / "late").rename(late)
    parts = list(bytecode.parts(spec, bytecode._hash_hooks(), store, shares=True))
    assert [bool(store.facts.get("bytecode", part.key)) for part in parts] == [True] * 4
    assert not list((store.root / "temp").iterdir())


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_failed_rebuild_ends_the_process_that_compiles(spec: Spec, tmp_path: Path) -> None:
    """It waits for layers that are never made."""
    store, before = Store.open(tmp_path / "store"), children()
    with contextlib.suppress(KeyboardInterrupt), bytecode.compiling(spec, store, Collected()):
        assert children() - before
        raise KeyboardInterrupt
    assert not children() - before
    assert not list((store.root / "temp").iterdir())


@pytest.mark.parametrize("seconds", [0, 1])
def test_the_process_that_compiles_ends_with_a_killed_rebuild(spec: Spec, tmp_path: Path, seconds: int) -> None:
    """Also if it has not asked the kernel for that yet."""
    (tmp_path / "spec").write_bytes(codec.pretty(spec))
    code = f"""
import time
from pathlib import Path
from repro_env.runs.execution import bytecode
from repro_env.schema import codec
from repro_env.schema.progress import SILENT
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
spec = codec.decode(Path({str(tmp_path / "spec")!r}).read_bytes(), Spec, where="spec")
with bytecode.compiling(spec, Store.open(Path({str(tmp_path / "store")!r})), SILENT):
    print(Path("/proc/self/task", str(__import__("os").getpid()), "children").read_text(), flush=True)
    time.sleep(100)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environ()
    ) as parent:
        assert parent.stdout is not None
        helper = Path("/proc", parent.stdout.readline().strip())
        assert helper.is_dir()
        time.sleep(seconds)
        parent.kill()
    deadline = time.monotonic() + 60
    with contextlib.suppress(FileNotFoundError):
        while "State:\tZ" not in (helper / "status").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
