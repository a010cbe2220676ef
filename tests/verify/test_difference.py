from __future__ import annotations

import pytest

from repro_env.model.artifact import CondaPackage
from repro_env.model.environment import Variable
from repro_env.model.image import Config
from repro_env.model.spec import Determinism
from repro_env.verify import numerics
from repro_env.verify.difference import LEVELS, Difference, ordered
from repro_env.verify.environment import artifacts, pairs, settings
from tests.verify.test_environment import CAPTURED, changed, tree, wheel


def test_what_can_matter_most_comes_first() -> None:
    every = [Difference(level=level, what=what, left="1", right="2") for level in reversed(LEVELS) for what in ("b", "a")]
    assert [(one.level, one.what) for one in ordered(every)] == [(level, what) for level in LEVELS for what in ("a", "b")]


def test_what_counts_comes_before_what_was_only_seen() -> None:
    seen = Difference(level="numerics", what="CPU", left="1", right="2", counts=False)
    counts = Difference(level="numerics", what="torch", left="1", right="2")
    assert ordered([seen, counts]) == (counts, seen)


@pytest.mark.parametrize(
    "name", ["torch", "numpy", "nvidia-cublas-cu12", "nvidia-cudnn", "cuda-toolkit", "triton", "mkl", "libblas", "scikit-learn"]
)
def test_arithmetic_is_known_by_name(name: str) -> None:
    assert numerics.distribution(name)


@pytest.mark.parametrize("name", ["pip", "requests", "packaging", "torchlike-x", "cudax", "numpydoc"])
def test_other_distributions_are_not_arithmetic(name: str) -> None:
    assert not numerics.distribution(name)


@pytest.mark.parametrize(
    ("name", "is_numeric"),
    [("libc6", True), ("libopenblas0-pthread:amd64", True), ("libgomp1", True), ("libssl3", False), ("git", False)],
)
def test_packages_of_the_system_too(name: str, is_numeric: bool) -> None:
    assert numerics.package(name) is is_numeric


def test_numeric_versions_variables_and_seed_come_first() -> None:
    other = changed(
        distributions=(wheel("numpy", "2.2", 5), wheel("requests", "1", 6), wheel("torch", "2.9", 4)),
        config=Config(env=(Variable(name="OMP_NUM_THREADS", value="1"), Variable(name="PATH", value="/venv/bin:/bin"))),
        determinism=Determinism(seed=7),
    )
    found = ordered([*artifacts(CAPTURED, other), *settings(CAPTURED, other)])
    assert [(one.level, one.what, one.left, one.right) for one in found] == [
        ("numerics", "OMP_NUM_THREADS", "", "1"),
        ("numerics", "numpy", "2.1", "2.2"),
        ("numerics", "seed", "0", "7"),
        ("distributions", "requests", "", "1"),
        ("layout", "PATH", "", "/venv/bin:/bin"),
    ]


def test_what_follows_from_the_prefix_says_so() -> None:
    left = changed(config=Config(env=(Variable(name="VIRTUAL_ENV", value="/venv"),)))
    layout = type(left.layout)(prefix="/other", purelib="lib/p", platlib="lib/p", scripts="bin", headers="include")
    right = changed(
        layout=layout, command="/other/bin/python", config=Config(env=(Variable(name="VIRTUAL_ENV", value="/other"),))
    )
    found = {one.what: one.why for one in (*artifacts(left, right), *settings(left, right))}
    assert found["command"] == found["VIRTUAL_ENV"] == "follows from the prefix"
    assert "sys.prefix" in found["prefix"]
    assert set(found) == {"command", "VIRTUAL_ENV", "prefix"}


def test_trees_are_paired_for_a_comparison_of_paths() -> None:
    other = changed(base=tree(9), overlay=tree(8), unowned=tree(7))
    assert [(pair.part, pair.left is None) for pair in pairs(CAPTURED, other)] == [
        ("base", False),
        ("unowned", True),
        ("overlay", True),
    ]
    assert pairs(CAPTURED, CAPTURED) == ()


def test_conda_packages_by_version_and_build() -> None:
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

    (one,) = artifacts(changed(packages=(package("0.3", "h1", 1),)), changed(packages=(package("0.3", "h2", 2),)))
    assert (one.level, one.left, one.right) == ("numerics", "0.3 h1 (linux-64)", "0.3 h2 (linux-64)")
    (one,) = artifacts(changed(packages=(package("0.3", "h1", 1),)), changed(packages=(package("0.3", "h1", 2),)))
    assert one.why == "conda package, the same build, other bytes"
