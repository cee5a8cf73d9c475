"""A search over two learning rates of the census model, ours and other tuners' side by side: `scripts/bench tuning`.

All sides train with this package's estimator, compare trials at the same steps, and find the compiled step in the same
cache, which a run before has filled. Ours is the command that a user types, `estimator jobs submit` with a YAML file.
Optuna starts a process for each trial and stops trials with its ASHA pruner. Ray Tune has Optuna's search and its own
ASHA. Neither can pause a trial; what they stop early is lost.

- *search*: time to the AUC that Optuna ends with, counted from the command.
- *short*: trials of ten steps, an evaluation and an export, where a search is nothing but overhead.
- *cost*: CPU seconds of one more trial of ten steps beyond those of the same training in a process that has trained
  before.
- *quality*: steps and best AUC of our studies from Python with early stopping, against the same ones without, and
  against Optuna with its ASHA pruner at equal steps, one trial after the other. Times do not matter in it.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.census.setup import check_data
from benchmarks.protocol import (
    ROOT,
    Measured,
    Side,
    Verdict,
    alternate,
    at_least,
    at_most,
    conclude,
    ready,
    show,
    show_machine,
    table,
)

DATA = ROOT.parent / "shared" / "data" / "census"
SIDES = {
    "ours": Side(name="ours", script="ours_tuning"),
    "optuna": Side(name="Optuna", script="optuna_tuning"),
    "ray": Side(name="Ray Tune", script="ray_tuning", environment="raytune"),
}
STUDIES = {
    "ours": Side(name="ours", script="ours_study"),
    "optuna": Side(name="Optuna", script="optuna_study"),
}
COMPILED = {"TORCH_ESTIMATOR_COMPILE": "true"}
PARTS = ("search", "short", "cost", "quality")
# Optuna's AUCs and ours are of other proposals, and AUCs of one model differ by more with another seed.
_SAME_AUC = 0.0005


def run(side: Side, data: Path, variables: Mapping[str, str] | None = None, **settings: int) -> dict[str, Any]:
    """Run a study of a side in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="tuning-") as folder:
        options = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        return side.run(["--data", data, "--folder", folder, *options], variables=variables, timeout=1800)


def secs_to(result: Any, auc: float) -> float:
    """Return after how many seconds a side first had an AUC; infinity if it never had."""
    return min((at for at, _, reached in result["reached"] if reached >= auc), default=float("inf"))


def best(result: Any) -> float:
    """Return the best AUC of a side, of any trial at any step."""
    return max(auc for _, _, auc in result["reached"])


def search(sides: dict[str, Side], args: argparse.Namespace) -> list[Verdict]:
    """Time to the AUC that Optuna ends with."""
    trials, steps, rung = (3, 40, 10) if args.quick else (30, 2000, 125)
    found = alternate(
        {
            name: functools.partial(run, side, args.data, trials=trials, parallel=2, steps=steps, first_rung=rung)
            for name, side in sides.items()
        },
        1 if args.quick else args.rounds,
        "search",
    )
    rows, ratios = [], {name: [] for name in sides}
    for number, optuna in enumerate(found.results["optuna"], 1):
        goal = best(optuna) - _SAME_AUC
        for name, results in found.results.items():
            secs = secs_to(results[number - 1], goal)
            ratios[name].append(secs / secs_to(optuna, goal))
            done = sum(step for _, step, _ in results[number - 1]["reached"])
            rows.append([sides[name].name, number, best(results[number - 1]), secs, results[number - 1]["secs"], done])
    header = ["side", "round", "best AUC", "s to Optuna's AUC", "s in all", "steps reported"]
    show("search", f"{trials} trials of at most {steps} steps, two at a time", table(header, rows))
    verdicts = [at_most("time to Optuna's AUC, over Optuna's", 1 / 4, statistics.median(ratios["ours"]))]
    if ratios.get("ray"):
        over = statistics.median(o / r for o, r in zip(ratios["ours"], ratios["ray"], strict=False))
        verdicts.append(at_most("time to Optuna's AUC, over Ray Tune's", 1 / 6, over))
    return verdicts


def short(sides: dict[str, Side], args: argparse.Namespace) -> list[Verdict]:
    """Trials of ten steps, from the command to the table."""
    trials = 3 if args.quick else 12
    found: Measured = alternate(
        {
            name: functools.partial(run, side, args.data, trials=trials, parallel=2, steps=10, first_rung=0)
            for name, side in sides.items()
        },
        1 if args.quick else args.rounds,
        "short",
    )
    rows = [[sides[name].name, found.median(name, "secs"), found.median(name, "cpu")] for name in found.results]
    show("short", f"{trials} trials of 10 steps, evaluation and export", table(["side", "s", "CPU s"], rows))
    ratio = found.ratio("secs", "ours", "optuna")
    return [at_most("short trials, over Optuna's", 1 / 4, ratio)]


def cost(sides: dict[str, Side], args: argparse.Namespace) -> list[Verdict]:
    """CPU seconds that a trial costs beyond its training."""
    few, many = (2, 3) if args.quick else (4, 24)
    trained = Side(name="trained before", script="trained_census")
    runs = {
        "few": functools.partial(run, sides["ours"], args.data, trials=few, parallel=1, steps=10, first_rung=0),
        "many": functools.partial(run, sides["ours"], args.data, trials=many, parallel=1, steps=10, first_rung=0),
        "bare": functools.partial(run, trained, args.data, trials=many, parallel=1, steps=10, first_rung=0),
    }
    found = alternate(runs, 1 if args.quick else args.rounds, "cost")
    trial = [
        (more - less) / (many - few)
        for more, less in zip(found.values("many", "cpu"), found.values("few", "cpu"), strict=True)
    ]
    bare = found.values("bare", "cpu")
    rows = [
        ["a trial", statistics.median(trial)],
        ["its training, in a process that has trained", statistics.median(bare)],
    ]
    show("cost", "CPU seconds", table(["what", "CPU s"], rows))
    beyond = statistics.median(one - other for one, other in zip(trial, bare, strict=True))
    return [at_most("CPU seconds of a trial beyond its training", 0.3, beyond)]


def quality(sides: dict[str, Side], args: argparse.Namespace) -> list[Verdict]:
    """Steps and best AUC with early stopping, against all trials to their end, and against Optuna's pruner."""
    trials, steps, rung, seeds, full_seeds = (3, 40, 10, 2, 1) if args.quick else (30, 2000, 125, 10, 5)
    # Trials of functions compute on one thread, as Optuna's do here, and so all have the same compiled step.
    same_step = {"OMP_NUM_THREADS": "1", **COMPILED}
    ours = functools.partial(run, STUDIES["ours"], args.data, trials=trials, parallel=2, steps=steps)
    run(STUDIES["ours"], args.data, same_step, trials=1, parallel=1, steps=steps, first_rung=0)
    rows, saved, short_of_all, over_optuna = [], [], [], []
    for seed in range(seeds):
        print(f"quality {seed + 1}/{seeds}", file=sys.stderr, flush=True)
        stopped = ours(first_rung=rung, seed=seed)
        every = ours(first_rung=0, seed=seed) if seed < full_seeds else None
        optuna = run(
            STUDIES["optuna"],
            args.data,
            same_step,
            trials=trials * 10,
            parallel=1,
            steps=steps,
            first_rung=rung,
            budget=stopped["steps"],
            seed=seed,
        )
        over_optuna.append(stopped["best"] - optuna["best"])
        if every is not None:
            saved.append(stopped["steps"] / every["steps"])
            short_of_all.append(every["best"] - stopped["best"])
        for name, one in (("ours, ASHA", stopped), ("ours, all to the end", every), ("Optuna's pruner", optuna)):
            if one is not None:
                ended = sum(str(steps) in trial for trial in one["trials"])
                rows.append([name, str(seed), str(len(one["trials"])), str(ended), one["steps"], f"{one['best']:.5f}"])
    header = ["study", "seed", "trials", "of them to the end", "steps", "best AUC"]
    show(
        "quality", f"{trials} trials of at most {steps} steps; Optuna's as many as have our steps", table(header, rows)
    )
    error = statistics.stdev(over_optuna) / math.sqrt(seeds)
    return [
        at_most("steps of ASHA over those of all trials to the end", 1 / 3, statistics.mean(saved)),
        at_most("AUC that ASHA's best trial is below the best of all", _SAME_AUC, statistics.mean(short_of_all), 5),
        at_least("mean best AUC less Optuna's, at equal steps", -error, statistics.mean(over_optuna), 5),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and the verdicts; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench tuning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder with adult.data.csv and adult.test.csv")
    add("--rounds", type=int, default=3, help="how often every side runs")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    add("--peers", nargs="*", choices=("optuna", "ray"), default=["optuna"], help="others beside ours")
    add("--quick", action="store_true", help="tiny studies, to see that it runs")
    args = parser.parse_args(arguments)
    check_data(parser, args.data)
    wanted = {name: side for name, side in SIDES.items() if name == "ours" or name in {"optuna", *args.peers}}
    sides = ready(wanted, install=True)
    # The cache has a step for each number of threads: one where trials run side by side, else as many as cores.
    for parallel in (1, 2):
        run(sides["ours"], args.data, COMPILED, trials=1, parallel=parallel, steps=20, first_rung=0)
    show_machine()
    parts = {"search": search, "short": short, "cost": cost, "quality": quality}
    return conclude([one for name in args.parts for one in parts[name](sides, args)], quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
