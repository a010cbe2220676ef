"""The traces of two training runs, and the first step in which they differ."""
