"""Checkpoints: written, read, kept and removed."""
