"""Training the same model in several processes at once."""
