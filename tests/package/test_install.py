"""`scripts/install` never clears an environment of another checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_linked_environment_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    shared, checkout = tmp_path / "shared", tmp_path / "checkout"
    shared.mkdir()
    (shared / "installed").touch()
    (checkout / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "install", checkout / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        (checkout / name).touch()
    (checkout / ".venv").symlink_to(shared)

    done = subprocess.run([checkout / "scripts" / "install"], capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stderr.startswith(f"error: .venv is a link to {shared}, and installing would clear that environment; ")
    assert [path.name for path in shared.iterdir()] == ["installed"]
