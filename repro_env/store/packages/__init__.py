"""Read wheels, conda packages and members of zip files, in parts and without unpacking them."""
