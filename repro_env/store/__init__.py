"""The local content-addressed cache of one user: blobs, unpacked layers, packages, specs and facts.

Every entry is complete or absent, and is written under its digest. Leases keep garbage collection away from what is in use.
"""
