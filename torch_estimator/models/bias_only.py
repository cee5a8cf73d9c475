"""The host half and the module of a model that reads no column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torch_estimator.feature_column.raw_values import RawColumn
from torch_estimator.feature_column.transform import FeatureTransform

ROWS = "baseline/rows"


class RowCount(FeatureTransform):
    """Says how many rows there are, and nothing else: ``"baseline/rows"``, float32 ``[N, 0]``."""

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, columns: Mapping[str, RawColumn]) -> dict[str, npt.NDArray[Any]]:
        """Takes any columns."""
        return {ROWS: np.empty((len(next(iter(columns.values()))), 0), dtype=np.float32)}


class Bias(nn.Module):
    """The scope that tf.estimator gives the baseline's variable.

    Attributes:
        bias: float32 ``[logits_dimension]``, zero at the start.
    """

    def __init__(self, logits_dimension: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(logits_dimension))

    def forward(self, rows: int) -> Tensor:
        """float32 ``[rows, logits_dimension]``."""
        return self.bias.repeat(rows, 1)


class Baseline(nn.Module):
    """The same logits for every example."""

    variable_separator = "/"
    multiply_adds_per_row = 0
    rows_are_independent = True

    def __init__(self, logits_dimension: int) -> None:
        super().__init__()
        self.baseline = Bias(logits_dimension)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Logits, float32 ``[N, logits_dimension]``."""
        return self.baseline(features[ROWS].shape[0])  # type: ignore[no-any-return]
