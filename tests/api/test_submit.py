"""What is refused before a job of Kubernetes is submitted. tests/e2e has jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api import submit
from repro_env.launch.kubernetes.settings import parse_claim
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


@pytest.mark.parametrize(
    ("request_", "requests_gpus", "gpus"),
    [(None, False, 0), (None, True, "all"), (2, False, 2), (0, True, 0), ("all", True, "all")],
)
def test_a_run_gets_the_gpus_that_its_job_requests(request_: Any, requests_gpus: bool, gpus: Any) -> None:
    assert submit._check_gpus(request_, requests_gpus=requests_gpus) == gpus


@pytest.mark.parametrize("request_", ["all", "0,1", "GPU-1"])
def test_gpus_of_a_job_are_not_requested_by_name(request_: str) -> None:
    with pytest.raises(UsageError, match="does not say how many GPUs"):
        submit._check_gpus(request_, requests_gpus=False)
