"""The use cases, one file for each command: the commands and Python code call the same functions.

A use case puts steps in order and returns values; it prints nothing. How a step is done is decided in the rooms below.
"""
