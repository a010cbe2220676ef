"""Which names that a run left are modules of the image, and the launch that compiles them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.image import layout
from repro_env.model.environment import Variable
from repro_env.model.image import Config
from repro_env.model.run import Launch, Mount, User
from repro_env.model.spec import Spec
from repro_env.run import bytecode, plan
from tests.fakes import specs
from tests.run.test_plan import PREFIX, PROJECT, request_

STDLIB = "opt/python/lib/python3.11"
SITE = f"{PREFIX[1:]}/lib/python3.11/site-packages"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    return specs.make(tmp_path_factory.mktemp("spec") / "repro", {}, prefix=PREFIX)


def launch(spec: Spec, **changes: Any) -> Launch:
    return msgspec.structs.replace(plan.plan(spec, request_()), **changes)


def names(spec: Spec, given: str, **changes: Any) -> list[str]:
    return [module.source for module in bytecode.modules([given], spec, launch(spec, **changes))]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (f"{STDLIB}/json/__init__.cpython-311.pyc", f"/{STDLIB}/json/__init__.py"),
        (f"{SITE}/numpy/a.b.cpython-311.pyc", f"{PREFIX}/lib/python3.11/site-packages/numpy/a.b.py"),
        ("opt/env/lib/x.cpython-311.pyc", "/opt/env/lib/x.py"),
        (".repro-env/seeds/inside/seeds/sitecustomize.cpython-311.pyc", "/.repro-env/seeds/inside/seeds/sitecustomize.py"),
    ],
)
def test_modules_of_the_image(spec: Spec, name: str, source: str) -> None:
    assert names(spec, name) == [source]


@pytest.mark.parametrize(
    "name",
    [
        f"{PROJECT[1:]}/train.cpython-311.pyc",
        f"{PROJECT[1:]}/.venv2/x.cpython-311.pyc",
        "home/ann/.local/lib/python3.11/site-packages/x.cpython-311.pyc",
        "tmp/x.cpython-311.pyc",
        ".repro-env/seeds/sitecustomize.cpython-311.pyc",
        "usr/lib/python3/dist-packages/x.cpython-311.pyc",
        f"{STDLIB}/json.cpython-312.pyc",
        f"{STDLIB}/json.pyc",
        f"{STDLIB}/json.cpython-311.opt-3.pyc",
        f"{STDLIB}/json.cpython-311.pyc.139872",
        f"{STDLIB}/../../../tmp/x.cpython-311.pyc",
        f"{STDLIB}/a\nb.cpython-311.pyc",
        f"{STDLIB}x/json.cpython-311.pyc",
        ".cpython-311.pyc",
        "",
    ],
)
def test_everything_else_is_not(spec: Spec, name: str) -> None:
    assert names(spec, name) == []


def test_the_innermost_folder_decides(spec: Spec) -> None:
    below = f"{SITE}/mine/x.cpython-311.pyc"
    assert names(spec, below) == [f"/{SITE}/mine/x.py"]
    assert names(spec, below, workspace=f"/{SITE}/mine") == []
    assert names(spec, below, mounts=(Mount(kind="data", source="/d", target=f"/{SITE}/mine"),)) == []
    assert names(spec, below, workspace="/home/ann") == [f"/{SITE}/mine/x.py"]


def test_optimised_bytecode_stays_optimised(spec: Spec) -> None:
    found = bytecode.modules([f"{STDLIB}/os.cpython-311.opt-2.pyc", f"{STDLIB}/os.cpython-311.pyc"], spec, launch(spec))
    assert [(module.source, module.optimize) for module in found] == [(f"/{STDLIB}/os.py", 2), (f"/{STDLIB}/os.py", 0)]


def test_the_launch_shows_nothing_of_the_users(spec: Spec, tmp_path: Path) -> None:
    variables = (Variable(name="LD_LIBRARY_PATH", value="/opt/lib"), Variable(name="PYTHONPATH", value="/mine"))
    spec = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, config=Config(env=variables)))
    made = bytecode.launch(
        spec,
        user=User(uid=1, gid=1, name="user", home="/home/user"),
        empty="sha256:" + "0" * 64,
        tools="/inside",
        notes=str(tmp_path),
        wanted="list",
    )
    assert (made.mounts, made.network, made.workspace, made.image) == ((), False, layout.COMPILED, spec.expected.image_id)
    assert made.argv[:3] == (spec.identity.interpreter.executable, "-s", "-S")
    values = {one.name: one.value for one in made.env}
    assert values["LD_LIBRARY_PATH"] == "/opt/lib"
    assert "PYTHONPATH" not in values
