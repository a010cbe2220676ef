"""Run one command in the image: mounts, processes, signals, streams, and what the command wrote.

There are three runners: `embedded` (namespaces), `docker` (a container engine) and `host` (no isolation). `plan` decides what a run
sees, without touching the machine; the runners only do it.
"""
