"""What a run starts from: the request of the user, the source, the data, and directories next to the project."""
