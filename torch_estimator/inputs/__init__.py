"""Input functions for numpy arrays and pandas DataFrames, and the `InputContext` that describes the cluster."""

from torch_estimator.inputs.input_fn import InputContext
from torch_estimator.inputs.numpy_input_fn import numpy_input_fn
from torch_estimator.inputs.pandas_input_fn import pandas_input_fn

__all__ = ["InputContext", "numpy_input_fn", "pandas_input_fn"]
