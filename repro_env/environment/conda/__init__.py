"""Conda packages: the metadata of installed ones, and the archives that they came from."""
