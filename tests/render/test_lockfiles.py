"""requirements.txt and pylock.toml: the same bytes each time, valid, and installable by pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from repro_env.model.errors import SpecError
from repro_env.model.spec import Spec, WheelHint
from repro_env.render import pylock, requirements, templates
from tests.fakes import specs, wheels
from tests.fakes.index import Index

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef,unused-ignore]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "wheels") as one:
        yield one


@pytest.fixture
def spec(index: Index, tmp_path: Path) -> Spec:
    """One wheel from an index, one from a URL, one carried."""
    made = {name: wheels.make(index.folder, name, version) for name, version in (("zeta", "1.0"), ("mid", "2.0+cpu"), ("alpha-pkg", "3"))}
    urls = {name: [f"{index.proxy}/files/{quote(path.name)}"] for name, path in made.items() if name != "alpha-pkg"}
    found = specs.make(tmp_path / "repro", made, urls=urls, carry=["alpha-pkg"])
    hints = []
    for hint in found.hints.wheels:
        more = {"origin": "direct"} if "mid" in "".join(hint.urls) else {"index": index.url} if hint.urls else {}
        hints.append(msgspec.structs.replace(hint, **more))
    return msgspec.structs.replace(found, hints=msgspec.structs.replace(found.hints, wheels=tuple(hints)))


def sha256(spec: Spec, name: str) -> str:
    return next(wheel.sha256 for wheel in spec.identity.distributions if wheel.name == name).removeprefix("sha256:")


def test_requirements(spec: Spec, index: Index) -> None:
    text = requirements.render(spec).decode()
    body = text[text.index("\n\n") + 2 :]
    assert body == (
        f"# carried: blobs/{sha256(spec, 'alpha-pkg')} is alpha_pkg-3-py3-none-any.whl\n"
        f"alpha-pkg==3 \\\n    --hash=sha256:{sha256(spec, 'alpha-pkg')}\n"
        f"mid @ {index.proxy}/files/mid-2.0%2Bcpu-py3-none-any.whl \\\n    --hash=sha256:{sha256(spec, 'mid')}\n"
        f"zeta==1.0 \\\n    --hash=sha256:{sha256(spec, 'zeta')}\n"
    )
    assert spec.digest in text
    assert "--find-links" in text


def test_pylock(spec: Spec, index: Index) -> None:
    found = tomllib.loads(pylock.render(spec).decode())
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
                        "size": (index.folder / "alpha_pkg-3-py3-none-any.whl").stat().st_size,
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
                        "size": (index.folder / "mid-2.0+cpu-py3-none-any.whl").stat().st_size,
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
                        "size": (index.folder / "zeta-1.0-py3-none-any.whl").stat().st_size,
                        "hashes": {"sha256": sha256(spec, "zeta")},
                    }
                ],
            },
        ],
        "tool": {"repro-env": {"spec": spec.digest}},
    }


@pytest.mark.parametrize("render", [requirements.render, pylock.render])
def test_the_same_bytes_in_any_order(spec: Spec, render: Callable[[Spec], bytes]) -> None:
    wheels_back = tuple(reversed(spec.identity.distributions))
    other = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, distributions=wheels_back))
    # The digest is of the identity as it stands, so it is the one line that differs.
    theirs = render(other).replace(other.digest.encode(), spec.digest.encode())
    assert theirs == render(spec)


def test_versions_that_pep_440_does_not_know(spec: Spec) -> None:
    (one, *_) = spec.identity.distributions
    hint = WheelHint(sha256=one.sha256, origin="index", urls=(), index="")
    assert requirements.requirement(msgspec.structs.replace(one, version="2004d"), hint) == f"{one.name}===2004d"
    odd = msgspec.structs.replace(spec.identity, distributions=(msgspec.structs.replace(one, version="2004d"),))
    assert b"version =" not in pylock.render(msgspec.structs.replace(spec, identity=odd)).replace(b"lock-version", b"")


def test_no_value_breaks_out_of_its_line(spec: Spec) -> None:
    (one, *rest) = spec.identity.distributions
    bad = (msgspec.structs.replace(one, filename="x\n--index-url http://evil.test"), *rest)
    with pytest.raises(SpecError, match="no line can hold"):
        requirements.render(msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, distributions=bad)))


def test_templates_are_found_where_they_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (templates.folder() / "requirements.txt.j2").is_file()
    (tmp_path / "repro_env" / "_templates").mkdir(parents=True)
    monkeypatch.setattr(templates, "PACKAGE", tmp_path / "repro_env")
    assert templates.folder() == tmp_path / "repro_env" / "_templates"


def test_pip_installs_from_requirements(spec: Spec, index: Index, tmp_path: Path) -> None:
    """As the file's own comments say: carried wheels from a folder, under their names."""
    links = tmp_path / "links"
    links.mkdir()
    shutil.copy(tmp_path / "repro" / "blobs" / sha256(spec, "alpha-pkg"), links / "alpha_pkg-3-py3-none-any.whl")
    (tmp_path / "requirements.txt").write_bytes(requirements.render(spec))
    venv = _venv(tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", str(venv), "install", "--quiet", "--no-deps", "--require-hashes"]
    options = ["--only-binary", ":all:", "--index-url", index.url, "--find-links", str(links), "-r", str(tmp_path / "requirements.txt")]
    subprocess.run([*pip, *options], check=True, env=_plain_pip())
    assert {path.name for path in venv.rglob("*.dist-info")} == {"alpha_pkg-3.dist-info", "mid-2.0+cpu.dist-info", "zeta-1.0.dist-info"}


def _venv(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    return folder / "venv"


def _plain_pip() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | {"PIP_CONFIG_FILE": os.devnull}
