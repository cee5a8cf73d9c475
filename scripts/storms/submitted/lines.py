"""A program without torch_estimator: each role prints numbered lines at a rate, or one role ends with a status."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from .numbered import Numbered, me


def main() -> int:
    """Print; return the exit status."""
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--notes", type=Path, required=True, help="folder for what the storm reads")
    add("--lines", type=int, default=100)
    add("--rate", type=float, default=1000.0, help="lines a second at most")
    add("--roles", type=int, default=1, help="how many have to be there before the first line")
    add("--fails", default="", help="this role ends with status 2 after its lines, and the others wait for their end")
    options = parser.parse_args()
    numbered = Numbered(options.notes)
    (options.notes / f"{me()}.there").touch()
    while len(list(options.notes.glob("*.there"))) < options.roles:
        time.sleep(0.01)
    began = time.monotonic()
    (options.notes / f"{me()}.began").write_text(str(time.time()))
    for number in range(options.lines):
        ahead = began + number / options.rate - time.monotonic()
        # A sleep takes longer than the pause between two lines.
        if ahead > 0.01:
            time.sleep(ahead)
        numbered.print()
    (options.notes / f"{me()}.ended").write_text(str(time.time()))
    if options.fails == me():
        print(f"error: {me()} cannot go on; mend its input.", file=sys.stderr, flush=True)
        return 2
    while options.fails:
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
