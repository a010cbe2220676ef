"""The base of an image: system libraries, the interpreter and package databases of this machine."""
