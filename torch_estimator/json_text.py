"""Reader of JSON that other programs or users have written: files, requests, environment variables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError

MOST_DEPTH = 100
"""How deep lists and objects may nest. Functions that walk the result recursively stay far from Python's limit."""

_MOST_SHOWN = 200

# Each string is one token, so that brackets inside it do not count. An unterminated string extends to the end of the
# text, which keeps the search linear.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(
    text: str,
    *,
    most_depth: int = MOST_DEPTH,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The JSON.
        most_depth: How deep lists and objects may nest.
        object_pairs_hook: As in `json.loads`.

    Raises:
        json.JSONDecodeError: The text is not JSON, or nests deeper than `most_depth`. The message names the line and
            the column.

    >>> parse_json('{"loss": 0.5}')
    {'loss': 0.5}
    """
    place = too_deep_at(text, most_depth)
    if place is not None:
        raise json.JSONDecodeError(f"Nested deeper than {most_depth} levels", text, place)
    return json.loads(text, object_pairs_hook=object_pairs_hook)


def json_object(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object in an environment variable.

    Args:
        text: Value of the variable.
        name: Name of the variable, for messages.

    Raises:
        InvalidValueError: The text is not JSON, or an object in it has a key twice.
        InvalidTypeError: The text is JSON, but not an object.

    >>> json_object('{"task": {"index": 0}}', "TF_CONFIG")
    {'task': {'index': 0}}
    """

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InvalidValueError(f"{name} has {twice!r} twice in one object; remove one of them.")
        return found

    try:
        value = parse_json(text, object_pairs_hook=without_duplicates)
    except InvalidValueError:
        raise
    except ValueError as error:
        raise InvalidValueError(f"{name} is not JSON ({error}): {shortened(text)}.") from error
    if not isinstance(value, dict):
        raise InvalidTypeError(f"{name} must be a JSON object, but got {shortened(text)}.")
    return value


def shortened(value: object) -> str:
    """Return the repr of a value for a message, cut after 200 characters.

    >>> len(shortened("x" * 1000))
    201
    """
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def too_deep_at(text: str, most_depth: int = MOST_DEPTH) -> int | None:
    """Return the position in a text of the first list or object that is nested deeper than `most_depth`, or None.

    >>> too_deep_at("[" * 101)
    100
    """
    if text.count("[") + text.count("{") <= most_depth:
        return None
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > most_depth:
                return token.start()
        elif token[0] in "]}":
            depth -= 1
    return None
