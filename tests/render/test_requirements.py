"""requirements.txt: one sha256 each, the same bytes each time, and pip installs from it as its comments say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from repro_env.model.errors import SpecError
from repro_env.model.spec import Spec, WheelHint
from repro_env.render import requirements
from tests.fakes.index import Index


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


def test_the_same_bytes_in_any_order(spec: Spec) -> None:
    back = tuple(reversed(spec.identity.distributions))
    other = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, distributions=back))
    # The digest is of the identity as it stands, so its line differs.
    assert requirements.render(other).replace(other.digest.encode(), spec.digest.encode()) == requirements.render(spec)


def test_versions_that_pep_440_does_not_know(spec: Spec) -> None:
    (one, *_) = spec.identity.distributions
    hint = WheelHint(sha256=one.sha256, origin="index", urls=(), index="")
    assert requirements.requirement(msgspec.structs.replace(one, version="2004d"), hint) == f"{one.name}===2004d"


def test_no_value_breaks_out_of_its_line(spec: Spec) -> None:
    (one, *rest) = spec.identity.distributions
    bad = (msgspec.structs.replace(one, filename="x\n--index-url http://evil.test"), *rest)
    with pytest.raises(SpecError, match="no line can hold"):
        requirements.render(msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, distributions=bad)))


def test_pip_installs_from_requirements(spec: Spec, index: Index, tmp_path: Path) -> None:
    """As the file's own comments say: carried wheels from a folder, under their names."""
    links = tmp_path / "links"
    links.mkdir()
    shutil.copy(tmp_path / "repro" / "blobs" / sha256(spec, "alpha-pkg"), links / "alpha_pkg-3-py3-none-any.whl")
    (tmp_path / "requirements.txt").write_bytes(requirements.render(spec))
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


def _venv(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    return folder / "venv"


def _plain_pip() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | {"PIP_CONFIG_FILE": os.devnull}
