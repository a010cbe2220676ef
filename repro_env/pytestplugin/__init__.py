"""The pytest plug-in: a fixture with which the tests of a project compare their numbers with recorded ones.

It runs in the environment of these tests, so it needs only pytest and the standard library. NumPy and torch are used if a value
comes from them, and are never imported here.
"""
