"""Where an image can be sent: an OCI layout, an archive, SquashFS, a container engine or a registry."""
