"""Training the census sample with parameter servers, ours and TensorFlow 2.15's: `scripts/bench parameter_servers`.

A chief and one parameter server on this machine, each a process of its own on the same file, the same model and the
same batch (`benchmarks/peers/*_census.py --cluster`). Parts: `small` and `large` (steps per second at batches of 40 and
512), `transport` (the same messages over plain TCP, at 40), `scaling` (1, 2 and 4 processes that train, each waiting
10 ms for its input before every step), `advise` (what `estimator jobs advise` says of trainings whose steps wait, with
servers and without, against doing it).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.census.setup import OURS, Part, check_data, empty_cache
from benchmarks.protocol import (
    ROOT,
    Side,
    Verdict,
    alternate,
    at_least,
    at_most,
    conclude,
    ready,
    run_cluster,
    show,
    show_machine,
    table,
)

DATA = ROOT.parent / "shared" / "data" / "census"
SIDES = {
    "ours": OURS,
    "pipelined": Side(name="torch-estimator, pipelined", script="ours_census", arguments=("--pipeline",)),
    "tensorflow": Side(name="TF 2.15 tf.estimator", script="tensorflow_census", environment="tensorflow"),
}
STEPS = {
    40: {"ours": (12_000, 4_000), "pipelined": (12_000, 4_000), "tensorflow": (1_500, 300)},
    512: {"ours": (3_000, 1_000), "pipelined": (3_000, 1_000), "tensorflow": (250, 50)},
}
"""By batch and side: steps, and those of the warm-up."""

PROMISES = {40: {"ours": 6.0, "pipelined": 10.0}, 512: {"ours": 10.0}}
"""By batch and side: how many times TensorFlow's steps per second."""

OVER_RAW = {"ours": 0.7, "pipelined": 0.8}
"""By side: our steps per second over those of the same messages through plain TCP."""

TRAINERS = {1: None, 2: 1.95, 4: 3.8}
"""How many processes train, and how many times one's steps per second they are to take."""

_SLEEP_MS = 10
_STEPS_ASLEEP = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """A training whose steps wait so many milliseconds, what bounds it, and what to add to it."""

    bound: str
    adds: str
    waits: Mapping[str, float]
    trainers: int = 1
    servers: int = 0
    ahead: bool = True

    def run(self, secs: float) -> dict[str, Any]:
        """Run it; return the steps per second of all processes, and the advice."""
        waits = [part for name, value in self.waits.items() for part in (f"--{name}-ms", value)]
        given = [*waits, *(["--ahead"] if self.ahead else []), "--secs", secs]
        return run_cluster(WAITING, given, workers=self.trainers - 1, servers=self.servers)

    def with_more(self) -> Advised:
        """The training to which it was added. One more reader reads in half the time."""
        if self.adds == "reader":
            return replace(self, waits={**self.waits, "input": self.waits["input"] / 2})
        if self.adds == "worker":
            return replace(self, trainers=self.trainers + 1)
        return replace(self, servers=self.servers + 1)


WAITING = Side(name="torch-estimator", script="ours_waiting")
ADVISED = {
    "alone, input": Advised(bound="input", adds="reader", waits={"computing": 24, "input": 75}),
    "alone, input in the same thread": Advised(
        bound="input", adds="reader", waits={"computing": 24, "input": 75}, ahead=False
    ),
    "alone, input slowed little": Advised(bound="computing", adds="reader", waits={"computing": 60, "input": 30}),
    "in step, computing": Advised(bound="computing", adds="worker", waits={"computing": 75, "network": 6}, trainers=2),
    "in step, slowest": Advised(bound="others", adds="worker", waits={"computing": 30, "slowest": 75}, trainers=2),
    "in step, input": Advised(bound="input", adds="reader", waits={"computing": 24, "input": 90}, trainers=2),
    "in step, network": Advised(bound="network", adds="worker", waits={"computing": 24, "network": 36}, trainers=2),
    "in step, saving": Advised(bound="saving", adds="worker", waits={"computing": 24, "saving": 48}, trainers=2),
    "servers, input": Advised(
        bound="input", adds="worker", waits={"computing": 15, "input": 90, "service": 12}, trainers=2, servers=1
    ),
    "servers, computing": Advised(
        bound="computing", adds="worker", waits={"computing": 120, "service": 24}, trainers=2, servers=1
    ),
    "servers, busy": Advised(
        bound="servers", adds="server", waits={"computing": 60, "service": 60}, trainers=3, servers=1
    ),
    "two servers, saturated": Advised(
        bound="servers", adds="worker", waits={"computing": 60, "service": 120}, trainers=3, servers=2
    ),
    "servers, network": Advised(
        bound="network", adds="worker", waits={"computing": 30, "service": 12, "network": 90}, trainers=2, servers=1
    ),
}
"""By what bounds them: trainings with servers, in step and alone."""

_MORE = ", and one more"
_SECS_ADVISED = 30.0
_LEAST_RIGHT = 0.9
_MOST_GAIN_ERROR = 0.2
_LEAST_GAIN = 1.2


def measure(args: argparse.Namespace, sides: Mapping[str, Side], batch: int) -> Part:
    """A chief and one parameter server."""

    def run(key: str, variables: Mapping[str, str]) -> dict[str, Any]:
        steps, warmup = (64, 32) if args.quick else STEPS[batch][key]
        compiled = () if key == "tensorflow" else ("--compile", "yes")
        given = ["--data", args.data, "--batch", batch, "--steps", steps, "--warmup", warmup, *compiled]
        return run_cluster(sides[key], given, variables=variables)

    with empty_cache() as variables:
        runs = {key: partial(run, key, variables) for key in sides}
        measured = alternate(runs, args.rounds, f"chief and ps at {batch}")
    rows = [
        [
            side.name,
            measured.median(key, "steps_per_s"),
            measured.median(key, "examples_per_s"),
            measured.ratio("steps_per_s", over=key, under="tensorflow"),
        ]
        for key, side in sides.items()
        if key in measured.results
    ]
    verdicts = [
        at_least(
            f"chief and ps, steps/s at {batch} over TF 2.15, {SIDES[key].name}",
            least,
            measured.ratio("steps_per_s", over=key, under="tensorflow"),
        )
        for key, least in PROMISES[batch].items()
    ]
    return Part(
        title=f"A chief and a parameter server, batches of {batch}",
        table=table(["", "steps/s", "examples/s", "over TF"], rows),
        verdicts=verdicts,
        measured=measured,
    )


def measure_transport(args: argparse.Namespace, sides: Mapping[str, Side]) -> Part:
    """ZeroMQ, and plain TCP in its place."""
    raws = {
        f"raw {key}": replace(side, name=f"{side.name}, plain TCP", arguments=(*side.arguments, "--raw"))
        for key, side in sides.items()
        if key in OVER_RAW
    }
    both = {key: side for name in OVER_RAW for key, side in ((name, sides[name]), (f"raw {name}", raws[f"raw {name}"]))}

    def run(key: str, variables: Mapping[str, str]) -> dict[str, Any]:
        steps, warmup = (64, 32) if args.quick else STEPS[40][key.removeprefix("raw ")]
        given = ["--data", args.data, "--batch", 40, "--steps", steps, "--warmup", warmup, "--compile", "yes"]
        return run_cluster(both[key], given, variables=variables)

    with empty_cache() as variables:
        measured = alternate({key: partial(run, key, variables) for key in both}, args.rounds, "transport")
    rows = [
        [side.name, measured.median(key, "steps_per_s"), measured.ratio("steps_per_s", over=key, under=f"raw {key}")]
        if key in OVER_RAW
        else [side.name, measured.median(key, "steps_per_s"), None]
        for key, side in both.items()
        if key in measured.results
    ]
    verdicts = [
        at_least(
            f"chief and ps, steps/s at 40 over plain TCP, {sides[key].name}",
            least,
            measured.ratio("steps_per_s", over=key, under=f"raw {key}"),
        )
        for key, least in OVER_RAW.items()
    ]
    return Part(
        title="The same messages through ZeroMQ and through plain TCP, batches of 40",
        table=table(["", "steps/s", "over plain TCP"], rows),
        verdicts=verdicts,
        measured=measured,
    )


def measure_scaling(args: argparse.Namespace, sides: Mapping[str, Side]) -> Part:
    """More processes that train, each bound by its input."""

    def run(trainers: int) -> dict[str, Any]:
        steps = 64 if args.quick else _STEPS_ASLEEP * trainers
        given = ["--data", args.data, "--steps", steps, "--warmup", steps // 3, "--compile", "no"]
        return run_cluster(OURS, [*given, "--sleep-ms", _SLEEP_MS], workers=trainers - 1)

    measured = alternate({str(n): partial(run, n) for n in TRAINERS}, args.rounds, "scaling")
    ratios = {n: measured.ratio("steps_per_s", over=str(n), under="1") for n in TRAINERS}
    rows = [[str(n), measured.median(str(n), "steps_per_s"), ratios[n]] for n in TRAINERS if str(n) in measured.results]
    verdicts: list[Verdict] = [
        at_least(f"global steps/s of {n} that train over one", least, ratios[n])
        for n, least in TRAINERS.items()
        if least is not None
    ]
    return Part(
        title=f"Processes that train, {_SLEEP_MS} ms of waiting before each step",
        table=table(["trainers", "global steps/s", "over one"], rows),
        verdicts=verdicts,
        measured=measured,
    )


def measure_advice(args: argparse.Namespace, sides: Mapping[str, Side]) -> Part:
    """What is said of a training, and what comes of doing it."""
    secs = 6 if args.quick else _SECS_ADVISED
    runs: dict[str, Callable[[], Any]] = {}
    for name, one in ADVISED.items():
        runs |= {name: partial(one.run, secs), f"{name}{_MORE}": partial(one.with_more().run, secs)}
    measured = alternate(runs, 1, "advise")
    rows, right, errors, gain_errors = [], [], [], []
    for name, one in ADVISED.items():
        times = measured.ratio("steps_per_s", over=f"{name}{_MORE}", under=name)
        if times is not None:
            said = measured.results[name][0]
            (gain,) = [gain for gain in said["gains"] if gain["of"] == one.adds]
            low, expected, high = (1 + gain[key] for key in ("low", "gain", "high"))
            right.append(said["bound"] == one.bound)
            errors.append(abs(expected / times - 1))
            if times > _LEAST_GAIN:
                gain_errors.append(abs((expected - 1) / (times - 1) - 1))
            rows.append([name, one.bound, said["bound"], one.adds, expected, low, high, times])
    return Part(
        title="What jobs advise says of steps that wait, against doing it",
        table=table(["", "bound by", "said", "added", "steps/s, times", "from", "to", "measured"], rows),
        verdicts=[
            at_least("share of trainings with the right bottleneck", _LEAST_RIGHT, sum(right) / max(1, len(right))),
            at_most("greatest error of steps/s after the change", _MOST_GAIN_ERROR, max(errors, default=None)),
            at_most("greatest error of a gain over a fifth", _MOST_GAIN_ERROR, max(gain_errors, default=None)),
        ],
        measured=measured,
    )


PARTS: dict[str, Callable[[argparse.Namespace, Mapping[str, Side]], Part]] = {
    "small": partial(measure, batch=40),
    "large": partial(measure, batch=512),
    "transport": measure_transport,
    "scaling": measure_scaling,
    "advise": measure_advice,
}
_WITH_PEERS = {"small", "large", "transport"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables and the verdicts; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench parameter_servers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder with adult.data.csv and adult.test.csv")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure; by default everything")
    add("--rounds", type=int, default=3, help="how often every side runs")
    add("--quick", action="store_true", help="one round of few steps, to see that it runs; installs nothing")
    args = parser.parse_args(arguments)
    check_data(parser, args.data)
    args.rounds = 1 if args.quick else args.rounds
    sides = ready(SIDES if _WITH_PEERS.intersection(args.parts) else {}, install=not args.quick)
    parts = []
    for name in args.parts:
        part = PARTS[name](args, sides)
        show(name, part.title, part.table)
        parts.append(part)
    versions = {peer: version for part in parts for peer, version in part.measured.versions().items()}
    show_machine(versions)
    failed = [side for part in parts for side in part.measured.failures]
    return conclude([one for part in parts for one in part.verdicts], failed=failed, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
