"""Names that a caller gives and a signature does not have: refused, or left out where that was asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from torch_estimator.errors import InvalidValueError
from torch_estimator.export.signatures import Signature
from torch_estimator.json_text import shortened

logger = logging.getLogger("torch_estimator")

# Clients choose the names, so that there may be any number of them.
_MOST_SAID = 20


class UnknownNames:
    """What is done with names that a signature does not have: they are refused, or left out with `ignore`.

    The log names each that is left out once, as a name that `reader` does not read. `observe` is called with the number
    of names that are left out, and `count` is their sum: by row, each name of each row; by column, each column of a
    request.
    """

    def __init__(
        self, *, ignore: bool, reader: str = "The model", observe: Callable[[int], None] = lambda names: None
    ) -> None:
        self.ignore = ignore
        self.count = 0
        self._reader = reader
        self._observe = observe
        self._said: set[str] = set()

    def see(self, names: Iterable[str], signature: Signature) -> None:
        """Refuse those of the names that a signature does not have with an InvalidValueError, or count and log them."""
        unknown = [name for name in names if name not in signature.inputs]
        if not unknown:
            return
        if not self.ignore:
            raise InvalidValueError(f"Unexpected tensor name: {unknown[0]}; {signature.inputs_near(unknown[0])}")
        self.count += len(unknown)
        self._observe(len(unknown))
        for name in unknown:
            if name not in self._said and len(self._said) < _MOST_SAID:
                self._said.add(name)
                logger.warning(
                    "%s does not read %s, which is left out from here on.",
                    self._reader,
                    shortened(name),
                )


REFUSED = UnknownNames(ignore=False)
"""Unknown names are an error."""
