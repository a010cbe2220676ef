"""Checkpoints from which a training resumes bit for bit: `Checkpoint`, and `loader` for samples that need no replay.

This is a public interface. It supports Python 3.8 and newer, and needs only the standard library; torch is imported when it
is needed.
"""

from __future__ import annotations

from repro_env.checkpoint.directory import load
from repro_env.checkpoint.errors import CheckpointError, CheckpointWarning
from repro_env.checkpoint.keyed import Keyed, KeyedSampler, loader
from repro_env.checkpoint.training import Checkpoint

__all__ = ["Checkpoint", "CheckpointError", "CheckpointWarning", "Keyed", "KeyedSampler", "load", "loader"]
