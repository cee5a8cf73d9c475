"""One training in one process: its model, optimizers, input and steps, the loop over them, and evaluation.

`training.Training` holds what one training needs, and `loop.run_training` runs it. Strategies bring the steps; this
package knows neither them nor compiled code.
"""
