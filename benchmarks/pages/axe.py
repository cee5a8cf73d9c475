"""Runs axe-core, which finds what in a page keeps people out who see little, or use no mouse."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.peers import environment
from tests.browser import Browser

VERSION = "4.14.1"
SERIOUS = ("serious", "critical")


def axe_file() -> Path:
    """Return where its script is, if it is there."""
    return environment.folder("console") / f"axe-core-{VERSION}.js"


def install() -> Path | None:
    """Return its script, which npm brings once; None without npm."""
    file = axe_file()
    if not file.exists() and shutil.which("npm") is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", f"axe-core@{VERSION}"]
        packed = subprocess.run(command, cwd=file.parent, check=True, capture_output=True, text=True).stdout.strip()
        with tarfile.open(file.parent / packed) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            file.write_bytes(member.read())
        (file.parent / packed).unlink()
    return file if file.exists() else None


def faults(window: Browser, script: str) -> list[str]:
    """Return the serious faults of the page that is open, each with its place."""
    window.run(script)
    found: list[dict[str, Any]] = window.run(
        "return axe.run().then(found => found.violations.map("
        "one => ({id: one.id, impact: one.impact, places: one.nodes.map(node => node.target.join(' '))})))"
    )
    return [f"{one['id']}: {place}" for one in found if one["impact"] in SERIOUS for place in one["places"]]


if __name__ == "__main__":
    print(install())
