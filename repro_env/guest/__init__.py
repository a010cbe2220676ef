"""Files that run in other people's Python: probes, hooks of a run, the tensor reader and the installer.

Standard library only, Python 3.8 and later, and no imports of other rooms: the files are copied or mounted as they are.
`oci` imports `wheelrule.py`, so that images and the installer have one rule.
"""
