"""Make the layers of an image: find wheels, packages and bundled trees, and unpack or send them in worker processes."""
