"""A file that is not what its format says."""


class UnreadableError(Exception):
    """A file is not what its format says; the text says why."""
