"""The live environment: what it is, and its lock, from which the image is made.

`lock` is the order of steps. Subjects: python, conda, wheels, source, git, machine, system libraries, secrets. The environment
is only read; nothing is installed or imported in it except by probes (`guest`) in its own interpreter.
"""
