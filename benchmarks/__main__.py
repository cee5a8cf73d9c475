"""Runs one benchmark: ``python -m benchmarks NAME [--save] [ARGUMENTS]``, which is what `scripts/bench` does.

With ``--save`` the tables that it prints replace those of the same names in ``benchmarks/results/NAME.json``.
"""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.protocol import results


def main(name: str, arguments: list[str]) -> int:
    """Run a benchmark with its arguments, and keep its tables if they contain ``--save``; return the exit status."""
    saves = "--save" in arguments
    if saves and "--quick" in arguments:
        print("The numbers of a quick run mean nothing; leave out --save or --quick.", file=sys.stderr)
        return 2
    arguments = [one for one in arguments if one != "--save"]
    sys.argv = [f"scripts/bench {name}", *arguments]
    status = import_module(f"benchmarks.{name}").main() or 0
    if saves:
        results.save(name, " ".join(sys.argv))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
