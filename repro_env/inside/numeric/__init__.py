"""Asks PyTorch and the numeric libraries below it what they are, once they are loaded.

Runs in other people's interpreters: the standard library only, Python 3.8. Under a name that no package of theirs has.
"""
