"""What 12,000 steps of 512 reach with tf.estimator's v1 defaults, on the test file.

The columns are those of Google's sample: capital gain and loss as they are. TensorFlow parses its lines by the batch
here, which is faster and does not change what it learns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.census.setup import OURS, Part, Setup, empty_cache
from benchmarks.protocol import alternate, at_least, at_most, table

BATCH, STEPS = 512, 12_000
# What TensorFlow 2.15 reached, and how much of it is chance.
TF_AUC, TF_LOSS, TOLERANCE = 0.9109, 0.3104, 0.001


def measure(setup: Setup) -> Part:
    """Trains with another seed in every round."""
    steps = 60 if setup.quick else STEPS
    shared = [*setup.arguments(batch=BATCH, steps=steps), "--evaluate", "--gains", "raw"]
    with empty_cache() as variables:
        ours = partial(OURS.run, variables=variables)
        sides: dict[str, Callable[[], dict[str, Any]]] = {
            "ours": _seeded(ours, [*shared, "--compile", setup.compile_at_once])
        }
        if "tensorflow" in setup.peers:
            sides["tensorflow"] = _seeded(setup.peers["tensorflow"].run, [*shared, "--decode", "batch"])
        measured = alternate(sides, setup.rounds, "quality")
    rows = [
        [
            setup.peers[side].name if side in setup.peers else OURS.name,
            *(
                f"{value:.4f}" if (value := measured.median(side, key)) is not None else None
                for key in ("auc", "average_loss", "accuracy")
            ),
            " ".join(f"{value:.4f}" for value in measured.values(side, "auc")),
        ]
        for side in measured.results
    ]
    verdicts = [
        at_least("AUC", round(TF_AUC - TOLERANCE, 4), measured.median("ours", "auc"), digits=4),
        at_most("average_loss", round(TF_LOSS + TOLERANCE, 4), measured.median("ours", "average_loss"), digits=4),
    ]
    return Part(
        title=f"Quality after {steps:,} steps of {BATCH}, v1 defaults, Google's columns, medians over seeds",
        table=table(["", "AUC", "average_loss", "accuracy", "AUC by seed"], rows),
        verdicts=verdicts,
        measured=measured,
    )


def _seeded(run: Callable[[list[object]], dict[str, Any]], arguments: list[object]) -> Callable[[], dict[str, Any]]:
    seeds = _count()
    return lambda: run([*arguments, "--seed", next(seeds)])


def _count() -> Iterator[int]:
    seed = 0
    while True:
        seed += 1
        yield seed
