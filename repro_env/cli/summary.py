"""What every answer for programs says of a run that it names. Its keys are a contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repro_env.catalog.index import Summary


def facts(run: Summary) -> dict[str, object]:
    return {
        "id": run.id,
        "short": run.short,
        "folder": run.folder,
        "started": run.started,
        "command": list(run.command),
        "state": run.state,
        "exit_code": run.exit_code,
        "tags": None if run.tags is None else list(run.tags),
    }
