"""Names of Kubernetes objects, and their text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""What each container may do, by the restricted profile of Kubernetes' Pod Security Standards and a little less."""

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
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    return f"{own[: most - _DIGITS - 1].rstrip('-')}-{digest}"


def to_yaml(objects: Sequence[dict[str, Any]]) -> str:
    """Return objects as YAML, with texts of several lines as such and without references."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000))
