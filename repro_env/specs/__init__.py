"""From a word of the user to a spec: a directory, a bundle file, or a reference in a registry."""
