"""The version of repro-env."""

__version__ = "0.2.0"
