"""Checkpoints on disk: their format, reading, background writing and retention."""
