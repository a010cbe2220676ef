"""What a project decides for its runs, in `[tool.repro-env]` of its `pyproject.toml`: defaults of options, and rules.

Everything here is pure: `api.policy` reads the project and the records. A project may be a stranger's, so its file is data: no default
runs or mounts anything, and no rule changes what a run does.
"""
