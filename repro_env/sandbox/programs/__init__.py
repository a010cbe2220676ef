"""Runners that start a program which makes the container, as clusters have them: one file per program."""
