"""Modules that turn the ids and numbers of feature columns into the input tensor of a network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.checks import as_items
from torch_estimator.feature_column.layout_builder import input_layout
from torch_estimator.feature_column.layouts import Bag, EmbeddingTableLayout, InputLayout
from torch_estimator.feature_column.table import Piece, Table, clip_norms, pool, presence
from torch_estimator.initial_values import Distribution, truncated_normal

VARIABLE_SCOPE = "dnn/input_from_feature_columns/input_layer"


class InputLayer(nn.Module):
    """Module that concatenates the numbers, counts of ids and embeddings of columns, in bytewise order of names.

    The embeddings of one dimension are one `Table`. Its variables are named
    ``dnn/input_from_feature_columns/input_layer/<column>/embedding_weights``. If columns share embeddings, the name of
    the collection replaces that of the column.

    Args:
        layout: The layout of the network half, `FeatureTransform.dnn`.
        scope: First part of the names of variables.

    Attributes:
        width: Numbers in each row of the output.

    >>> columns = [fc.numeric_column("x", shape=2), fc.numeric_column("a")]
    >>> layer = fc.InputLayer(fc.FeatureTransform(dnn_columns=columns).dnn)
    >>> layer({"dnn/numeric": torch.tensor([[1.0, 2.0, 3.0]])})
    tensor([[1., 2., 3.]])
    """

    def __init__(self, layout: InputLayout, scope: str = VARIABLE_SCOPE) -> None:
        super().__init__()
        self.layout = layout
        self.width = layout.width
        self.tables = nn.ModuleList(make_table(table, scope) for table in layout.tables)
        self._runs = _runs(layout)
        self._sizes = {source: [width for other, width in self._runs if other == source] for source, _ in self._runs}

    def forward(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the input of a network, float32 ``[N, width]``.

        Args:
            features: Ids and numbers that the `FeatureTransform` returns, as tensors; lists as arrays ``[N, L]``.
        """
        whole: dict[str, torch.Tensor] = {}
        if self.layout.numeric:
            whole[self.layout.numeric_feature] = features[self.layout.numeric_feature]
        if self.layout.indicators:
            key = self.layout.indicator_feature
            whole[key] = _counts(features[key], self.layout.indicator_width)
        for bag in self.layout.indicator_bags:
            whole[bag.feature] = _counts(features[bag.feature], bag.padding, _weights(bag, features))
        for table, layout in zip(self.tables, self.layout.tables, strict=True):
            if layout.placed:
                whole[layout.feature] = _embeddings(
                    _looked_up(table, layout, layout.feature, features), features, layout
                )
            for bag, column in zip(layout.bags, layout.bag_columns, strict=True):
                rows = _looked_up(table, layout, bag.feature, features)
                whole[bag.feature] = pool(rows, _weights(bag, features), column.combiner)
        if len(self._runs) == 1:
            return whole[self._runs[0][0]]
        # Split each source tensor once. One slice per column would take several times as long, forward and backward.
        pieces = {source: iter(torch.split(whole[source], sizes, 1)) for source, sizes in self._sizes.items()}
        return torch.cat([next(pieces[source]) for source, _ in self._runs], 1)


class DenseFeatures(InputLayer):
    """`InputLayer` that is made of columns. The Estimator of a model that contains it converts the raw columns for it.

    It does what TensorFlow's ``DenseFeatures`` and ``input_layer`` do, and its variables are named as theirs:
    ``dense_features/<column>/embedding_weights``.

    Args:
        columns: Numeric, bucketized, indicator and embedding columns.
        name: First part of the names of variables and features. The layers of a model have different names.

    Raises:
        InvalidTypeError: An item is not a feature column, or the name is not a string.
        InvalidValueError: There are no columns, two have one name, or one is a bare categorical column.

    >>> town = fc.categorical_column_with_hash_bucket("town", 10)
    >>> layer = fc.DenseFeatures([fc.numeric_column("size"), fc.embedding_column(town, 2)])
    >>> module = torch.nn.Sequential(layer, torch.nn.Linear(layer.width, 1))
    >>> loss = torch.nn.MSELoss()
    >>> estimator = te.Estimator.from_module(module, loss=loss, optimizer="SGD", model_dir="memory://DenseFeatures")
    >>> data = {"size": [1.0, 2.0], "town": ["Ulm", "Bonn"]}, [[1.0], [0.0]]
    >>> estimator.train(lambda: data, steps=1).get_variable_names()
    ['1.bias', '1.weight', 'dense_features/town_embedding/embedding_weights', 'global_step']
    """

    def __init__(self, columns: Iterable[Any], name: str = "dense_features") -> None:
        self.columns = columns_of_layer(columns, name, "DenseFeatures")
        super().__init__(input_layout(self.columns, name), name)
        self.name = name

    def forward(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the input of a network, float32 ``[N, width]``.

        Args:
            features: The features that the Estimator gives the module.
        """
        check_converted(self.name, features)
        return super().forward(features)


def columns_of_layer(columns: Iterable[Any], name: str, kind: str) -> tuple[Any, ...]:
    """Check the columns and the name of a layer, and return the columns."""
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"name of a {kind} must be a non-empty string, but got {name!r}.")
    checked = as_items(columns, f"columns of a {kind}")
    if not checked:
        raise InvalidValueError(f"columns of a {kind} must hold at least one feature column, but is empty.")
    return checked


def check_converted(name: str, features: Mapping[str, torch.Tensor]) -> None:
    """Raise InvalidValueError if the Estimator has not converted the columns of a layer."""
    if not any(key.startswith(f"{name}/") for key in features):
        raise InvalidValueError(
            f"the columns of the layer {name!r} are not converted, which an Estimator does for layers that it finds in "
            "its module; make the layer in the module's __init__, as an attribute or in an nn.ModuleList."
        )


def _runs(layout: InputLayout) -> list[tuple[str, int]]:
    """Return (source, width) for each run of neighboring output columns that come from one source tensor."""
    runs: list[tuple[str, int]] = []
    for part in layout.parts:
        width = part.stop - part.start
        if runs and runs[-1][0] == part.source:
            runs[-1] = (part.source, runs[-1][1] + width)
        else:
            runs.append((part.source, width))
    return runs


def _counts(ids: torch.Tensor, width: int, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return the count of each id below `width` in each row, or the sum of its weights, float32 ``[N, width]``."""
    if weights is None:
        weights = torch.ones(1, 1, device=ids.device).expand(ids.shape)
    counts = torch.zeros(ids.shape[0], width + 1, device=ids.device, dtype=weights.dtype)
    return counts.scatter_add(1, ids, weights)[:, :width]


def _weights(bag: Bag, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the weights of the ids of a column with lists or weights, float32 ``[N, L]``, 0 where there is no id."""
    return presence(features[bag.feature], bag.padding) if bag.weights is None else features[bag.weights]


def _looked_up(
    table: nn.Module, layout: EmbeddingTableLayout, feature: str, features: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """Look up a feature's ids in a table; return vectors, float32 ``[N, ids, dimension]``, clipped to `max_norm`."""
    rows: torch.Tensor = table(features[feature])
    return rows if layout.max_norm is None else clip_norms(rows, layout.max_norm)


def _embeddings(rows: torch.Tensor, features: Mapping[str, torch.Tensor], layout: EmbeddingTableLayout) -> torch.Tensor:
    """Combine the vectors of each column's ids into one vector per column, ``[N, columns * dimension]``."""
    if layout.slots == len(layout.columns):
        return rows.flatten(1)
    vectors = []
    for column, placed in zip(layout.columns, layout.placed, strict=True):
        mine = rows[:, placed.start : placed.stop]
        if placed.stop - placed.start == 1:
            vectors.append(mine[:, 0])
        else:
            ids = features[layout.feature][:, placed.start : placed.stop]
            vectors.append(pool(mine, presence(ids, layout.rows), column.combiner))
    return torch.cat(vectors, 1)


def make_table(layout: EmbeddingTableLayout, scope: str) -> Table:
    """Create the `Table` that a layout describes; its variables are ``<scope>/<column>/embedding_weights``."""
    normal = Distribution(truncated_normal, 1 / math.sqrt(layout.dimension))
    pieces = [
        Piece(
            name=f"{scope}/{variable.name}/embedding_weights",
            rows=variable.rows,
            initializer=variable.initializer or normal,
        )
        for variable in layout.variables
    ]
    return Table(pieces, layout.dimension, trainable=layout.trainable)
