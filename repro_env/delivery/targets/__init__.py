"""Where an image can be sent: an OCI layout, an archive, a container engine or a registry."""
