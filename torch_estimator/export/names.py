"""Names of exports."""

from __future__ import annotations

import re

from torch_estimator import files

_NAME = re.compile(r"[0-9]{10}")


def export_names(export_dir_base: files.PathLike) -> list[str]:
    """The directories that are named by ten digits, their time in seconds since 1970, the oldest first."""
    # Trailing slashes: some object stores list a directory as 'name/'.
    names = (name.strip("/") for name in files.listdir(export_dir_base))
    return sorted(name for name in names if _NAME.fullmatch(name))
