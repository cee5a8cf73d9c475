"""Training, evaluation and prediction in one process: the model, its optimizers and input, and the training loop.

`training.Training` holds what one training needs, and `loop.run_training` runs it. A strategy provides the object
that takes the steps. This package imports neither the strategies nor the compiler.
"""
