"""Errors for the user: each message is one sentence that says what is wrong, where, and what to do about it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""Exit status of a command that was ended by Ctrl-C: 128 + SIGINT, as in shells."""

RESTART_ME = 143
"""Exit status that asks for a restart: 128 + SIGTERM. Clusters restart processes with a status above 127."""


class UserError(Exception):
    """Base class of errors whose message is meant for the user; commands print the message and exit.

    Attributes:
        exit_status: Exit status of the command: 2, or `RESTART_ME` if starting the process again is enough.

    >>> try:
    ...     te.RunConfig(save_checkpoints_steps=-1)
    ... except te.UserError as error:
    ...     print(error, error.exit_status)
    save_checkpoints_steps must not be negative, but got -1. 2
    """

    exit_status = 2


class InvalidValueError(UserError, ValueError):
    """A value in an argument, a setting or a file cannot be used.

    >>> te.DNNClassifier([8], [fc.numeric_column("x")], dropout=1.5)
    Traceback (most recent call last):
        ...
    torch_estimator.errors.InvalidValueError: dropout must be at least 0 and less than 1, but got 1.5.
    """


class InvalidTypeError(UserError, TypeError):
    """An argument is of the wrong type.

    >>> te.TrainSpec("train.csv", max_steps=1000)
    Traceback (most recent call last):
        ...
    torch_estimator.errors.InvalidTypeError: input_fn must be callable, such as lambda: dataset, but got 'train.csv'.
    """


class RowError(InvalidValueError):
    """A value in one row of a batch cannot be used.

    Code that sees columns but not the file they came from raises this error. The input source catches it and raises a
    `DataError` that names the file and the line.

    Args:
        problem: The message without the place, such as ``unknown label 'maybe'; expected one of '<=50K', '>50K'``.
        row: Index of the row in the batch, counted from 0.
        column: Name of the column, or None for labels without a name.
        label: Name of the label if there are several labels, else None.

    >>> raise te.errors.RowError("unknown job 'smith'", row=3, column="job")
    Traceback (most recent call last):
        ...
    torch_estimator.errors.RowError: column 'job', row 3 of the batch: unknown job 'smith'
    """

    def __init__(self, problem: str, *, row: int, column: str | None = None, label: str | None = None) -> None:
        where = f"column {column!r}, " if column is not None else f"label {label!r}, " if label is not None else ""
        super().__init__(f"{where}row {row} of the batch: {problem}")
        self.problem = problem
        self.row = row
        self.column = column
        self.label = label


class PairsError(InvalidValueError):
    """A loss or metric compares each label with all outputs: labels ``[N]`` and outputs ``[N, 1]`` broadcast.

    >>> estimator = te.Estimator.from_module(
    ...     torch.nn.Linear(1, 1),
    ...     loss=lambda outputs, labels: ((outputs - labels) ** 2).mean(),
    ...     optimizer="SGD",
    ...     model_dir="memory://PairsError",
    ... )
    >>> data = np.ones((4, 1), np.float32), np.ones(4, np.float32)
    >>> estimator.train(lambda: data, steps=1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    torch_estimator.errors.PairsError: The loss compares each with each: sub of outputs [4, 1] and labels [4] makes ...
    """


class DataError(InvalidValueError):
    """Input data is invalid or cannot be read; the message names the file and line, or the source and row.

    >>> data = te.data.Dataset.from_arrays({"x": [1.0, 2.0]}, ["yes", "mabye"])
    >>> estimator = te.LinearClassifier([fc.numeric_column("x")], "memory://DataError", label_vocabulary=["no", "yes"])
    >>> estimator.train(lambda: data.batch(2))
    Traceback (most recent call last):
        ...
    torch_estimator.errors.DataError: row 1 (from 0): unknown label 'mabye'; expected one of 'no', 'yes'.
    """


class CheckpointError(UserError, ValueError):
    """A checkpoint is missing, damaged, written by another program, or does not fit the model.

    >>> te.BaselineRegressor("memory://CheckpointError").get_variable_names()
    Traceback (most recent call last):
        ...
    torch_estimator.errors.CheckpointError: There is no checkpoint in memory://CheckpointError yet; train first.
    """


class ModelDirInUseError(UserError, RuntimeError):
    """Another training is writing into the model directory.

    >>> def train(hooks):
    ...     te.BaselineRegressor("memory://InUse").train(lambda: ({"x": [1.0]}, [2.0]), steps=1, hooks=hooks)
    >>> class TrainAgain(te.Hook):
    ...     def after_step(self, context):
    ...         train(hooks=[])
    >>> train(hooks=[TrainAgain()])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    torch_estimator.errors.ModelDirInUseError: model_dir memory://InUse is in use: ...
    """


class ExportError(UserError):
    """A model cannot be exported, or an exported model cannot be used.

    >>> te.ExportedModel.load("memory://no_export")
    Traceback (most recent call last):
        ...
    torch_estimator.errors.ExportError: there is no export in memory://no_export: it does not exist.
    """


class RegistryError(UserError, ValueError):
    """A registry lacks what was asked for, refuses a change, or cannot be read or written.

    >>> te.registry.Registry("memory://RegistryError").read_model("prices")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    torch_estimator.errors.RegistryError: there is no model 'prices' in the registry memory://RegistryError, ...
    """


class ClusterError(UserError, RuntimeError):
    """The processes of a cluster cannot reach each other, disagree about the job, or have ended.

    >>> try:
    ...     raise te.errors.ClusterError("Worker 3 cannot be reached.")
    ... except te.UserError as error:
    ...     print(error)
    Worker 3 cannot be reached.
    """


class NanLossDuringTrainingError(UserError, RuntimeError):
    """The training loss or a trained variable became NaN or infinite.

    >>> data = {"x": [1.0]}, [1e30]
    >>> te.BaselineRegressor("memory://NanLoss").train(lambda: data, steps=10)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    torch_estimator.errors.NanLossDuringTrainingError: The loss became infinite at global step 1; ...
    """


class CompiledStepError(UserError, RuntimeError):
    """A compiled training step computes something else than the step in Python, found before a checkpoint was saved.

    >>> import torch_estimator as te
    >>> issubclass(te.errors.CompiledStepError, RuntimeError)
    True
    """

    # Starting again helps, so a launcher does not take it for a mistake that would be repeated.
    exit_status = 1


def printable(text: str) -> str:
    """Escape control characters and unprintable characters in a text, except newlines and tabs.

    Messages quote names and values from files, which could contain escape sequences for the terminal.

    >>> printable("\\x1b[31mred")
    '\\\\x1b[31mred'
    """
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: repr(found[0])[1:-1], text)


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Run the body; on a user error, print its message to stderr and exit with its exit status.

    Other exceptions are bugs of the package or of the user's code and keep their traceback.

    >>> with te.errors.exit_on_user_error():
    ...     te.RunConfig(save_checkpoints_steps=-1)
    Traceback (most recent call last):
        ...
    SystemExit: 2
    """
    try:
        yield
    except UserError as error:
        sentence, status = str(error), error.exit_status
    except OSError as error:
        if error.filename is None or error.strerror is None:
            raise
        sentence, status = f"{error.filename}: {error.strerror}.", UserError.exit_status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    else:
        return
    print(f"error: {printable(sentence)}", file=sys.stderr)
    sys.exit(status)
