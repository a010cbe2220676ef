"""The GPUs of a run: by the option `--gpus`, or all if the environment was captured with GPUs."""

from __future__ import annotations

from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import gpus
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Gpus
from repro_env.schema.spec import Spec


def choose(options: RunOptions, spec: Spec) -> tuple[Gpus, str]:
    """Return the GPUs of a run, and why it has none if the capture had GPUs and the user did not choose; otherwise "".

    Raises `UsageError` for an invalid request, `RunError` for one that cannot be met.
    """
    # The command line has parsed `none` as 0, and `verify` has the number of the record.
    request = gpus.parse(str(options.gpus)) if options.gpus not in (None, 0) else options.gpus
    if not options.traits.is_isolated and request is not None:
        raise UsageError(f"the host runner uses all GPUs and does not support --gpus {options.gpus}", hint="leave out --gpus")
    captured = [device.name for device in spec.observed.frameworks.devices] or spec.observed.host.gpus
    if request == 0 or (request is None and not captured):
        return Gpus(), ""
    machine = gpus.look(options.environ)
    if request is None and (reason := gpus.absence(machine)):
        return Gpus(), reason
    if not options.traits.is_isolated:
        return gpus.present(machine), ""
    if options.member.is_alone or options.traits.is_in_container:  # each pod has GPUs of its own
        return gpus.choose("all" if request is None else request, machine), ""
    if request not in (None, "all"):
        hint = "request them from the launcher, for example with srun --gpus-per-task"
        raise UsageError(f"--gpus {options.gpus} cannot choose the GPUs of several processes", hint=hint)
    return gpus.share(gpus.choose("all", machine), machine), ""
