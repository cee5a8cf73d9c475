"""Linear model over the ids and numbers that a `FeatureTransform` computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from torch_estimator.feature_column.dense_features import InputLayer, check_converted, columns_of_layer
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.feature_column.layout_builder import linear_layout
from torch_estimator.feature_column.layouts import LinearLayout
from torch_estimator.feature_column.table import Piece, Table, pool, presence

VARIABLE_SCOPE = "linear/linear_model"


class LinearModel(nn.Module):
    """Module that adds up a weight for each id, a weighted sum of numbers, and a bias. Weights start at zero.

    The weights of a column with several ids in a row are combined by `sparse_combiner`; the results of all columns are
    added up. If the data has weights for ids (`weighted_categorical_column`), the model's weights are multiplied by the
    data's.

    The weights of all categorical columns are one `Table`, whose variables are named
    ``<name>/<column>/weights``. The weights of a numeric, indicator or embedding column are the parameter
    ``<column>.weights`` ``[width, units]``; the bias is ``bias_weights`` ``[units]``. The vectors of an embedding
    column, ``<name>/<column>/embedding_weights``, are trained too. They do not start at zero.

    Args:
        columns: Columns of any kind, which the Estimator of a model that contains the module converts for it; or the
            layout of the linear half of a transform, `FeatureTransform.linear`.
        units: Number of outputs.
        sparse_combiner: ``"sum"``, ``"mean"`` or ``"sqrtn"``, as in `embedding_column`.
        name: First part of the names of variables and features; None for ``"linear_model"``, and for
            ``"linear/linear_model"`` with a layout. The layers of a model have different names.

    Raises:
        InvalidTypeError: An item is not a feature column, or the name is not a string.
        InvalidValueError: There are no columns, or two have one name.

    >>> model = fc.LinearModel([fc.numeric_column("x")], units=1)
    >>> sorted(name for name, _ in model.named_parameters())
    ['bias_weights', 'x.weights']
    >>> model({"linear_model/numeric": torch.tensor([[1.0], [2.0]])}).shape
    torch.Size([2, 1])
    """

    def __init__(
        self,
        columns: LinearLayout | Iterable[Any],
        units: int = 1,
        sparse_combiner: Combiner = "sum",
        name: str | None = None,
    ) -> None:
        super().__init__()
        if isinstance(columns, LinearLayout):
            self.columns, self.name, layout = None, name or VARIABLE_SCOPE, columns
        else:
            self.name = "linear_model" if name is None else name
            self.columns = columns_of_layer(columns, self.name, "LinearModel")
            layout = linear_layout(self.columns, self.name)
        self.layout = layout
        self.units = units
        self.sparse_combiner = sparse_combiner
        self._table = _table(layout, units, self.name) if layout.variables else None
        self._dense = InputLayer(layout.dense, self.name) if layout.dense.parts else None
        for part in layout.dense.parts:
            # Write into `_modules`, because `add_module` rejects the name of a method, such as "type", for a column.
            self._modules[part.name] = _DenseWeights(part.stop - part.start, units)
        self.bias_weights = nn.Parameter(torch.zeros(units))

    @property
    def table(self) -> Table | None:
        """Weights of all categorical columns."""
        return self._table

    @property
    def dense(self) -> InputLayer | None:
        """Layer that puts numeric, indicator and embedding columns side by side."""
        return self._dense

    @property
    def combines(self) -> bool:
        """Whether rows of some categorical column can have several ids, so that `sparse_combiner` has a use."""
        return bool(self.layout.bags) or self.layout.slots > len(self.layout.categorical)

    def forward(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return logits, float32 ``[N, units]``.

        Args:
            features: The features that the Estimator gives the module.
        """
        if self.columns is not None:
            check_converted(self.name, features)
        logits: torch.Tensor = self.bias_weights
        if self._table is not None:
            for part in self._categorical(self._table, features):
                logits = logits + part
        if self._dense is not None:
            precise = not self.training and self.units == 1
            product = precise_column if precise else torch.addmm
            logits = logits + product(torch.zeros_like(self.bias_weights), self._dense(features), self.dense_weights())
        return logits

    def _categorical(self, table: Table, features: Mapping[str, torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield parts of the logits: of all columns with a fixed number of ids together, then of each other column."""
        layout = self.layout
        if layout.categorical:
            rows = table(features[layout.feature])
            several = [one for one in layout.categorical if one.stop - one.start > 1]
            if self.sparse_combiner == "sum" or not several:
                yield rows.sum(1)
            else:
                sizes = [one.stop - one.start for one in layout.categorical]
                weights = presence(features[layout.feature], layout.rows)
                for mine, counted in zip(torch.split(rows, sizes, 1), torch.split(weights, sizes, 1), strict=True):
                    yield pool(mine, counted, self.sparse_combiner) if mine.shape[1] > 1 else mine[:, 0]
        for bag in layout.bags:
            ids = features[bag.feature]
            weights = presence(ids, bag.padding) if bag.weights is None else features[bag.weights]
            yield pool(table(ids), weights, self.sparse_combiner)

    def dense_weights(self) -> torch.Tensor:
        """Return the weights of numeric, indicator and embedding columns, ``[layout.dense.width, units]``."""
        modules = (self._modules[part.name] for part in self.layout.dense.parts)
        weights: list[torch.Tensor] = [m.weights for m in modules if isinstance(m, _DenseWeights)]
        return torch.cat(weights) if len(weights) > 1 else weights[0]


class _DenseWeights(nn.Module):
    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(width, units))


def precise_column(bias: torch.Tensor, inputs: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Return ``bias + inputs @ kernel`` for a kernel with one column, float32 ``[N, 1]``, summed up in float64.

    In float32 the result depends on the order of summation, which differs between libraries and, in torch, between
    batch sizes. With inputs as large as amounts in dollars, probabilities would differ by 4e-5, but those of an export
    must agree within 1e-5.
    """
    return torch.addmm(bias.double(), inputs.double(), kernel.double()).float()


def _table(layout: LinearLayout, units: int, scope: str) -> Table:
    return Table(
        [Piece(name=f"{scope}/{one.name}/weights", rows=one.rows) for one in layout.variables],
        units,
    )
