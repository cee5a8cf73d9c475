"""The export a command is about."""

from __future__ import annotations

import sys

from torch_estimator.export.exported_model import find_export


def chosen(path: str) -> str:
    """Returns the export at `path`, or the newest in it, which is then said on stderr."""
    directory, count = find_export(path)
    if count:
        print(f"Using {directory}, the newest of {count} in {path}.", file=sys.stderr)
    return directory
