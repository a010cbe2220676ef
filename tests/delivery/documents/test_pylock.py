"""pylock.toml: valid, with the same bytes each time, and with exactly the wheels of the spec."""

from __future__ import annotations

import msgspec

from repro_env.delivery.documents import pylock
from repro_env.schema.spec import Spec
from tests.fakes.index import Index

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef,unused-ignore]


def sha256(spec: Spec, name: str) -> str:
    return next(wheel.sha256 for wheel in spec.identity.distributions if wheel.name == name).removeprefix("sha256:")


def test_pylock_lists_every_wheel(spec: Spec, index: Index) -> None:
    text = pylock.render(spec).decode()
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


def test_the_same_bytes_in_any_order(spec: Spec) -> None:
    back = tuple(reversed(spec.identity.distributions))
    other = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, distributions=back))
    # The spec digest depends on the order in the identity, so its line differs.
    assert pylock.render(other).replace(other.digest.encode(), spec.digest.encode()) == pylock.render(spec)


def test_versions_that_are_not_pep_440_are_left_out(spec: Spec) -> None:
    odd = tuple(msgspec.structs.replace(wheel, version="2004d") for wheel in spec.identity.distributions)
    other = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, distributions=odd))
    found = tomllib.loads(pylock.render(other).decode())
    assert [set(package) & {"version"} for package in found["packages"]] == [set(), set(), set()]
