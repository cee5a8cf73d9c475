"""Models that users bring: any `nn.Module`, with feature columns in front of it where it wants them."""
