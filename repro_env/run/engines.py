"""What `doctor` says of container engines: one is not needed, so a machine without is well too."""

from __future__ import annotations

from collections.abc import Mapping

from repro_env.io import engine as engines
from repro_env.model.codec import Frozen
from repro_env.model.errors import EngineError
from repro_env.run import docker
from repro_env.run.diagnosis import Finding

_PATIENCE = 5.0
"""Seconds for an answer."""


class Met(Frozen, frozen=True, kw_only=True):
    """An engine that was asked."""

    address: str
    product: str = ""
    """Empty where none answered."""
    version: str = ""
    gpus: bool = False
    """It has a runtime for them."""
    problem: str = ""
    """Why the docker runner cannot use it."""
    fix: str = ""


def meet(environ: Mapping[str, str]) -> tuple[Met, ...]:
    """The engine that `exec --runner docker` would use, and a Podman socket beside it."""
    found = [_ask("", environ)]
    podman = engines.podman(environ)
    if podman and podman != found[0].address:
        found.append(_ask(podman, environ))
    return tuple(found)


def _ask(address: str, environ: Mapping[str, str]) -> Met:
    try:
        with engines.opened(address, environ, timeout=_PATIENCE) as engine:
            facts = engine.facts
            met = Met(
                address=engine.address,
                product=facts.product,
                version=facts.version,
                gpus=facts.product == "Docker" and "nvidia" in facts.runtimes,
            )
            try:
                docker.suitable(engine)
            except EngineError as error:
                return Met(address=met.address, product=met.product, version=met.version, problem=error.what, fix=error.hint)
            return met
    except EngineError as error:
        return Met(address=error.where or address, problem=error.what, fix=error.hint)


def findings(met: tuple[Met, ...]) -> tuple[Finding, ...]:
    """A line for each. Pure."""
    return tuple(_finding(one) for one in met)


def _finding(one: Met) -> Finding:
    name = f"{one.product.lower() or 'container'} engine"
    if not one.product:
        text = f"{one.problem} ({one.address}): --runner docker and --builder docker are not to be had"
        return Finding(name=name, state="absent", text=text, fix=one.fix)
    if one.problem:
        text = f"{one.product} {one.version} at {one.address} is not for --runner docker: {one.problem}"
        return Finding(name=name, state="absent", text=text, fix=one.fix)
    gpus = ", with a runtime for GPUs" if one.gpus else ", no runtime for GPUs by name"
    return Finding(name=name, state="ok", text=f"{one.product} {one.version} at {one.address}{gpus}", fix="")
