"""Can this machine run the image of a spec, and with the same numbers: rules with sources (`rules.toml`) and verdicts.

Everything here is pure: it judges facts about the capture and about this machine, which `api.preflight` collects.
"""
