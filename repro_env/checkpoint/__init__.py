"""Checkpoints from which a training goes on bit for bit: `Checkpoint`, and `loader` for samples that need no replay.

Standard library and Python 3.8 or newer; torch is imported when something is saved, loaded, or keyed. A public interface.
"""

from __future__ import annotations

from repro_env.checkpoint.errors import CheckpointError, CheckpointWarning
from repro_env.checkpoint.keyed import Keyed, KeyedSampler, loader
from repro_env.checkpoint.resuming import load
from repro_env.checkpoint.training import Checkpoint

__all__ = ["Checkpoint", "CheckpointError", "CheckpointWarning", "Keyed", "KeyedSampler", "load", "loader"]
