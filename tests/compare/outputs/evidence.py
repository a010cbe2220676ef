"""What is known of two runs, on two days."""

from __future__ import annotations

from repro_env.compare.outputs.evidence import Evidence

DAY = 86400.0
THEN = Evidence(started=1782864000.0, ended=1782864000.0 + DAY - 1)
NOW = Evidence(started=1782950400.0, ended=1782950400.0 + DAY - 1)
"""2026-07-01 and 2026-07-02, in UTC."""
