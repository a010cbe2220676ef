"""Grid Engine: a job script for `qsub`, states from `qstat` and `qacct`.

`settings` are what `--job` can set, `script` has the directives, `start.sh` starts the processes of a run on the node, `client` asks
Grid Engine's commands, and `states` parses their answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from repro_env.launch.engine import Client, NodeJob, Resources, State
from repro_env.launch.gridengine import script
from repro_env.launch.gridengine.client import GridEngine, states_of
from repro_env.launch.gridengine.settings import GridEngineSettings
from repro_env.launch.nodes import NodeEngine
from repro_env.schema import redact
from repro_env.schema.run import Job


class GridEngineEngine(NodeEngine[GridEngineSettings]):
    """See `Engine`."""

    name = "gridengine"
    settings = GridEngineSettings
    client_type = GridEngine
    prefixes = ("SGE_",)

    def requests_gpus(self, settings: GridEngineSettings, template: str) -> bool:
        """See `Engine`."""
        return script.requests_gpus(settings, template)

    def script(self, job: NodeJob, resources: Resources, settings: GridEngineSettings, template: str = "") -> str:
        """See `NodeEngine`."""
        return script.render(job, resources, settings, template)

    def states(self, jobs: Sequence[tuple[Client, str]]) -> list[State]:
        """See `Engine`."""
        return states_of(cast("Sequence[tuple[GridEngine, str]]", jobs))

    def job_of(self, environ: Mapping[str, str]) -> Job | None:
        """See `Engine`."""
        if "SGE_ROOT" not in environ or not (job := environ.get("JOB_ID", "")).isdecimal():
            return None
        restarts = environ.get("REPRO_ENV_JOB_RESTARTS", "").strip()  # of `start.sh`
        node = redact.line(environ.get("HOSTNAME", ""))
        return Job(engine=self.name, id=job, node=node, restarts=int(restarts) if restarts.isdecimal() else 0)


ENGINE = GridEngineEngine()
