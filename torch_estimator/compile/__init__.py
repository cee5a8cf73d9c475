"""The training step as machine code: traced once, compiled beside the training, kept for later runs."""
