"""Run one command in the image: mounts, processes, signals, streams, and what the command wrote.

The runners are `embedded` (namespaces), `docker` (a container engine), `programs` (ch-run and apptainer) and `host` (no isolation).
`plan` decides what a run sees, without touching the machine; the runners only do it.
"""
