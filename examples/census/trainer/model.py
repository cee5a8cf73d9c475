"""The wide-and-deep classifier of the census example."""

from __future__ import annotations

import torch_estimator as te

from . import columns, featurizer


def hidden_units(first_layer_size: int, num_layers: int, scale_factor: float) -> list[int]:
    """Sizes of the hidden layers, each `scale_factor` times the one before and at least 2.

    >>> hidden_units(100, 4, 0.7)
    [100, 70, 48, 34]
    """
    return [max(2, int(first_layer_size * scale_factor**layer)) for layer in range(num_layers)]


def build_estimator(config: te.RunConfig, *, embedding_size: int, units: list[int]) -> te.DNNLinearCombinedClassifier:
    """The classifier of `income_bracket`, with its checkpoints in `config.model_dir`."""
    wide, deep = featurizer.wide_and_deep_columns(embedding_size)
    return te.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=units,
        label_vocabulary=list(columns.LABELS),
        config=config,
    )
