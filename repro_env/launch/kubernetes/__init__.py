"""Kubernetes: a `batch/v1` Job, through `kubectl` (decision 0050).

`settings` are what `--job` can set, `manifest` describes the job, `client` asks kubectl, and `states` parses its answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.launch.engine import PodEngine, PodJob, Processes, Resources
from repro_env.launch.kubernetes import manifest
from repro_env.launch.kubernetes.client import Kubernetes, current_namespace
from repro_env.launch.kubernetes.settings import KubernetesSettings, parse_claim
from repro_env.launch.kubernetes.template import parse
from repro_env.schema import redact
from repro_env.schema.environment import Variable
from repro_env.schema.run import Claim, Job


class KubernetesEngine(PodEngine[KubernetesSettings]):
    """See `Engine`."""

    name = "kubernetes"
    settings = KubernetesSettings

    def complete(self, settings: KubernetesSettings, environ: Mapping[str, str]) -> KubernetesSettings:
        """See `Engine`: with the namespace."""
        return msgspec.structs.replace(settings, namespace=settings.namespace or current_namespace(environ))

    def check_template(self, template: str) -> None:
        """See `Engine`."""
        parse(template)

    def requests_gpus(self, settings: KubernetesSettings, template: str) -> bool:  # noqa: ARG002
        """See `Engine`."""
        return manifest.requests_gpus(template)

    def claim(self, kind: Literal["data", "checkpoints"], source: str, target: str) -> Claim:
        """See `PodEngine`."""
        return parse_claim(kind, source, target)

    def script(self, job: PodJob, resources: Resources, settings: KubernetesSettings, template: str = "") -> str:
        """See `PodEngine`. Returns JSON."""
        return manifest.render(job, resources, settings, template)

    def client(
        self, directory: Path, environ: Mapping[str, str], *, image: str = "", variables: Sequence[Variable] = ()
    ) -> Kubernetes:
        """See `Engine`."""
        return Kubernetes(directory, environ, image, variables=variables)

    def job_of(self, environ: Mapping[str, str]) -> Job | None:
        """See `Engine`."""
        if not (name := environ.get(manifest.JOB)):
            return None
        return Job(engine=self.name, id=redact.line(name), node=redact.line(environ.get(manifest.NODE, "")))

    def processes_of(self, environ: Mapping[str, str]) -> Processes | None:
        """See `Engine`: the pods of a job with several nodes."""
        if manifest.SHARED not in environ:
            return None
        return Processes(
            names=("RANK", "WORLD_SIZE", "LOCAL_RANK"), key=environ[manifest.SHARED], machines=environ.get("WORLD_SIZE", "")
        )


ENGINE = KubernetesEngine()
