"""Records on disk: outputs, notes of the hooks, metrics, parameters, annotations and verdicts."""
