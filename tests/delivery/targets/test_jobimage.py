"""The image that fills the directory of a Kubernetes job. tests/e2e/test_kubernetes.py runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.delivery.builder.remote import Copy
from repro_env.delivery.targets import jobimage
from repro_env.delivery.targets.registry import RegistryOutput
from repro_env.registry.reference import parse
from repro_env.schema.errors import ArtifactError, PlatformError
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.delivery.targets.conftest import image
from tests.fakes import specs
from tests.registries import registry

OTHER = f"sha256:{'0' * 64}"


def with_python(spec: Spec, version: str) -> Spec:
    interpreter = msgspec.structs.replace(spec.identity.interpreter, version=version)
    return msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, interpreter=interpreter))


def test_an_image_with_another_python_is_refused(tmp_path: Path) -> None:
    spec = with_python(specs.make(tmp_path, {}), "3.8.1")
    with pytest.raises(PlatformError, match=r"the image has Python 3\.8, with which it runs in the pod"):
        jobimage.make(spec, Copy(repository="127.0.0.1:1/x", image=OTHER, spec=OTHER), {}, (), Store.open())


def test_another_image_in_the_registry_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(jobimage, "_check_python", lambda spec: None)
    with registry(tmp_path / "registry") as host:
        output = RegistryOutput(parse(f"{host}/team/other:1"))
        pushed = image(output, b"text")
        output.finish(pushed)
        output.close()
        copy = Copy(repository=f"{host}/team/other", image=pushed.manifest_blob.digest, spec=OTHER)
        with pytest.raises(ArtifactError, match="this is not the image of the spec"):
            jobimage.make(specs.make(tmp_path / "spec", {}), copy, {}, (), Store.open())


def test_what_a_pod_gets_of_repro_env_is_what_it_needs() -> None:
    files = jobimage._tool_files()
    assert {"repro_env/__main__.py", "repro_env/guest/seeds/sitecustomize.py", "msgspec/__init__.py"} <= files.keys()
    assert not [path for path in files if path.endswith(".pyc") or path.startswith(("..", "/", "zstandard/"))]
    assert list(entries(files)) == list(entries(dict(reversed(files.items()))))


def entries(files: dict[str, Path]) -> Iterator[str]:
    return (entry.path for entry, _ in jobimage._from_files(files))
