"""Models that need only their columns named: linear, deep, and both. Each is a ``model_fn`` and nothing else."""
