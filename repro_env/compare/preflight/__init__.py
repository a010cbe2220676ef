"""Can this machine run the image of a spec, and with the same numbers: a table with sources (`compatibility.toml`) and verdicts.

Everything here is pure: it judges facts about the capture and about this machine, which `api.preflight` collects.
"""
