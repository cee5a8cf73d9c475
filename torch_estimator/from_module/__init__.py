"""Models that wrap a user's `torch.nn.Module`, optionally with feature columns in front of it."""
