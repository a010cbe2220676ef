"""Attempts to reach the host or the caller from inside a run, written by an adversary who knows what was planted.

Runs as the user's script: `repro-env exec probe.py [CATEGORY...]`. Standard library only, Python 3.8 or newer. The attempts are
in `attempts/`, a module for each subject. `probe_hints.json` (see `host.py`) has everything that an attacker could know or guess
about the caller, except the contents of the canaries. Writes `probe_results.json` in the current directory: for each attempt its
name, category, status, evidence and duration. Status:

    reached   something of the host, the caller or the kernel's administration answered
    sent      the call went through; only the host can tell whether anything arrived there
    refused   an error (its errno is the evidence), or the call did nothing
    absent    there is nothing of that kind here

Every attempt runs in a process of its own and ends after two seconds. One that succeeds does no harm: destructive calls are made
with arguments that fail after the permission check.
"""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    importlib.import_module("attempts.runner").main(sys.argv[1:])
