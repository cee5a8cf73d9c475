"""The command `scripts/storm`: runs one of the programs by its name."""

from __future__ import annotations

import sys
from importlib import import_module

NAMES = ("kill", "faults", "soak", "jobs", "tune")


def main() -> int:
    """Run the program that the first argument names; return its exit status."""
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print(f"usage: scripts/storm {{{','.join(NAMES)}}} [--help] [OPTIONS]", file=sys.stderr)
        return 2
    status: int = import_module(f"scripts.storms.{sys.argv[1]}").main(sys.argv[2:])
    return status


if __name__ == "__main__":
    sys.exit(main())
