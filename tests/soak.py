"""Keep the counts of long tests (`make soak`)."""

from __future__ import annotations

import datetime
import json
from pathlib import Path


def note(name: str, facts: dict[str, object]) -> None:
    """Add one result to today's file."""
    directory = Path(__file__).parents[1] / "benchmarks" / "results"
    directory.mkdir(exist_ok=True)
    path = directory / f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}-soak.json"
    held = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**held, name: facts}, indent=2, sort_keys=True) + "\n")
