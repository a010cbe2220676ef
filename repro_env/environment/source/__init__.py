"""The code and data of a project: which files belong to the snapshot, which are left out, and why."""
