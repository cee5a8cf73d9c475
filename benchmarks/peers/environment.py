"""Environments of peers: `.bench/<name>`, made when first needed and never mixed with the project's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_with(name: str, requirements: list[str]) -> Path:
    """The interpreter of `.bench/<name>`, in which the requirements are installed."""
    home = ROOT / ".bench" / name
    python, done = home / "bin" / "python", home / "requirements.txt"
    wanted = "\n".join(requirements)
    if not done.is_file() or done.read_text() != wanted:
        print(f"Installing {', '.join(requirements)} into {home}.", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True, timeout=300)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True, timeout=900)
        done.write_text(wanted)
    return python
