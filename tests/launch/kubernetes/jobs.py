"""A job, and the answers of the API about its pods."""

from __future__ import annotations

from typing import Any

import msgspec

from repro_env.launch.engine import PodJob, Resources
from repro_env.launch.kubernetes import ENGINE
from repro_env.launch.kubernetes.manifest import INDEX
from repro_env.launch.kubernetes.settings import KubernetesSettings, parse_claim

RUN = "0197c1d2-0000-7000-8000-00000000abcd"
DIGEST, OTHER, CONFIG = (f"sha256:{letter * 64}" for letter in "dec")
JOB = PodJob(
    run_id=RUN,
    name="train-0000abcd",
    image=f"registry.example.com/team/digits@{DIGEST}",
    job_image=f"registry.example.com/team/digits@{OTHER}",
    interpreter="/usr/bin/python3.11",
    command=("exec", "--gpus", "2", "--", "train.py", "$(HOME)", "two\nlines"),
    workspace="/home/ann/digits",
    claims=(parse_claim("data", "imagenet/v2", "/data/imagenet"), parse_claim("checkpoints", "runs", "/home/ann/digits/ck")),
    protected=("/opt/env",),
    given=("WANDB_API_KEY",),
    uid=1000,
    gid=100,
)
ALL = Resources(gpus=2, cpus=0.5, memory=8 << 30, seconds=3600)
SETTINGS = KubernetesSettings(namespace="vision", gpu_product="NVIDIA-H100-80GB-HBM3", registry_secret="registry")
NODES = (msgspec.structs.replace(ALL, nodes=2), msgspec.structs.replace(SETTINGS, shared="scratch/lab"))
"""A job with two nodes."""


def render(job: PodJob = JOB, resources: Resources = ALL, settings: KubernetesSettings = SETTINGS, template: str = "") -> str:
    return ENGINE.script(job, resources, settings, template)


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "train-0000abcd-x7x7x", "creationTimestamp": "2026-11-28T01:00:00Z"}, "status": status}


def pods(*statuses: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of an indexed Job."""
    return [
        {
            "metadata": {
                "name": f"train-{index}",
                "creationTimestamp": "2026-11-28T01:00:00Z",
                "annotations": {INDEX: str(index)},
            },
            "status": status,
        }
        for index, status in enumerate(statuses)
    ]


def run(image: str = DIGEST, **state: Any) -> list[dict[str, Any]]:
    return [{"name": "run", "imageID": f"registry.example.com/team/digits@{image}", "state": state}]


def prepare(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "prepare", "state": state}]
