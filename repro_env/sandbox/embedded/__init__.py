"""The runner without an engine: namespaces, mounts, the first process, and the filter of system calls."""
