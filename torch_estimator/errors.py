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
    """Base of all errors whose message is meant for the user; commands print the message and exit.

    Attributes:
        exit_status: Exit status of the command: 2, or `RESTART_ME` if starting the process again is enough.
    """

    exit_status = 2


class InvalidValueError(UserError, ValueError):
    """A value in an argument, a setting or a file cannot be used."""


class InvalidTypeError(UserError, TypeError):
    """An argument is of the wrong type."""


class RowError(InvalidValueError):
    """A value in one row of a batch cannot be used.

    Code that sees columns but not the file they came from raises this error. The input source catches it and raises a
    `DataError` that names the file and the line.

    Args:
        problem: The message without the place, such as ``unknown label 'maybe'; expected one of '<=50K', '>50K'``.
        row: Index of the row in the batch, counted from 0.
        column: Name of the column, or None for labels without a name.
        label: Name of the label if there are several labels, else None.
    """

    def __init__(self, problem: str, *, row: int, column: str | None = None, label: str | None = None) -> None:
        where = f"column {column!r}, " if column is not None else f"label {label!r}, " if label is not None else ""
        super().__init__(f"{where}row {row} of the batch: {problem}")
        self.problem = problem
        self.row = row
        self.column = column
        self.label = label


class PairsError(InvalidValueError):
    """A loss or a metric compares every label with every output: labels are ``[N]`` and outputs ``[N, 1]``."""


class DataError(InvalidValueError):
    """Input data is invalid or cannot be read; the message names the file and line, or the source and row."""


class CheckpointError(UserError, ValueError):
    """A checkpoint is missing, damaged, written by another program, or does not fit the model."""


class ModelDirInUseError(UserError, RuntimeError):
    """Another training is writing into the model directory."""


class ExportError(UserError):
    """A model cannot be exported, or an exported model cannot be used."""


class RegistryError(UserError, ValueError):
    """A registry lacks what was asked for, refuses a change, or cannot be read or written."""


class ClusterError(UserError, RuntimeError):
    """The processes of a cluster cannot reach each other, disagree about the job, or have ended."""


class NanLossDuringTrainingError(UserError, RuntimeError):
    """The training loss or a trained variable became NaN or infinite."""


def printable(text: str) -> str:
    """Return a text with control characters and unprintable characters escaped, except newlines and tabs.

    Messages quote names and values from files, which could contain escape sequences for the terminal.

    >>> printable("\\x1b[31mred")
    '\\\\x1b[31mred'
    """
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: repr(found[0])[1:-1], text)


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a user error in the body into one line on stderr and an exit status.

    Other exceptions are bugs of the package or of the user's code and keep their traceback.
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
