"""Runs and their records: what a run starts from, how it is executed, what is recorded, lineage and retention.

A record is written once and never changed. Runs are compared in `compare`; processes and mounts are in `sandbox`.
"""
