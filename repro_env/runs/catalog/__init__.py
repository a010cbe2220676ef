"""A catalog: the runs of a team, in a repository of a registry or in a shared directory, without a server of its own.

`part.py` is the format, `place.py` what a catalog must be able to do, `directory.py` and `repository.py` do it, and `contents.py`,
`sending.py` and `receiving.py` move runs. Which runs and outputs are moved is decided in `api/runsshare.py`.
"""
