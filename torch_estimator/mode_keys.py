"""Modes in which a model is built: training, evaluation and prediction."""

from __future__ import annotations

from enum import StrEnum


class ModeKeys(StrEnum):
    """The modes that a ``model_fn`` is called with; the values are the same as in tf.estimator.

    >>> [str(mode) for mode in te.ModeKeys]
    ['train', 'eval', 'infer']
    >>> te.ModeKeys.PREDICT == "infer"
    True
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
