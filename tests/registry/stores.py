"""Object stores that several processes share: a local folder with the operations of a store, and no others."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class PlainStore(LocalFileSystem):
    """Replaces objects atomically, as every store does, and cannot create them exclusively."""

    protocol = "plain-store"

    def __init__(self, **options: Any) -> None:
        super().__init__(auto_mkdir=True, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(str(path).partition("://")[2] or path))

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        put(self._strip_protocol(path), value, exclusive=False)


class ExclusiveStore(PlainStore):
    """Can create an object exclusively, too."""

    protocol = "exclusive-store"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        put(self._strip_protocol(path), value, exclusive=mode == "create")


def put(path: str, value: bytes, *, exclusive: bool) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(value)
    if not exclusive:
        os.replace(file.name, path)
        return
    try:
        os.link(file.name, path)
    finally:
        os.unlink(file.name)


def register() -> None:
    """Make the stores known to fsspec in this process."""
    for kind in (PlainStore, ExclusiveStore):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)


def url(kind: str, folder: Path) -> str:
    """Return the URL or path of a registry in a folder."""
    return f"{kind}-store://{folder}/registry" if kind != "local" else str(folder / "registry")
