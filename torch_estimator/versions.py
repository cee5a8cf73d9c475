"""Version of the package with a digest of its sources, by which the processes of a cluster are compared."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

import torch_estimator


@cache
def own_sources() -> str:
    """Return a hash of torch_estimator's sources, which may change without a new version in a checkout."""
    root = Path(torch_estimator.__file__).parent
    digest = sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".c", ".h")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def version_and_sources() -> str:
    """Return a text that distinguishes this version of the package from others, including commits of one version."""
    return f"{torch_estimator.__version__}, sources {own_sources()[:12]}"
