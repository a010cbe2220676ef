"""The version of repro-env."""

__version__ = "0.1.0"
