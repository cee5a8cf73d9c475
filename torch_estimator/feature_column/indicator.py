"""Indicator column: gives a network the counts of a categorical column's ids."""

from __future__ import annotations

from dataclasses import dataclass

from torch_estimator.feature_column.column import DenseColumn, NetworkInputs, check_categorical


@dataclass(frozen=True, slots=True)
class IndicatorColumn(DenseColumn):
    """Column that gives a network one number for each id: how often the id occurs in the row.

    A row without an id gives zeros.

    Args:
        categorical_column: The column whose ids are counted.

    Raises:
        InvalidTypeError: `categorical_column` is not a column.
        InvalidValueError: `categorical_column` is not a categorical column.

    >>> color = fc.indicator_column(fc.categorical_column_with_vocabulary_list("color", ["red", "green", "blue"]))
    >>> transform = fc.FeatureTransform(dnn_columns=[color])
    >>> features = transform({"color": np.array(["green", "pink"])})
    >>> fc.InputLayer(transform.dnn)({key: torch.as_tensor(value) for key, value in features.items()})
    tensor([[0., 1., 0.],
            [0., 0., 0.]])
    """

    def __post_init__(self) -> None:
        check_categorical(self.categorical_column, "indicator_column")

    @property
    def name(self) -> str:
        """Name of the column: ``<column>_indicator``."""
        return f"{self.categorical_column.name}_indicator"

    @property
    def width(self) -> int:
        """Number of floats in each row: one for each id."""
        return self.categorical_column.num_buckets

    def add_to_network(self, inputs: NetworkInputs) -> None:
        """Add the counts to the inputs of a network."""
        inputs.add_counts(self.name, self.categorical_column)


indicator_column = IndicatorColumn
