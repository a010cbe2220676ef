"""The layout of a conda package."""

from __future__ import annotations

from repro_env.schema.environment import Layout

NEW = "/home/ann/envs/ml"
LAYOUT = Layout(
    prefix=NEW,
    in_place=True,
    purelib="lib/python3.11/site-packages",
    platlib="lib/python3.11/site-packages",
    scripts="bin",
    headers="include/python3.11",
    python=f"{NEW}/bin/python",
)
