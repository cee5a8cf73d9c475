"""What the package raises when its user has to act: one sentence that says what was wrong, where, and what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""Exit status of a command line that Ctrl-C ended, as shells have it."""

RESTART_ME = 143
"""Exit status of a process that is to be started again, as after SIGTERM; clusters start those above 127 again."""


class UserError(Exception):
    """Base of every error whose message is meant for the user; command lines print it and exit.

    Attributes:
        exit_status: With which: 2, or `RESTART_ME` where it is enough to start again.
    """

    exit_status = 2


class InvalidValueError(UserError, ValueError):
    """An argument, a setting or a file holds a value that cannot be used."""


class InvalidTypeError(UserError, TypeError):
    """An argument is of the wrong type."""


class RowError(InvalidValueError):
    """A value in one row of a column cannot be used.

    Raised by code that sees a chunk of columns but not where it came from; the input source that knows catches it
    and raises a `DataError` naming the file and the line.

    Args:
        problem: The sentence, without the place, such as ``unknown label 'maybe'; expected one of '<=50K', '>50K'``.
        row: Index of the row inside the chunk, from 0.
        column: Name of the column, or None where it is the labels of a nameless source.
        label: Name of the label, where there are several.
    """

    def __init__(self, problem: str, *, row: int, column: str | None = None, label: str | None = None) -> None:
        where = f"column {column!r}, " if column is not None else f"label {label!r}, " if label is not None else ""
        super().__init__(f"{where}row {row} of the batch: {problem}")
        self.problem = problem
        self.row = row
        self.column = column
        self.label = label


class PairsError(InvalidValueError):
    """A loss or a metric compares each label with each output, of shapes ``[N]`` and ``[N, 1]``."""


class DataError(InvalidValueError):
    """Input data cannot be read as asked: names the file and line, or the source and row."""


class CheckpointError(UserError, ValueError):
    """A checkpoint is missing, damaged, foreign, or does not fit the model."""


class ModelDirInUseError(UserError, RuntimeError):
    """Another training writes into the model directory."""


class ExportError(UserError):
    """A model cannot be exported, or an export cannot be used."""


class ClusterError(UserError, RuntimeError):
    """Processes of a cluster do not find each other, do not agree, or are gone."""


class NanLossDuringTrainingError(UserError, RuntimeError):
    """The training loss or a trained variable became NaN or infinite."""


def printable(text: str) -> str:
    """Return a text with the characters that a terminal obeys, or cannot show, as escapes; lines and tabs stay.

    Names and values in messages come from files that others may have written.

    >>> printable("\\x1b[31mred")
    '\\\\x1b[31mred'
    """
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: repr(found[0])[1:-1], text)


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Ends a command line with one sentence on stderr, and exit status 2 where the user has to act.

    Errors that are nobody's but ours keep their traceback.
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
