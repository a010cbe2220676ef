"""How `check` chooses what to compare. Tests of the comparison itself use the command (`tests/e2e`)."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from repro_env.api import check as command
from repro_env.api.check import check, with_captured_variables
from repro_env.schema.environment import Variable, Variables
from repro_env.schema.errors import DriftError, InterpreterError
from repro_env.schema.image import Config
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened
from tests.fakes import specs, wheels


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """Return a spec captured with two OpenMP threads, in an activated environment that sets GDAL_DATA."""
    spec = specs.make(tmp_path / "repro", {"alpha": wheels.make(tmp_path / "wheels", "alpha")}, carry=["alpha"])
    threads = Variable(name="OMP_NUM_THREADS", value="2")
    env = [*spec.identity.config.env, threads, Variable(name="GDAL_DATA", value="/home/ann/project/.venv/share/gdal")]
    identity = msgspec.structs.replace(spec.identity, config=Config(env=tuple(sorted(env, key=lambda variable: variable.name))))
    observed = msgspec.structs.replace(spec.observed, variables=Variables(replayed=(threads,), recorded=(), named=()))
    return msgspec.structs.replace(spec, identity=identity, observed=observed)


def test_files_are_compared_with_the_captured_variables(spec: Spec) -> None:
    """A different locale or PYTHONPATH in this shell must not look like a different system or different packages."""
    environ = {"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "8", "PYTHONPATH": "/x", "HOME": "/home/ann", "PATH": "/bin"}
    variables = with_captured_variables(spec, environ)
    assert variables["OMP_NUM_THREADS"] == "2"
    assert "MKL_NUM_THREADS" not in variables
    assert "PYTHONPATH" not in variables
    assert (variables["HOME"], variables["PATH"]) == ("/home/ann", "/bin")
    assert variables["GDAL_DATA"] == "/home/ann/project/.venv/share/gdal"


def test_variables_are_compared_separately(spec: Spec) -> None:
    """Variables that the activation of the environment sets are not reported as missing in a plain shell."""
    assert command._compare_variables(spec, {"OMP_NUM_THREADS": "2", "HOME": "/x"}) == []
    differences = {
        difference.what: (difference.left, difference.right)
        for difference in command._compare_variables(spec, {"MKL_NUM_THREADS": "8", "PYTHONPATH": "/x:rel"})
    }
    assert differences == {"OMP_NUM_THREADS": ("2", ""), "MKL_NUM_THREADS": ("", "8"), "PYTHONPATH": ("", "/x")}


def test_the_python_of_a_spec_that_was_not_captured_here_is_not_started(spec: Spec, tmp_path: Path) -> None:
    with pytest.raises(DriftError, match="not captured here"):
        check(Opened(spec, tmp_path / "repro"), environ={"PATH": str(Path(sys.executable).parent)})
    with pytest.raises(InterpreterError, match=r"\$VIRTUAL_ENV \(/gone\)"):  # the active environment is inspected instead
        check(Opened(spec, tmp_path / "repro"), environ={"VIRTUAL_ENV": "/gone"})


def test_check_of_the_project_refuses_a_spec_without_source(spec: Spec, tmp_path: Path) -> None:
    bare = msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=None))
    with pytest.raises(DriftError, match="has no source"):
        check(Opened(bare, tmp_path / "repro"), environment=False)


def test_the_project_is_the_directory_that_contains_the_spec_directory(spec: Spec, tmp_path: Path) -> None:
    """This holds for a spec that was captured elsewhere, too."""
    (tmp_path / "train.py").write_bytes(specs.TREES["source"]["train.py"])
    for path in (tmp_path / "wheels").iterdir():
        path.unlink()
    (tmp_path / "wheels").rmdir()
    opened = Opened(spec, tmp_path / "repro")
    done = check(opened, environment=False)
    assert (done.compared.same, done.source, done.environment) == (True, str(tmp_path), "")
    (tmp_path / "train.py").chmod(0o755)
    done = check(opened, environment=False)
    assert [(difference.what, difference.why) for difference in done.compared.differences] == [("train.py", "mode")]
    (tmp_path / "train.py").unlink()
    (tmp_path / "train.py").symlink_to("other.py")
    done = check(opened, environment=False)
    assert done.compared.differences[0].right == "link to other.py"
