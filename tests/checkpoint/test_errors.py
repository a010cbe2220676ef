"""The errors of checkpoints, which one rank sends to the others."""

from __future__ import annotations

import pickle

import pytest

from repro_env.checkpoint import CheckpointError
from repro_env.checkpoint.manifest import OtherVersionError


@pytest.mark.parametrize("kind", [CheckpointError, OtherVersionError])
def test_another_rank_raises_the_same_error(kind: type[CheckpointError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what", where="where", hint="hint")))
    assert type(error) is kind
    assert (error.what, error.where, error.hint) == ("what", "where", "hint")
    assert str(error) == "where: what (hint)"
