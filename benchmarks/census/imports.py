"""What `import torch_estimator` adds to `import torch`."""

from __future__ import annotations

from benchmarks.census.setup import Part, Setup
from benchmarks.protocol import Side, alternate, at_most, table

SIDE = Side(name="torch-estimator", script="ours_imports")
# One after the other in one process.
_IMPORTS = {
    "torch_s": "import torch",
    "added_s": "import torch_estimator",
    "program_s": "what the census trainer uses of it",
    "names_s": "all other public names",
}


def measure(setup: Setup) -> Part:
    """Imports in a new process a round, at least five times."""
    rounds = setup.rounds if setup.quick else max(5, setup.rounds)
    measured = alternate({"ours": lambda: SIDE.run([])}, rounds, "imports")
    rows = [[what, measured.median("ours", key)] for key, what in _IMPORTS.items()]
    return Part(
        title="Imports",
        table=table(["", "seconds"], rows),
        verdicts=[
            at_most("seconds that import torch_estimator adds to import torch", 0.4, measured.median("ours", "added_s"))
        ],
        measured=measured,
    )
