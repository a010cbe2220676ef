"""Commands whose options get defaults from the project's `pyproject.toml`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from repro_env.cli.parser import Error
from repro_env.environment.source.request import CodeRequest
from repro_env.io import pyproject
from repro_env.launch.engines import JobOptions
from repro_env.policy import defaults
from repro_env.policy.due import TABLES
from repro_env.runs.start.request import RunOptions
from repro_env.schema import redact
from repro_env.schema.errors import UsageError
from repro_env.specs.argument import current_directory

_KINDS = (RunOptions, JobOptions, CodeRequest)


class ConfiguredCommand(TyperCommand):
    """A command that takes options which were not typed from the nearest `pyproject.toml`, except with --no-defaults."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line. The parameter `defaults` says which options are from the file."""
        words: list[str] = super().parse_args(ctx, args)
        ctx.params["defaults"] = () if ctx.params.get("no_defaults") else tuple(_complete(self, ctx))
        return words


def _complete(command: TyperCommand, context: Any) -> list[str]:
    """Set the options that the file has and the command line has not. Return what was set. Raises `UsageError`."""
    table, path = pyproject.read(current_directory())
    where = f"{path}: {pyproject.TABLE}"
    found = []
    shown: list[Any] = [param for param in command.params if not getattr(param, "hidden", False)]
    params = {name: param for param in shown for name in param.opts}
    for name, value in defaults.parse(table, _KINDS, TABLES, where).items():
        param = params.get(f"--{name}")
        resumes = name == "seed" and context.params.get("resume")  # with the seed of that run
        if param is None or resumes or context.get_parameter_source(param.name).name != "DEFAULT":
            continue
        try:
            if isinstance(value, list) and not param.multiple:
                raise UsageError(f"--{name} takes one value", where=where)
            many = [value] if param.multiple and isinstance(value, str) else value
            context.params[param.name] = param.type_cast_value(context, many)
        except (Error, UsageError) as error:
            text = error.what if isinstance(error, UsageError) else error.format_message()
            raise UsageError(redact.line(text), where=f"{where}.{name}", hint="correct the value in this file") from None
        if value is not False:
            text = "" if many is True else ", ".join(many) if isinstance(many, list) else many
            found.append(redact.line(f"{name} {text}".strip()))
    return found
