"""What `check` does before and beside the comparison itself; the rest goes through the command (`tests/e2e`)."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from repro_env.flows import check as story
from repro_env.flows.check import Asked, check, under
from repro_env.model.environment import Variable, Variables
from repro_env.model.errors import DriftError, InterpreterError
from repro_env.model.image import Config
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent
from repro_env.store.store import Store
from tests.fakes import specs, wheels


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """Captured with two OpenMP threads, in an activated environment that sets a path of its own."""
    made = specs.make(tmp_path / "repro", {"alpha": wheels.make(tmp_path / "wheels", "alpha")}, carry=["alpha"])
    threads = Variable(name="OMP_NUM_THREADS", value="2")
    env = [*made.identity.config.env, threads, Variable(name="GDAL_DATA", value="/home/ann/project/.venv/share/gdal")]
    identity = msgspec.structs.replace(made.identity, config=Config(env=tuple(sorted(env, key=lambda one: one.name))))
    observed = msgspec.structs.replace(made.observed, variables=Variables(replayed=(threads,), recorded=(), named=()))
    return msgspec.structs.replace(made, identity=identity, observed=observed)


def test_files_are_compared_under_the_captured_variables(spec: Spec) -> None:
    """Another locale or PYTHONPATH in this shell must not look like another system or other packages."""
    now = {"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "8", "PYTHONPATH": "/x", "HOME": "/home/ann", "PATH": "/bin"}
    found = under(spec, now)
    assert found["OMP_NUM_THREADS"] == "2"
    assert "MKL_NUM_THREADS" not in found
    assert "PYTHONPATH" not in found
    assert (found["HOME"], found["PATH"]) == ("/home/ann", "/bin")
    assert found["GDAL_DATA"] == "/home/ann/project/.venv/share/gdal"


def test_variables_are_compared_by_themselves(spec: Spec) -> None:
    """What activating the environment sets is no setting of the user's: it is not missed in a plain shell."""
    assert story._variables(spec, {"OMP_NUM_THREADS": "2", "HOME": "/x"}) == ()
    found = {one.what: (one.left, one.right) for one in story._variables(spec, {"MKL_NUM_THREADS": "8", "PYTHONPATH": "/x:rel"})}
    assert found == {"OMP_NUM_THREADS": ("2", ""), "MKL_NUM_THREADS": ("", "8"), "PYTHONPATH": ("", "/x")}


def test_a_spec_that_was_not_captured_here_is_asked_about(spec: Spec, tmp_path: Path) -> None:
    with pytest.raises(DriftError, match="not captured here"):
        check(
            spec, tmp_path / "repro", Asked(environ={"PATH": str(Path(sys.executable).parent)}), store=Store.open(), tell=Silent()
        )
    active = Asked(environ={"VIRTUAL_ENV": "/gone"})
    with pytest.raises(InterpreterError, match=r"\$VIRTUAL_ENV \(/gone\)"):  # it is the one that is looked at
        check(spec, tmp_path / "repro", active, store=Store.open(), tell=Silent())


def test_a_spec_without_code_has_no_project(spec: Spec, tmp_path: Path) -> None:
    bare = msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=None))
    with pytest.raises(DriftError, match="no source"):
        check(bare, tmp_path / "repro", Asked(environ={}, environment=False), store=Store.open(), tell=Silent())


def test_the_project_is_the_folder_that_holds_the_spec(spec: Spec, tmp_path: Path) -> None:
    """Also of a spec that was captured somewhere else."""
    (tmp_path / "train.py").write_bytes(specs.TREES["source"]["train.py"])
    for path in (tmp_path / "wheels").iterdir():
        path.unlink()
    (tmp_path / "wheels").rmdir()
    asked = Asked(environ={}, environment=False)
    done = check(spec, tmp_path / "repro", asked, store=Store.open(), tell=Silent())
    assert (done.compared.same, done.source, done.environment) == (True, str(tmp_path), "")
    (tmp_path / "train.py").chmod(0o755)
    done = check(spec, tmp_path / "repro", asked, store=Store.open(), tell=Silent())
    assert [(one.what, one.why) for one in done.compared.differences] == [("train.py", "mode")]
    (tmp_path / "train.py").unlink()
    (tmp_path / "train.py").symlink_to("other.py")
    done = check(spec, tmp_path / "repro", asked, store=Store.open(), tell=Silent())
    assert done.compared.differences[0].right == "link to other.py"
