"""The Dockerfile that builds the same environment with a container engine alone, and the files that it needs."""
