"""JSON in a variable of the environment."""

from __future__ import annotations

from typing import Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.json_text import parse_json

_MOST_CHARACTERS = 200


def json_object(text: str, name: str) -> dict[str, Any]:
    """Reads the JSON object that the variable `name` holds.

    Raises:
        InvalidValueError: It is not JSON.
        InvalidTypeError: It is something else than an object.
    """
    try:
        value = parse_json(text, object_pairs_hook=lambda pairs: _without_doubles(pairs, name))
    except InvalidValueError:
        raise
    except ValueError as error:
        raise InvalidValueError(f"{name} is not JSON ({error}): {shown(text)}.") from error
    if not isinstance(value, dict):
        raise InvalidTypeError(f"{name} must be a JSON object, but got {shown(text)}.")
    return value


def _without_doubles(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise InvalidValueError(f"{name} has {double!r} twice in one object; remove one of them.")
    return found


def shown(value: object) -> str:
    """What a message shows of a value that may be long."""
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
