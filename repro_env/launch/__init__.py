"""Start a run somewhere else: one directory for each engine, all listed in `engines` and behind the types of `engine`.

An engine declares its settings, writes what its scheduler reads, submits it, and reports the job's state and output. How a command
runs on its node is in `sandbox` and never here; records and their files are in `runs`.
"""
