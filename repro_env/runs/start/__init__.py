"""What a run starts from: its origin, the options of the user, the source, the data, and directories next to the project."""
