"""Frozen types that all rooms share: the spec, environments, images, runs, errors, and how values become bytes.

Nothing here touches files, processes or the network. Strings are checked when they are parsed, and secrets are removed by `redact`.
"""
