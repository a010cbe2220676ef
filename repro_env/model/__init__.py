"""Frozen types: what every other folder passes around. No file, process or socket is touched here."""
