"""Texts of a page: what programs wrote, made harmless; and times, spans and numbers for people."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence

MOST_SHOWN = 2000
"""Most characters of a line that are shown."""

HIDDEN = "••••••"
NOTHING = "\u2013"
"""What stands for a value that there is not."""

ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of roles; of others, nothing is shown."""

TRAINERS = ("chief-", "master-", "worker-")
"""Beginnings of the names of roles that train."""

# Escape sequences of terminals: with parameters (CSI), up to their end (OSC and others), and short ones.
_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)|\x1b[ -/]*[0-~]"
)
# Control characters, marks of direction and of nothing, separators of lines, and what is no character.
_ODD = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_SECRET = re.compile(
    r"(?i)(?:^|[^a-z])(?:pass(?:wor[dt]|wd|phrase)?s?|pwd?|secrets?|tokens?|credentials?|auth(?:orization)?|bearer|"
    r"cookies?|dsn|sas|(?:api|access|private|secret|account|auth)?[-_]?keys?)(?:$|[^a-z])"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IN_VALUE = re.compile(
    r"(?i)(?<=://)[^/@\s]*:[^/@\s]*(?=@)|(?:(?<=\bbearer )|(?<=\bbasic ))\S+|"
    r"(?:(?<=password=)|(?<=pwd=)|(?<=token=)|(?<=secret=)|(?<=key=))[^;&\s]+"
)


def clean(text: object, most: int = MOST_SHOWN) -> str:
    """Return a text without escape sequences, with characters that cannot be seen as ``\\u202e``, and cut.

    Of what a progress bar wrote over itself, only the last state stays.

    >>> clean("\\x1b[31mred\\x1b[0m 10%\\r20%"), clean("a\\u202eb")
    ('20%', 'a\\\\u202eb')
    """
    whole = str(text)
    # Escape sequences may be much longer than what they show.
    shown = _ESCAPES.sub("", whole[: 4 * most])
    shown = shown.rstrip("\r\n").rpartition("\r")[2]
    shown = _ODD.sub(_escaped, shown)
    if len(shown) <= most and len(whole) <= 4 * most:
        return shown
    return f"{shown[:most]}… (of {len(whole):,} characters)"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def is_secret(name: str) -> bool:
    """Return whether an argument of this name is never shown.

    >>> [is_secret(name) for name in ("--api_key", "--dbPassword", "--token", "--monkey", "--max-steps")]
    [True, True, True, False, False]
    """
    return _SECRET.search(_CAMEL.sub("-", name)) is not None


def arguments_of(arguments: Sequence[str], secrets: Sequence[str] = ()) -> dict[str, str]:
    """Return the values of a program's arguments by name, those of secret ones hidden.

    Arguments without a name have the names ``#1``, ``#2`` and so on; a name without a value has an empty one.

    >>> arguments_of(["--steps", "5", "data.csv", "--token=x", "--fast"])
    {'--steps': '5', '#1': 'data.csv', '--token': '••••••', '--fast': ''}
    """
    found: dict[str, str] = {}
    hidden = {name.replace("_", "-") for name in secrets}
    name, count = "", 0
    for one in arguments:
        if one.startswith("-") and not _is_number(one):
            name, sign, value = one.partition("=")
            found[clean(name, 200)] = _value(name, value, hidden) if sign else ""
            name = "" if sign else name
        elif name:
            found[clean(name, 200)] = _value(name, one, hidden)
            name = ""
        else:
            count += 1
            found[f"#{count}"] = _value("", one, hidden)
    return found


def _value(name: str, value: str, hidden: set[str]) -> str:
    return HIDDEN if is_secret(name) or name.replace("_", "-") in hidden else clean(_IN_VALUE.sub(HIDDEN, value))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def span(secs: float | None) -> str:
    """Return a length of time.

    >>> [span(secs) for secs in (0.42, 7.3, 75, 4000, 90000, 3e6)]
    ['0.4 s', '7 s', '1 min 15 s', '1 h 6 min', '1 d 1 h', '34 d']
    """
    if secs is None or not math.isfinite(secs):
        return NOTHING
    if secs < 2:
        return f"{max(secs, 0):.1f} s"
    whole = int(secs)
    for unit, length, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return (
                f"{whole // length} {unit} {rest} {below}"
                if rest and whole < 20 * length
                else f"{whole // length} {unit}"
            )
    return f"{whole} s"


def number(value: float | None) -> str:
    """Return a number in a few digits.

    >>> [number(value) for value in (0.87654321, 12345678, 1e-9, float("nan"))]
    ['0.8765', '1.235e+07', '1e-09', 'NaN']
    """
    if value is None:
        return NOTHING
    return "NaN" if value != value else f"{value:.4g}"


def clock(secs: float | None) -> str:
    """Return a moment in this machine's local time."""
    try:
        return NOTHING if not secs else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(secs))
    except (OverflowError, ValueError, OSError):
        return NOTHING


def real(text: str | None) -> float | None:
    """Return the number that a text of an address is; None where it is none, or one of no time and no step."""
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if abs(value) < 1e15 else None


def whole(text: str | None, otherwise: int) -> int:
    """Return the whole number that a text of an address is; `otherwise` where it is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 15 else otherwise
