"""Operations on strings that an export can compute, as in `tf.strings`.

The functions of this module take arrays and return arrays, so that a function made of them can be given to
`Dataset.map`. The same function can be given to `te.serving_input.receiver`, which calls it with an `Expression` in
place of each array: the operations then become ONNX nodes of the export. Both ways give the same values.

>>> te.strings.split(["red green", "blue"]).to_pylist()
[['red', 'green'], ['blue']]
"""

from torch_estimator.strings.expression import Expression
from torch_estimator.strings.functions import join, lookup, lower, regex_full_match, split, to_number, upper, where

__all__ = ["Expression", "join", "lookup", "lower", "regex_full_match", "split", "to_number", "upper", "where"]
