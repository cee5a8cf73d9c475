"""What jobs and servers on Kubernetes have in common: names of objects, and what containers may do."""

from __future__ import annotations

import hashlib
import re
import sys
from typing import Any

from torch_estimator.errors import printable

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""What each container may do, by the restricted profile of Kubernetes' Pod Security Standards and a little less."""

_DIGITS = 8


def unprivileged(user: int) -> dict[str, Any]:
    """Return the security context of a pod whose processes are a user without rights."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def label(name: str, most: int = 63) -> str:
    """Return a name as Kubernetes allows it: a letter, and then at most `most` lower-case letters, digits and hyphens.

    Where that changes it, 8 digits of its SHA-256 keep different names apart.

    >>> label("prices--1"), label("Prices_1"), label("x" * 70, most=20)
    ('prices--1', 'prices-1-eb7e1c09', 'xxxxxxxxxxx-c71bd109')
    """
    if re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", name) and len(name) <= most:
        return name
    own = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    if not own[:1].isalpha():
        own = f"n-{own}".rstrip("-")
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    return f"{own[: most - _DIGITS - 1].rstrip('-')}-{digest}"


def warn_of_tag(image: str) -> None:
    """Say on stderr that an image without a digest may change."""
    if "@sha256:" not in image:
        print(f"warning: {printable(image)} has no digest; pods may run different builds.", file=sys.stderr)
