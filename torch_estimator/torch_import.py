"""The import of PyTorch, without the garbage collector.

PyTorch makes more than 100,000 objects that live until the process ends. Python's collector visits them again and
again: during the import, whenever it runs later, and at the end of the process. Without the collector, the import takes
0.7 instead of 0.8 seconds, and the end of a process 0.1 instead of 0.4.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def without_collections(getter: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that keeps the collector away from PyTorch, if it is the first to import it.

    The collector no longer visits any object that exists when PyTorch has been imported. Such objects are freed as
    before, unless they refer to each other in a cycle.
    """

    def get(name: str) -> Any:
        if "torch" in sys.modules or not gc.isenabled():
            return getter(name)
        # What is garbage already would never be freed.
        gc.collect()
        gc.disable()
        try:
            found = getter(name)
            if "torch" in sys.modules:
                gc.freeze()
            return found
        finally:
            gc.enable()

    return get
