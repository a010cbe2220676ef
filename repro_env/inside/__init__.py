"""Files that run in somebody else's Python: standard library only, Python 3.8 and later, nothing of ours imported."""
