"""MNIST: a convolutional network written as a `model_fn`, its input sharded by `input_context`."""
