"""Records on disk: outputs, notes of the hooks, metrics, recipes, annotations, verdicts, and the index of all runs."""
