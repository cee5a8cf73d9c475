"""What a model is built for."""

from __future__ import annotations

from enum import StrEnum


class ModeKeys(StrEnum):
    """The modes a ``model_fn`` is called with; the values are tf.estimator's.

    >>> ModeKeys.PREDICT == "infer"
    True
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
