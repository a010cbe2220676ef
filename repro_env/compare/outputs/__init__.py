"""The outputs of two runs: pairs of files, readers of formats, ignored differences with their reasons, and the verdict."""
