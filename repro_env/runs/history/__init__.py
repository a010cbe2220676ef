"""Find the code and the spec of an old run: in the store, next to the runs, or in the history of a git repository."""
