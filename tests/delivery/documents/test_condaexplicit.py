"""conda-explicit.txt: rattler reads the packages of the spec."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.delivery.documents import condaexplicit
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.errors import SpecError
from repro_env.schema.spec import Spec, WheelHint

URL = "https://conda.example.com/main/linux-64/numpy-1.26.4-py311_0.conda"


@pytest.fixture
def packages(spec: Spec) -> Spec:
    """Return a spec with one downloadable and one bundled package."""
    made = [
        CondaPackage(
            name=name,
            version="1",
            build="0",
            subdir="linux-64",
            filename=f"{name}-1-0.conda",
            sha256=f"sha256:{digit * 64}",
            size=1,
        )
        for name, digit in (("zlib", "a"), ("numpy", "b"))
    ]
    hints = (
        WheelHint(sha256=made[0].sha256, origin="carried", urls=(), index=""),
        WheelHint(sha256=made[1].sha256, origin="direct", urls=(URL,), index="https://conda.example.com/main"),
    )
    return msgspec.structs.replace(
        spec,
        identity=msgspec.structs.replace(spec.identity, packages=tuple(made)),
        hints=msgspec.structs.replace(spec.hints, packages=hints),
    )


def test_each_package_is_listed_with_its_archive(packages: Spec) -> None:
    text = condaexplicit.render(packages).decode()
    assert text.endswith(
        f"# platform: linux-64\n@EXPLICIT\n{URL}#sha256:{'b' * 64}\n# bundled: blobs/{'a' * 64} is zlib-1-0.conda\n"
    )
    assert packages.digest in text
    assert "file:///DIRECTORY/FILE" in text


def test_rattler_reads_the_file(packages: Spec, tmp_path: Path) -> None:
    from rattler.explicit_environment import ExplicitEnvironmentSpec

    (tmp_path / "conda-explicit.txt").write_bytes(condaexplicit.render(packages))
    found = ExplicitEnvironmentSpec.from_path(tmp_path / "conda-explicit.txt")
    assert [package.url for package in found.packages] == [f"{URL}#sha256:{'b' * 64}"]
    assert str(found.platform) == "linux-64"


def test_a_value_cannot_break_out_of_its_line(packages: Spec) -> None:
    (first, *others) = packages.identity.packages
    bad = (msgspec.structs.replace(first, filename="a\nhttps://evil.example.com/x.conda"), *others)
    with pytest.raises(SpecError, match="contains a line break"):
        condaexplicit.render(msgspec.structs.replace(packages, identity=msgspec.structs.replace(packages.identity, packages=bad)))
