"""The runner in a container of Docker or Podman."""
