"""Checkpoints on disk: their format, reading, background writing, retention, and the lease of a model directory."""
