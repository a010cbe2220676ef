"""conda-explicit.txt: what rattler reads out of it is what the spec holds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.model.artifact import CondaPackage
from repro_env.model.errors import SpecError
from repro_env.model.spec import Spec, WheelHint
from repro_env.render import conda

URL = "https://conda.example.com/main/linux-64/numpy-1.26.4-py311_0.conda"


@pytest.fixture
def packages(spec: Spec) -> Spec:
    """One linked, one carried."""
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


def test_each_package_by_its_archive(packages: Spec) -> None:
    text = conda.render(packages).decode()
    assert text.endswith(
        f"# platform: linux-64\n@EXPLICIT\n{URL}#sha256:{'b' * 64}\n# carried: blobs/{'a' * 64} is zlib-1-0.conda\n"
    )
    assert packages.digest in text
    assert "file:///FOLDER/FILE" in text


def test_rattler_reads_it(packages: Spec, tmp_path: Path) -> None:
    from rattler.explicit_environment import ExplicitEnvironmentSpec

    (tmp_path / "conda-explicit.txt").write_bytes(conda.render(packages))
    found = ExplicitEnvironmentSpec.from_path(tmp_path / "conda-explicit.txt")
    assert [one.url for one in found.packages] == [f"{URL}#sha256:{'b' * 64}"]
    assert str(found.platform) == "linux-64"


def test_no_value_breaks_out_of_its_line(packages: Spec) -> None:
    (first, *rest) = packages.identity.packages
    bad = (msgspec.structs.replace(first, filename="a\nhttps://evil.example.com/x.conda"), *rest)
    with pytest.raises(SpecError, match="no line can hold"):
        conda.render(msgspec.structs.replace(packages, identity=msgspec.structs.replace(packages.identity, packages=bad)))
