"""The image as a pure function: files -> entries -> tar -> layers -> config -> image ID, by versioned rules.

Rules that decide digests never change; each has a version and golden digests. Nothing here touches files or the network.
"""
