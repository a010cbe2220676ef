"""Files for other tools next to a spec: lock files, SBOM and provenance."""
