"""What is refused before a job of Kubernetes is submitted. tests/e2e has jobs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.api import submit
from repro_env.launch.kubernetes import parse_claim
from repro_env.schema.errors import DataError, UsageError
from repro_env.schema.spec import Data, Spec
from repro_env.specs.argument import Opened
from tests.fakes import specs

IMAGES = Data(path="/data/images", digest=f"sha256:{'0' * 64}", files=1, size=1)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    made = specs.make(tmp_path, {})
    return msgspec.structs.replace(made, observed=msgspec.structs.replace(made.observed, data=(IMAGES,)))


def test_captured_data_must_be_in_a_claim(spec: Spec, tmp_path: Path) -> None:
    opened = Opened(spec, tmp_path)
    with pytest.raises(DataError, match="pods do not have them") as raised:
        submit._check_claims(opened, [], is_optional=False)
    assert "--data CLAIM:/data/images" in raised.value.hint
    submit._check_claims(opened, [], is_optional=True)
    submit._check_claims(opened, [parse_claim("data", "images", "/data/images")], is_optional=False)


def test_an_environment_that_the_project_would_hide_is_refused(spec: Spec, tmp_path: Path) -> None:
    layout = msgspec.structs.replace(spec.identity.layout, in_place=True)
    hidden = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, layout=layout))
    with pytest.raises(UsageError, match="is in the project, whose directory the pod mounts over it"):
        submit._check_claims(Opened(hidden, tmp_path), [], is_optional=True)
