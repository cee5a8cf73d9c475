"""Parsing of JSON that users or other programs have written, in files, requests and environment variables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError

MOST_DEPTH = 100
"""Maximum nesting of lists and objects. It keeps functions that walk the result far from Python's recursion limit."""

_MOST_SHOWN = 200

# Match each string as one token, so that brackets inside strings do not count.
# An unterminated string extends to the end of the text, so that the search takes linear time.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(
    text: str,
    *,
    most_depth: int = MOST_DEPTH,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse a JSON text, in which lists and objects nest at most `most_depth` deep, and return its value.

    The JSONDecodeError for any other text names the line and the column. `object_pairs_hook` is as in `json.loads`.

    >>> parse_json('{"loss": 0.5}')
    {'loss': 0.5}
    """
    place = too_deep_at(text, most_depth)
    if place is not None:
        raise json.JSONDecodeError(f"Nested deeper than {most_depth} levels", text, place)
    return json.loads(text, object_pairs_hook=object_pairs_hook)


def json_object(text: str, name: str) -> dict[str, Any]:
    """Parse the value of the environment variable `name`, which must be a JSON object, and return it as a dict.

    Raise an InvalidTypeError for other JSON, and an InvalidValueError if it is not JSON or an object has a key twice.

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
    """Return the position of the first list or object in a JSON text that is nested too deep; None if there is none.

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


def sentence(clause: str) -> str:
    """Return a clause of a message with a capital letter at its beginning."""
    return clause[:1].upper() + clause[1:]
