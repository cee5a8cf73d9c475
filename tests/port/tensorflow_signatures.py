"""Write the parameters, with their defaults, of the names that `estimator port` rewrites to a JSON file.

It needs an environment of its own: ``pip install tensorflow-cpu==2.15.1 libcst``. From the repository's root::

    python -m tests.port.tensorflow_signatures
"""

from __future__ import annotations

import functools
import inspect
import json
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).with_suffix(".json")


def parameters(value: Any) -> dict[str, Any]:
    """Return the default by parameter, in their order: ``"required"``, or ``"object"`` where it is not plain JSON."""
    found = inspect.signature(value).parameters
    if inspect.isclass(value) and "args" in found and value.__new__ is not object.__new__:
        found = inspect.signature(value.__new__).parameters
    return {
        name: "required" if one.default is one.empty else one.default if _is_plain(one.default) else "object"
        for name, one in found.items()
        if name not in ("self", "cls") and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def main() -> None:
    import tensorflow as tf

    from torch_estimator.port.table import ONLY_1, ONLY_2, RENAMED

    signatures: dict[str, dict[str, dict[str, Any]]] = {"v1": {}, "v2": {}}
    for generation, root in (("v1", tf.compat.v1), ("v2", tf)):
        for name in RENAMED:
            try:
                value = functools.reduce(getattr, name.split("."), root)
            except AttributeError:
                continue
            if callable(value):
                signatures[generation][name] = parameters(value)
    there = [name for name in (*ONLY_1, *ONLY_2) if _has(tf, name)]
    REFERENCE.write_text(json.dumps({"tensorflow": tf.__version__, **signatures, "in_tf_2": there}, indent=1) + "\n")


def _has(root: Any, name: str) -> bool:
    try:
        functools.reduce(getattr, name.split("."), root)
    except AttributeError:
        return False
    return True


if __name__ == "__main__":
    main()
