"""Programs that show torch-estimator at work; run them from the repository's root."""
