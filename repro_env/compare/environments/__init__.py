"""Two environments, or one environment and its spec: identity, paths, code, data and machines."""
