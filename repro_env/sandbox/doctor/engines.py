"""The findings of `doctor` about container engines, which are optional."""

from __future__ import annotations

from repro_env.io import engine as engines
from repro_env.sandbox.docker import runner
from repro_env.sandbox.doctor.diagnosis import Finding
from repro_env.schema.errors import EngineError

_TIMEOUT = 5.0
"""Seconds to wait for an answer."""


def findings() -> tuple[Finding, ...]:
    """A finding for the engine that `exec --runner docker` would use, and for the Podman engine if it is a different one."""
    address, finding = _find("")
    podman = engines.podman()
    return (finding, _find(podman)[1]) if podman and podman != address else (finding,)


def _find(address: str) -> tuple[str, Finding]:
    """Return the address of an engine, and the finding about it."""
    name = "container engine"
    try:
        with engines.connect(address, timeout=_TIMEOUT) as engine:
            address, facts = engine.address, engine.facts
            name = f"{facts.product.lower()} engine"
            runner.check_engine(engine)
            runtime = "with" if facts.product == "Docker" and "nvidia" in facts.runtimes else "without"
            text = f"{facts.product} {facts.version} at {address}, {runtime} the NVIDIA runtime"
            return address, Finding(name=name, state="ok", text=text)
    except EngineError as error:
        address = error.where or address
        text = f"{error.what} ({address}); only --runner docker and --output docker: need an engine"
        return address, Finding(name=name, state="absent", text=text, fix=error.hint)
