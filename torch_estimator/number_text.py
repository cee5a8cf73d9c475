"""Regular expressions of numbers in text, for Python, RE2 and exported graphs: onnxruntime would read "12abc" as 12."""

from __future__ import annotations

_SPACE = r"[ \t\r\n]*"

FLOAT = rf"{_SPACE}[+-]?(([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?|nan|NaN|inf|Infinity){_SPACE}"
INTEGER = rf"{_SPACE}[+-]?[0-9]+{_SPACE}"

NOT_A_NUMBER = "has text that is not a number"
"""End of the name of a node that fails on other text. The name begins with the inputs that the text comes from."""
