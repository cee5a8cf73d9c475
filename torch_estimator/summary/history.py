"""Curves of a job: what its event files hold of the training and of its evaluations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torch_estimator import files
from torch_estimator.summary.scalar_reader import read_scalars

_EVAL = "eval"


class Curve(NamedTuple):
    """Values (float64 ``[points]``) of one number at global steps (int64 ``[points]``), in the order of writing."""

    steps: np.ndarray
    values: np.ndarray


class History(dict[str, Curve]):
    """Curves by name, as `Estimator.history` returns them: a dict with a table."""

    def frame(self) -> Any:
        """Return a pandas DataFrame: a row for each global step, a column for each curve, NaN where it has no value.

        >>> estimator = te.BaselineRegressor("memory://history_frame")
        >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=1)
        >>> _ = estimator.evaluate(lambda: ({"x": [1.0]}, [2.0]))
        >>> estimator.history().frame().index.tolist()
        [1]
        """
        import pandas as pd

        columns = {name: pd.Series(curve.values, curve.steps) for name, curve in self.items()}
        # A step that was written twice, as after a restart, keeps its last value.
        unique = {name: one[~one.index.duplicated(keep="last")] for name, one in columns.items()}
        return pd.DataFrame(unique).sort_index().rename_axis("step")

    def __repr__(self) -> str:
        lines = [
            f"  {name}: {len(one.steps)} points, the last {one.values[-1]:g} at step {one.steps[-1]}"
            for name, one in self.items()
        ]
        return "\n".join(["History", *lines])


def read_history(model_dir: str) -> History:
    """Return the curves in the event files of a job: those of the training, and ``eval/…`` of each evaluation."""
    history = History()
    if not files.is_dir(model_dir):
        return history
    names = sorted(name for name in files.listdir(model_dir) if name == _EVAL or name.startswith(f"{_EVAL}_"))
    for folder, prefix in [(model_dir, ""), *((files.join(model_dir, name), f"{name}/") for name in names)]:
        if not files.is_dir(folder):
            continue
        for tag, points in read_scalars(folder).items():
            history[prefix + tag] = Curve(points.steps, points.values)
    return history
