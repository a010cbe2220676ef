"""Tags of a run for trackers: `repro_env.tags()`. Supports Python 3.8 and uses only the standard library."""

from __future__ import annotations

import os


def tags() -> dict[str, str]:
    """Return the spec's digest and the run's id as tags for a tracker: `repro_env_spec` and `repro_env_run`.

    Outside of a run of repro-env, the result is empty. `repro-env verify` knows the id of each run, so it ignores that the id
    differs between a run and its repetition.
    """
    names = {"repro_env_spec": "REPRO_ENV_SPEC", "repro_env_run": "REPRO_ENV_RUN"}
    return {tag: os.environ[name] for tag, name in names.items() if os.environ.get(name)}
