"""repro-env: the rebuilt environment is the captured one, file for file, or the command fails and says why."""

__version__ = "0.1.0"
