"""Search for secrets in everything that is bundled or leaves the machine. The patterns are in `schema.credentials`."""
