"""Steps per second after a warm-up, of ours and of all peers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.census.peers import PEERS, steps_of
from benchmarks.census.setup import OURS, Part, Setup, empty_cache
from benchmarks.protocol import Side, alternate, at_least, table

# By rows in a step: how many times a peer's steps per second ours are to be.
PROMISES = {40: {"tensorflow": 8.0, "eager": 4.0, "lightning": 5.0}, 512: {"tensorflow": 20.0, "eager": 4.0}}


def measure(setup: Setup, batch: int) -> Part:
    """Runs all sides at `batch` rows a step; ours compiled from the start, with what "auto" would switch to."""
    sides: Mapping[str, Side] = {"ours": OURS, **setup.peers}
    with empty_cache() as variables:
        runs = {key: partial(_run, setup, key, side, batch, variables) for key, side in sides.items()}
        measured = alternate(runs, setup.rounds, f"steady state at {batch}")
    rows = [
        [
            side.name,
            measured.median(key, "steps_per_s"),
            measured.median(key, "examples_per_s"),
            measured.ratio("steps_per_s", over="ours", under=key),
            # Ours waits for its compiler here; the whole command is what its first step is measured in.
            None if side is OURS else measured.median(key, "first_step_s"),
            measured.median(key, "peak_mb"),
        ]
        for key, side in sides.items()
        if key in measured.results
    ]
    verdicts = [
        at_least(
            f"steps/s at {batch} over {PEERS[peer].name}",
            least,
            measured.ratio("steps_per_s", over="ours", under=peer),
        )
        for peer, least in PROMISES[batch].items()
    ]
    return Part(
        title=f"Steady state, batches of {batch}, compile={setup.compile_at_once} on our side",
        table=table(["", "steps/s", "examples/s", "ours over it", "first step s", "peak MB"], rows),
        verdicts=verdicts,
        measured=measured,
    )


def _run(setup: Setup, key: str, side: Side, batch: int, variables: Mapping[str, str]) -> dict[str, Any]:
    steps, warmup = steps_of(key, batch=batch, quick=setup.quick)
    arguments = setup.arguments(batch=batch, steps=steps, warmup=warmup)
    if side is OURS:
        arguments += ["--compile", setup.compile_at_once]
    return side.run(arguments, variables=variables)
