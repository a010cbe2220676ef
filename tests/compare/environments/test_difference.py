from __future__ import annotations

import pytest

from repro_env.compare.environments import numerics
from repro_env.compare.environments.difference import LEVELS, Difference, sort_differences
from repro_env.compare.environments.identity import artifacts, pairs, settings
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.environment import Variable
from repro_env.schema.image import Config
from tests.compare.environments.identities import CAPTURED, changed, tree, wheel


def test_differences_are_sorted_by_level_and_name() -> None:
    unsorted = [Difference(level=level, what=what, left="1", right="2") for level in reversed(LEVELS) for what in ("b", "a")]
    result = [(difference.level, difference.what) for difference in sort_differences(unsorted)]
    assert result == [(level, what) for level in LEVELS for what in ("a", "b")]


def test_differences_that_count_come_before_observations() -> None:
    observation = Difference(level="numerics", what="CPU", left="1", right="2", counts=False)
    counts = Difference(level="numerics", what="torch", left="1", right="2")
    assert sort_differences([observation, counts]) == (counts, observation)


@pytest.mark.parametrize(
    "name", ["torch", "numpy", "nvidia-cublas-cu12", "nvidia-cudnn", "cuda-toolkit", "triton", "mkl", "libblas", "scikit-learn"]
)
def test_numeric_distributions_are_known_by_name(name: str) -> None:
    assert numerics.distribution(name)


@pytest.mark.parametrize("name", ["pip", "requests", "packaging", "torchlike-x", "cudax", "numpydoc"])
def test_other_distributions_are_not_numeric(name: str) -> None:
    assert not numerics.distribution(name)


@pytest.mark.parametrize(
    ("name", "is_numeric"),
    [("libc6", True), ("libopenblas0-pthread:amd64", True), ("libgomp1", True), ("libssl3", False), ("git", False)],
)
def test_numeric_system_packages_are_known_by_name(name: str, is_numeric: bool) -> None:
    assert numerics.package(name) is is_numeric


def test_numeric_versions_and_variables_come_first() -> None:
    current = changed(
        distributions=(wheel("numpy", "2.2", 5), wheel("requests", "1", 6), wheel("torch", "2.9", 4)),
        config=Config(env=(Variable(name="OMP_NUM_THREADS", value="1"), Variable(name="PATH", value="/venv/bin:/bin"))),
    )
    differences = sort_differences([*artifacts(CAPTURED, current), *settings(CAPTURED, current)])
    assert [(difference.level, difference.what, difference.left, difference.right) for difference in differences] == [
        ("numerics", "OMP_NUM_THREADS", "", "1"),
        ("numerics", "numpy", "2.1", "2.2"),
        ("distributions", "requests", "", "1"),
        ("layout", "PATH", "", "/venv/bin:/bin"),
    ]


def test_differences_because_of_the_prefix_are_marked() -> None:
    left = changed(config=Config(env=(Variable(name="VIRTUAL_ENV", value="/venv"),)))
    layout = type(left.layout)(prefix="/other", purelib="lib/p", platlib="lib/p", scripts="bin", headers="include")
    right = changed(
        layout=layout, command="/other/bin/python", config=Config(env=(Variable(name="VIRTUAL_ENV", value="/other"),))
    )
    reasons = {difference.what: difference.why for difference in (*artifacts(left, right), *settings(left, right))}
    assert reasons["command"] == reasons["VIRTUAL_ENV"] == "only the prefix differs"
    assert "sys.prefix" in reasons["prefix"]
    assert set(reasons) == {"command", "VIRTUAL_ENV", "prefix"}


def test_trees_that_differ_are_paired() -> None:
    current = changed(base=tree(9), overlay=tree(8), unpackaged=tree(7))
    assert [(pair.part, pair.left is None) for pair in pairs(CAPTURED, current)] == [
        ("base", False),
        ("unpackaged", True),
        ("overlay", True),
    ]
    assert pairs(CAPTURED, CAPTURED) == ()


def test_conda_packages_are_compared_by_version_and_build() -> None:
    def package(version: str, build: str, number: int) -> CondaPackage:
        filename = f"openblas-{version}-{build}.conda"
        return CondaPackage(
            name="openblas",
            version=version,
            build=build,
            subdir="linux-64",
            filename=filename,
            sha256=f"sha256:{number:064x}",
            size=1,
        )

    captured = changed(packages=(package("0.3", "h1", 1),))
    (found,) = artifacts(captured, changed(packages=(package("0.3", "h2", 2),)))
    assert (found.level, found.left, found.right) == ("numerics", "0.3 h1 (linux-64)", "0.3 h2 (linux-64)")
    (found,) = artifacts(captured, changed(packages=(package("0.3", "h1", 2),)))
    assert found.why == "conda package, same build with different bytes"
