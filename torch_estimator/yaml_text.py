"""YAML for people: texts of several lines as such, and no references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def to_yaml(documents: Sequence[Any]) -> str:
    """Return documents as YAML."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000))
