"""A compiled Keras 3 model, handed to `model_to_estimator`."""
