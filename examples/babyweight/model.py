"""The wide-and-deep regressor of the baby-weight example, and what is put around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

import torch_estimator as te

from . import columns


def rmse(labels: torch.Tensor, predictions: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Root mean squared error over a whole evaluation, in pounds."""
    return {"rmse": (labels - predictions["predictions"]).square().mean().sqrt()}


def build_estimator(
    config: te.RunConfig, *, embedding_size: int, units: Sequence[int], with_embedding: bool = False
) -> te.Estimator:
    """The regressor of `weight_pounds`, with the metric ``rmse`` and the feature ``key`` among its predictions.

    Args:
        config: Its ``model_dir`` holds the checkpoints.
        embedding_size: Dimension of the cross's embedding.
        units: Sizes of the hidden layers.
        with_embedding: Whether predictions and exports give the embedding, as ``embedding``, too.
    """
    wide, deep = columns.wide_and_deep_columns(embedding_size)
    # tf.estimator's defaults for the combined classes are 50 to 100 times smaller, too small for thousands of steps.
    estimator: te.Estimator = te.DNNLinearCombinedRegressor(
        linear_feature_columns=wide,
        linear_optimizer=te.optim.Ftrl(lr=0.2),
        dnn_feature_columns=deep,
        dnn_optimizer=te.optim.Adagrad(lr=0.05),
        dnn_hidden_units=units,
        config=config,
    )
    estimator = te.add_metrics(estimator, rmse)
    estimator = te.forward_features(estimator, columns.KEY)
    if with_embedding:
        estimator = te.forward_layers(estimator, {"embedding": columns.embedding_name(embedding_size)})
    return estimator
