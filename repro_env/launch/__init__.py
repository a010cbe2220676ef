"""Start a run somewhere else: one file for each engine, all behind `engine.Engine`.

An engine writes what its scheduler reads, submits it, and reports the job's state and output. How a command runs on its node is
in `sandbox` and never here; records and their files are in `runs`.
"""
