"""Removal of old exports."""

from __future__ import annotations

import logging

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.export.names import export_names

_logger = logging.getLogger(__name__)


def check_exports_to_keep(exports_to_keep: int | None) -> None:
    """Checks an argument of that name.

    Raises:
        InvalidValueError: It is neither None nor a positive number.
    """
    if exports_to_keep is not None and not (exports_to_keep > 0 and float(exports_to_keep).is_integer()):
        raise InvalidValueError(
            f"exports_to_keep must be a positive whole number, or None to keep all, but got {exports_to_keep}."
        )


def remove_old_exports(export_dir_base: files.PathLike, exports_to_keep: int | None) -> None:
    """Removes all but the newest `exports_to_keep` exports in `export_dir_base`.

    Only directories named by ten digits, their time in seconds since 1970, count as exports; the rest is left
    alone. What cannot be removed is logged.
    """
    if exports_to_keep is None:
        return
    for name in export_names(export_dir_base)[:-exports_to_keep]:
        path = files.join(export_dir_base, name)
        try:
            files.remove_tree(path)
        except OSError as error:
            _logger.warning("old export %s cannot be removed: %s.", path, files.reason(error))
