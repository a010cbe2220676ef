from __future__ import annotations

import msgspec
import pytest

from repro_env.model.artifact import TreeBlob, Wheel
from repro_env.model.environment import Layout, Variable
from repro_env.model.image import Config
from repro_env.model.spec import Determinism, Identity, Platform, Rules, Runtime
from repro_env.verify.difference import sentence
from repro_env.verify.environment import artifacts, build, pairs, rebuilt


def tree(number: int) -> TreeBlob:
    return TreeBlob(sha256=f"sha256:{number:064x}", size=1, files=1)


def wheel(name: str, version: str, number: int) -> Wheel:
    return Wheel(
        name=name, version=version, filename=f"{name}-{version}-py3-none-any.whl", sha256=f"sha256:{number:064x}", size=1
    )


CAPTURED = Identity(
    rules=Rules(),
    platform=Platform(os="linux", architecture="amd64"),
    base=tree(1),
    interpreter=Runtime(tree=tree(2), executable="/opt/python/bin/python3.11", version="3.11.7"),
    layout=Layout(prefix="/venv", purelib="lib/p", platlib="lib/p", scripts="bin", headers="include"),
    command="/venv/bin/python",
    distributions=(wheel("numpy", "2.1", 3), wheel("torch", "2.9", 4)),
    overlay=None,
    config=Config(env=()),
    determinism=Determinism(seed=0),
)


def changed(**parts: object) -> Identity:
    return msgspec.structs.replace(CAPTURED, **parts)


def said(found: Identity) -> list[str]:
    """What is said of an environment that is held against the captured one."""
    builds = [build(old, new, found) for old, new in rebuilt(CAPTURED, found)]
    return [*map(sentence, [*artifacts(CAPTURED, found), *builds]), *(f"other {pair.part}" for pair in pairs(CAPTURED, found))]


def test_the_same_environment_differs_in_nothing() -> None:
    assert said(CAPTURED) == []


def test_variables_and_the_seed_are_not_the_environment() -> None:
    other = changed(config=Config(env=(Variable(name="OMP_NUM_THREADS", value="1"),)), determinism=Determinism(seed=7))
    assert said(other) == []


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (changed(distributions=(wheel("torch", "2.9", 4),)), "numpy 2.1 is gone"),
        (changed(distributions=(*CAPTURED.distributions, wheel("x", "1", 9))), "x 1 is new"),
        (changed(distributions=(wheel("numpy", "2.2", 5), wheel("torch", "2.9", 4))), "numpy is 2.2, 2.1 was captured"),
        (
            changed(distributions=(wheel("numpy", "2.1", 5), wheel("torch", "2.9", 4))),
            "numpy is 2.1 (numpy-2.1-py3-none-any.whl, sha256 000000000000), 2.1 (",
        ),
        (
            changed(interpreter=Runtime(tree=tree(2), executable="/opt/python/bin/python3.11", version="3.11.8")),
            "python is 3.11.8, 3.11.7 was captured",
        ),
        (
            changed(interpreter=Runtime(tree=tree(8), executable="/opt/python/bin/python3.11", version="3.11.7")),
            "other interpreter",
        ),
        (changed(overlay=tree(9)), "other overlay"),
        (changed(base=tree(9)), "other base"),
        (changed(platform=Platform(os="linux", architecture="arm64")), "platform is arm64, amd64 was captured"),
        (changed(layout=msgspec.structs.replace(CAPTURED.layout, prefix="/other")), "prefix is /other, /venv was captured"),
    ],
)
def test_each_part_is_named_by_itself(found: Identity, text: str) -> None:
    (only,) = said(found)
    assert text in only


def test_one_name_in_two_places_is_told_apart() -> None:
    """Under `--system-site-packages` the Python below may have another version of what the environment has."""
    user = msgspec.structs.replace(CAPTURED.layout, prefix="/home/ann/.local", in_place=True)
    below = msgspec.structs.replace(wheel("numpy", "1.26", 7), place=1)
    found = changed(others=(user,), distributions=(*CAPTURED.distributions, below))
    assert "numpy in /home/ann/.local 1.26 is new" in said(found)
    newer = msgspec.structs.replace(
        found, distributions=(*CAPTURED.distributions, msgspec.structs.replace(below, version="1.27"))
    )
    (one,) = artifacts(found, newer)
    assert (one.level, one.what, one.left, one.right) == ("numerics", "numpy in /home/ann/.local", "1.26", "1.27")
