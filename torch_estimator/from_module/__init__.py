"""Models of `Estimator.from_module`: a user's `torch.nn.Module`, optionally with feature columns in front."""
