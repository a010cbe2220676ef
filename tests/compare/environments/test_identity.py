from __future__ import annotations

import msgspec
import pytest

from repro_env.compare.environments.difference import sentence
from repro_env.compare.environments.identity import artifacts, build_difference, different_builds, pairs
from repro_env.compare.environments.paths import mask_prefix
from repro_env.schema.environment import Variable
from repro_env.schema.image import Config
from repro_env.schema.spec import Identity, Platform, Runtime
from tests.compare.environments.identities import CAPTURED, changed, tree, wheel


def sentences(current: Identity) -> list[str]:
    """Describe the differences between an environment and the captured one."""
    builds = [build_difference(old, new, current) for old, new in different_builds(CAPTURED, current)]
    trees = [f"other {pair.part}" for pair in pairs(CAPTURED, current)]
    return [*map(sentence, [*artifacts(CAPTURED, current), *builds]), *trees]


def test_the_same_environment_has_no_differences() -> None:
    assert sentences(CAPTURED) == []


def test_variables_are_not_part_of_the_environment() -> None:
    current = changed(config=Config(env=(Variable(name="OMP_NUM_THREADS", value="1"),)))
    assert sentences(current) == []


@pytest.mark.parametrize(
    ("current", "text"),
    [
        (changed(distributions=(wheel("torch", "2.9", 4),)), "numpy 2.1 is missing"),
        (changed(distributions=(*CAPTURED.distributions, wheel("x", "1", 9))), "x 1 is new"),
        (changed(distributions=(wheel("numpy", "2.2", 5), wheel("torch", "2.9", 4))), "numpy is 2.2 (2.1 was captured)"),
        (
            changed(distributions=(wheel("numpy", "2.1", 5), wheel("torch", "2.9", 4))),
            "numpy is 2.1 (numpy-2.1-py3-none-any.whl, sha256 000000000000) (2.1 (",
        ),
        (
            changed(interpreter=Runtime(tree=tree(2), executable="/opt/python/bin/python3.11", version="3.11.8")),
            "python is 3.11.8 (3.11.7 was captured)",
        ),
        (
            changed(interpreter=Runtime(tree=tree(8), executable="/opt/python/bin/python3.11", version="3.11.7")),
            "other interpreter",
        ),
        (changed(overlay=tree(9)), "other overlay"),
        (changed(base=tree(9)), "other base"),
        (changed(platform=Platform(os="linux", architecture="arm64")), "platform is arm64 (amd64 was captured)"),
        (changed(layout=msgspec.structs.replace(CAPTURED.layout, prefix="/other")), "prefix is /other (/venv was captured)"),
    ],
)
def test_each_part_has_its_own_difference(current: Identity, text: str) -> None:
    (only,) = sentences(current)
    assert text in only


def test_a_distribution_in_two_site_directories_is_compared_for_each() -> None:
    """With `--system-site-packages`, the base Python may have another version of a distribution."""
    user = msgspec.structs.replace(CAPTURED.layout, prefix="/home/ann/.local", in_place=True)
    in_user_site = msgspec.structs.replace(wheel("numpy", "1.26", 7), site=1)
    current = changed(other_layouts=(user,), distributions=(*CAPTURED.distributions, in_user_site))
    assert "numpy in /home/ann/.local 1.26 is new" in sentences(current)
    newer = msgspec.structs.replace(
        current, distributions=(*CAPTURED.distributions, msgspec.structs.replace(in_user_site, version="1.27"))
    )
    (difference,) = artifacts(current, newer)
    assert (difference.level, difference.what) == ("numerics", "numpy in /home/ann/.local")
    assert (difference.left, difference.right) == ("1.26", "1.27")


def test_a_prefix_and_its_name_in_a_prompt_are_masked() -> None:
    left = b'VIRTUAL_ENV="/home/ann/one"\nPS1="(one) $PS1"\n'
    right = b'VIRTUAL_ENV="/srv/two"\nPS1="(two) $PS1"\n'
    assert mask_prefix(left, "/home/ann/one") == mask_prefix(right, "/srv/two")
    assert mask_prefix(left, "/home/ann/one") != mask_prefix(right + b"more\n", "/srv/two")
