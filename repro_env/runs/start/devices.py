"""The GPUs of a run: by the option `--gpus`, or all if the environment was captured with GPUs."""

from __future__ import annotations

from collections import Counter

from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import gpus
from repro_env.schema.errors import UsageError
from repro_env.schema.progress import Tell
from repro_env.schema.run import Gpus
from repro_env.schema.spec import Spec


def choose(options: RunOptions, spec: Spec, tell: Tell) -> Gpus:
    """Return the GPUs of a run. If the capture had GPUs and this machine has none, print a sentence.

    Raises `UsageError` for an invalid request, `RunError` for one that cannot be met.
    """
    request = gpus.parse(str(options.gpus)) if options.gpus is not None else None
    if options.runner == "host" and request is not None:
        raise UsageError(f"the host runner uses all GPUs and does not support --gpus {options.gpus}", hint="leave out --gpus")
    captured = [device.name for device in spec.observed.frameworks.devices] or spec.observed.host.gpus
    if request == 0 or (request is None and not captured):
        return Gpus()
    machine = gpus.look(options.environ)
    if request is None and (reason := gpus.absence(machine)):
        names = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in Counter(captured).items())
        tell(f"this run has no GPU, and the environment was captured with {names}: {reason}")
        return Gpus()
    if options.runner == "host":
        return gpus.present(machine)
    return gpus.choose("all" if request is None else request, machine)
