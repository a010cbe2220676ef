"""What help, tracebacks and debuggers print of the API has no value of an environment variable."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import pydoc
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import repro_env
from repro_env.runs.start.request import RunOptions
from repro_env.schema.environment import Environ

VALUE = "value-of-a-planted-token-41c7"
SCRIPT = f"import sys; sys.path[:0] = [{str(Path(__file__).parents[2])!r}]; from tests.api.test_signatures import show; show()"


def modules() -> list[ModuleType]:
    """All modules that a program may import on the host; those of `guest` run in other Pythons, and some end the process."""
    infos = pkgutil.walk_packages(repro_env.__path__, "repro_env.")
    names = [info.name for info in infos if ".guest" not in info.name and not info.name.endswith("__main__")]
    adapters = {"keyedloader", "lightning", "transformers"} if find_spec("torch") is None else set()
    return [repro_env, *(importlib.import_module(name) for name in names if name.rpartition(".")[2] not in adapters)]


def texts(module: ModuleType) -> list[str]:
    """The signatures, the documentation and the data of a module, with those of its classes."""
    found = [str(module.__doc__)]
    for name, thing in vars(module).items() if module is not repro_env else ((n, getattr(module, n)) for n in dir(module)):
        members = [thing, *vars(thing).values()] if inspect.isclass(thing) else [thing]
        for member in members:
            if callable(member):
                try:
                    found.append(f"{name}{inspect.signature(member)}")
                except (TypeError, ValueError, NameError):
                    found += [
                        f"{name} {getattr(member, key, None)!r}"
                        for key in ("__defaults__", "__kwdefaults__", "__struct_defaults__")
                    ]
                found.append(str(member.__doc__))
            elif not name.startswith("__") and member is not os.environ and not inspect.ismodule(member):
                found.append(f"{name} = {member!r}")
    return found


def show() -> None:
    for module in modules():
        print(module.__name__, *texts(module), sep="\n")
    print(pydoc.plain(pydoc.render_doc(repro_env)))
    for name in set(repro_env.__all__) - {"__version__"}:
        print(pydoc.plain(pydoc.render_doc(getattr(repro_env, name))))
    print("end of the help")


def test_no_signature_default_or_text_has_a_value_of_the_environment() -> None:
    names = ("MY_TOKEN", "WANDB_API_KEY", "HOME", "TERM", "LANG", "XDG_CACHE_HOME", "REPRO_ENV_STORE", "USER", "HOSTNAME")
    env = {"PATH": os.environ["PATH"], **{name: f"{VALUE}-{name}" for name in names}}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("end of the help\n")
    assert "verify(run: " in done.stdout
    assert [line[:200] for line in done.stdout.splitlines() if VALUE in line] == []


def test_the_text_of_options_has_no_value_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", VALUE)
    options = RunOptions().with_command(["train.py"], Path("/"))
    assert options.environ["MY_TOKEN"] == VALUE
    assert VALUE not in f"{options!r} {options} {Environ(os.environ)}"
