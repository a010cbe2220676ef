"""What a job can request from Kubernetes, besides the options of all engines, and the claims that it mounts."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from repro_env.launch.engine import Settings
from repro_env.schema.errors import UsageError
from repro_env.schema.patterns import lazy
from repro_env.schema.run import Claim

PRODUCT = "nvidia.com/gpu.product"
"""Label of nodes (NVIDIA GPU feature discovery)."""
_OBJECT = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_CLAIM = lazy(rf"({_OBJECT})((?:/(?!\.\.?(?:/|\Z))[^/]+)*)")
_Object = Annotated[str, Meta(pattern=rf"\A{_OBJECT}\Z")]
_Label = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")]


class KubernetesSettings(Settings, frozen=True, kw_only=True):
    """See `Settings`."""

    namespace: Annotated[
        _Object | None,
        Meta(description="Submit the job to this namespace. Default: that of kubectl's current context."),
    ] = None
    gpu_product: Annotated[
        _Label | None,
        Meta(description=f"Run on nodes with this model of GPU, by their label {PRODUCT} (`kubectl get nodes -L {PRODUCT}`)."),
    ] = None
    registry_secret: Annotated[
        _Object | None,
        Meta(description="Pull the image and push the run with the login in this Secret (`kubectl get secrets`)."),
    ] = None
    shared: Annotated[
        str | None,
        Meta(description="Share the run between --nodes on this PersistentVolumeClaim (ReadWriteMany): CLAIM[/PATH]."),
    ] = None
    user: Annotated[
        Literal["caller", "cluster"],
        Meta(
            description="caller (default): run as your user and group. cluster: as those that the cluster assigns, such as OpenShift."
        ),
    ] = "caller"


def parse_claim(kind: Literal["data", "checkpoints"], source: str, target: str) -> Claim:
    """Return the claim of `--data CLAIM[/PATH]:DST`, or of `--checkpoints`. Raises `UsageError`."""
    match = _CLAIM.fullmatch(source.rstrip("/"))
    if match is None or not target:
        hint = f"for example: --{kind} imagenet/v2:/data/imagenet, for the directory v2 of the claim imagenet"
        what = f"with --on kubernetes, --{kind} must be CLAIM[/PATH]:DST, with the name of a PersistentVolumeClaim"
        raise UsageError(f'{what} (got "{source.rstrip("/")}{":" * bool(target)}{target}")', hint=hint)
    return Claim(kind=kind, name=match[1], path=match[2][1:], target=target.rstrip("/"))


def shared_claim(settings: KubernetesSettings, nodes: int) -> Claim | None:
    """Return the claim on which several nodes share the run; None for one node. Raises `UsageError`."""
    value = settings.shared
    if nodes == 1 and value is not None:
        raise UsageError("--job shared requires --nodes", hint="a run on one node needs no shared directory: leave it out")
    if nodes == 1:
        return None
    match = _CLAIM.fullmatch((value or "").rstrip("/"))
    if match is None:
        hint = "for example: --job shared=scratch/runs, for the directory runs of a claim that several nodes can write (ReadWriteMany)"
        what = "the nodes of a job share the run on a PersistentVolumeClaim: --job shared=CLAIM[/PATH]"
        raise UsageError(f'{what} (got "{value}")' if value is not None else what, hint=hint)
    return Claim(kind="checkpoints", name=match[1], path=match[2][1:], target="")
