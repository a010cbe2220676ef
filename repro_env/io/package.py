"""The files of repro-env itself on this machine."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The directory of the package. Runs mount it read-only (`oci.paths.SEEDS`)."""
GUEST = ROOT / "guest"
"""The files that run in other interpreters."""


def templates() -> Path:
    """Return the directory of the templates: in the installed package, or next to it in a checkout."""
    shipped = ROOT / "_templates"
    return shipped if shipped.is_dir() else ROOT.parent / "templates"
