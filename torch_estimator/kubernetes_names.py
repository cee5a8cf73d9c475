"""Names of Kubernetes objects."""

from __future__ import annotations

import hashlib
import re

_DIGITS = 8


def label(name: str, most: int = 63) -> str:
    """Return a name as Kubernetes allows it: a letter, and then at most `most` lower-case letters, digits and hyphens.

    Where that changes it, 8 digits of its SHA-256 keep different names apart.

    >>> label("prices-1"), label("Prices_1"), label("x" * 70, most=20)
    ('prices-1', 'prices-1-eb7e1c09', 'xxxxxxxxxxx-c71bd109')
    """
    own = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    if not own[:1].isalpha():
        own = f"n-{own}".rstrip("-")
    if own == name and len(own) <= most:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:_DIGITS]
    return f"{own[: most - _DIGITS - 1].rstrip('-')}-{digest}"
