"""The Python environment: its interpreter, site directories, distributions, package sources, and paths outside its prefix."""
