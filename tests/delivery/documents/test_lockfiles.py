"""Lock files: exactly the wheels and packages of the spec, the same bytes each time, and other tools read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from repro_env.delivery.documents import lockfiles
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.environment import Layout
from repro_env.schema.errors import SpecError
from repro_env.schema.spec import Spec, WheelHint
from tests.fakes.index import Index

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef,unused-ignore]

URL = "https://conda.example.com/main/linux-64/numpy-1.26.4-py311_0.conda"


def sha256(spec: Spec, name: str) -> str:
    return next(wheel.sha256 for wheel in spec.identity.distributions if wheel.name == name).removeprefix("sha256:")


def test_requirements_list_every_wheel(spec: Spec, index: Index) -> None:
    text = lockfiles.requirements(spec).decode()
    body = text[text.index("\n\n") + 2 :]
    assert body == (
        f"# bundled: blobs/{sha256(spec, 'alpha-pkg')} is alpha_pkg-3-py3-none-any.whl\n"
        f"alpha-pkg==3 \\\n    --hash=sha256:{sha256(spec, 'alpha-pkg')}\n"
        f"mid @ {index.proxy}/files/mid-2.0%2Bcpu-py3-none-any.whl \\\n    --hash=sha256:{sha256(spec, 'mid')}\n"
        f"zeta==1.0 \\\n    --hash=sha256:{sha256(spec, 'zeta')}\n"
    )
    assert spec.digest in text
    assert "--find-links" in text


@pytest.mark.parametrize("render", [lockfiles.requirements, lockfiles.pylock])
def test_the_same_bytes_in_any_order(spec: Spec, render: Callable[[Spec], bytes]) -> None:
    back = tuple(reversed(spec.identity.distributions))
    other = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, distributions=back))
    # The spec digest depends on the order in the identity, so its line differs.
    assert render(other).replace(other.digest.encode(), spec.digest.encode()) == render(spec)


def test_versions_that_are_not_pep_440_use_three_equal_signs(spec: Spec) -> None:
    (wheel, *_) = spec.identity.distributions
    hint = WheelHint(sha256=wheel.sha256, origin="index", urls=(), index="")
    assert lockfiles.requirement(msgspec.structs.replace(wheel, version="2004d"), hint) == f"{wheel.name}===2004d"


def test_a_value_cannot_break_out_of_its_line(spec: Spec) -> None:
    (wheel, *others) = spec.identity.distributions
    bad = (msgspec.structs.replace(wheel, filename="x\n--index-url http://evil.test"), *others)
    with pytest.raises(SpecError, match="contains a line break"):
        lockfiles.requirements(msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, distributions=bad)))


def test_pip_installs_from_requirements(spec: Spec, index: Index, tmp_path: Path) -> None:
    """Follow the comments of the file: bundled wheels are in a directory under their names."""
    links = tmp_path / "links"
    links.mkdir()
    shutil.copy(tmp_path / "repro" / "blobs" / sha256(spec, "alpha-pkg"), links / "alpha_pkg-3-py3-none-any.whl")
    (tmp_path / "requirements.txt").write_bytes(lockfiles.requirements(spec))
    venv = _venv(tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", str(venv), "install", "--quiet", "--no-deps", "--require-hashes"]
    options = [
        "--only-binary",
        ":all:",
        "--index-url",
        index.url,
        "--find-links",
        str(links),
        "-r",
        str(tmp_path / "requirements.txt"),
    ]
    subprocess.run([*pip, *options], check=True, env=_plain_pip())
    assert {path.name for path in venv.rglob("*.dist-info")} == {
        "alpha_pkg-3.dist-info",
        "mid-2.0+cpu.dist-info",
        "zeta-1.0.dist-info",
    }


def _venv(directory: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory / "venv")], check=True)
    return directory / "venv"


def _plain_pip() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | {"PIP_CONFIG_FILE": os.devnull}


def twice(spec: Spec, *order: str) -> Spec:
    """Return the spec with its first distribution in two site directories. `order`: their prefixes in `sys.path`."""
    (wheel, *others) = spec.identity.distributions
    home = Layout(prefix="/home/ann/.local", in_place=True, purelib="lib/p", platlib="lib/p", scripts="bin", headers="include")
    second = msgspec.structs.replace(wheel, site=1)
    identity = msgspec.structs.replace(spec.identity, other_layouts=(home,), distributions=(wheel, second, *others))
    sites = {"venv": f"{spec.identity.layout.prefix}/{spec.identity.layout.purelib}", "home": "/home/ann/.local/lib/p"}
    startup = msgspec.structs.replace(spec.observed.startup, sys_path=("/x", *(sites[name] for name in order)))
    return msgspec.structs.replace(spec, identity=identity, observed=msgspec.structs.replace(spec.observed, startup=startup))


def test_the_first_distribution_on_the_path_is_imported(spec: Spec) -> None:
    for order, place in ((("venv", "home"), 0), (("home", "venv"), 1)):
        shown, shadowed = lockfiles.split_shadowed(twice(spec, *order))
        assert [wheel.name for wheel in shown] == sorted({wheel.name for wheel in spec.identity.distributions})
        assert [wheel.site for wheel in shown] == [place, *[0] * (len(shown) - 1)]
        assert [wheel.site for wheel in shadowed] == [1 - place]


def test_lock_files_list_a_distribution_once_and_mention_the_shadowed_one(spec: Spec, tmp_path: Path) -> None:
    found = twice(spec, "venv", "home")
    name = found.identity.distributions[0].name
    text = lockfiles.requirements(found).decode()
    assert text.count(f"\n{name}==") == 1
    assert f"shadowed: {name} 3 in /home/ann/.local" in text
    assert lockfiles.pylock(found).decode().count(f'name = "{name}"') == 1


def test_pylock_lists_every_wheel(spec: Spec, index: Index) -> None:
    text = lockfiles.pylock(spec).decode()
    assert "ends in .gz, decompress it" in text
    found = tomllib.loads(text)
    assert found == {
        "lock-version": "1.0",
        "requires-python": "==3.11.*",
        "created-by": "repro-env",
        "packages": [
            {
                "name": "alpha-pkg",
                "version": "3",
                "wheels": [
                    {
                        "name": "alpha_pkg-3-py3-none-any.whl",
                        "path": f"blobs/{sha256(spec, 'alpha-pkg')}",
                        "size": (index.directory / "alpha_pkg-3-py3-none-any.whl").stat().st_size,
                        "hashes": {"sha256": sha256(spec, "alpha-pkg")},
                    }
                ],
            },
            {
                "name": "mid",
                "version": "2.0+cpu",
                "wheels": [
                    {
                        "name": "mid-2.0+cpu-py3-none-any.whl",
                        "url": f"{index.proxy}/files/mid-2.0%2Bcpu-py3-none-any.whl",
                        "size": (index.directory / "mid-2.0+cpu-py3-none-any.whl").stat().st_size,
                        "hashes": {"sha256": sha256(spec, "mid")},
                    }
                ],
            },
            {
                "name": "zeta",
                "version": "1.0",
                "index": index.url,
                "wheels": [
                    {
                        "name": "zeta-1.0-py3-none-any.whl",
                        "url": f"{index.proxy}/files/zeta-1.0-py3-none-any.whl",
                        "size": (index.directory / "zeta-1.0-py3-none-any.whl").stat().st_size,
                        "hashes": {"sha256": sha256(spec, "zeta")},
                    }
                ],
            },
        ],
        "tool": {"repro-env": {"spec": spec.digest}},
    }


def test_pylock_leaves_out_versions_that_are_not_pep_440(spec: Spec) -> None:
    odd = tuple(msgspec.structs.replace(wheel, version="2004d") for wheel in spec.identity.distributions)
    other = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, distributions=odd))
    found = tomllib.loads(lockfiles.pylock(other).decode())
    assert [set(package) & {"version"} for package in found["packages"]] == [set(), set(), set()]


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
        WheelHint(sha256=made[0].sha256, origin="bundled", urls=(), index=""),
        WheelHint(sha256=made[1].sha256, origin="direct", urls=(URL,), index="https://conda.example.com/main"),
    )
    return msgspec.structs.replace(
        spec,
        identity=msgspec.structs.replace(spec.identity, packages=tuple(made)),
        hints=msgspec.structs.replace(spec.hints, packages=hints),
    )


def test_each_package_is_listed_with_its_archive(packages: Spec) -> None:
    text = lockfiles.conda_explicit(packages).decode()
    assert text.endswith(
        f"# platform: linux-64\n@EXPLICIT\n{URL}#sha256:{'b' * 64}\n# bundled: blobs/{'a' * 64} is zlib-1-0.conda\n"
    )
    assert packages.digest in text
    assert "file:///DIRECTORY/FILE" in text


def test_rattler_reads_the_file(packages: Spec, tmp_path: Path) -> None:
    from rattler.explicit_environment import ExplicitEnvironmentSpec

    (tmp_path / "conda-explicit.txt").write_bytes(lockfiles.conda_explicit(packages))
    found = ExplicitEnvironmentSpec.from_path(tmp_path / "conda-explicit.txt")
    assert [package.url for package in found.packages] == [f"{URL}#sha256:{'b' * 64}"]
    assert str(found.platform) == "linux-64"


def test_a_value_cannot_break_out_of_a_line_of_conda(packages: Spec) -> None:
    (first, *others) = packages.identity.packages
    bad = (msgspec.structs.replace(first, filename="a\nhttps://evil.example.com/x.conda"), *others)
    with pytest.raises(SpecError, match="contains a line break"):
        lockfiles.conda_explicit(
            msgspec.structs.replace(packages, identity=msgspec.structs.replace(packages.identity, packages=bad))
        )
