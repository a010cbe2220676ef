"""The live environment: what it is, and its lock, from which the image is made.

`live` inspects, `lock` identifies and compares, `assembly` makes the spec. Subjects: python, conda, wheels, source, git, machine,
system libraries, secrets. The environment is only read; nothing is installed or imported in it except by probes (`guest`) in
its own interpreter.
"""
