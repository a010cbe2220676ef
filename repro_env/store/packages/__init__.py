"""Read wheels and conda packages."""
