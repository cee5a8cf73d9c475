"""What a run keeps beside its checkpoints: locks for one writer at a time, and state files that others read."""
