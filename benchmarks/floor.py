"""The least that a training step of the census sample can take on this machine: `scripts/bench floor`.

The step's work is counted from the sample's columns, and each piece of it is timed alone, with nothing around it:
the matrix products of the layers in their very shapes, by `torch.mm`, the rows of the wide table that a batch touches,
fetched and put back, and the network's weights, streamed through an Adagrad update. Their sum is the floor; beside it
stands the compiled step of `Estimator.train`, fed from memory. Work that a step also has and the floor leaves out:
activations, the loss and its gradient, sorting ids that meet twice, sums over rows. Where PyTorch's MKL does not use
AVX-512, as on AMD's processors, a compiled step multiplies faster than `torch.mm` and may be below this floor.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks import overhead
from benchmarks.census.setup import check_data
from benchmarks.peers import census_rows
from benchmarks.protocol import show, show_machine, table

_SIZES = (census_rows.DEEP_INPUTS, *census_rows.HIDDEN_UNITS, 1)
_LAYERS = list(itertools.pairwise(_SIZES))
_WEIGHTS = sum((inputs + 1) * units for inputs, units in _LAYERS)
# Ftrl keeps two numbers beside each wide weight; Adagrad one beside each of the network's.
_FTRL_TABLES = 3
_LINE_BYTES = 64
_LARGE = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Piece:
    """One kind of work in a step: its amount in words, and the seconds that it takes alone."""

    what: str
    amount: str
    seconds: float


def seconds_of(work: Callable[[], object], *, rounds: int = 7, least: float = 0.05) -> float:
    """The median over rounds of the seconds that a call takes, each round at least `least` seconds long."""
    calls, took = 1, 0.0
    while took < least / 2:
        calls *= 2
        took = _seconds(work, calls)
    calls = max(1, int(calls * least / took))
    return statistics.median(_seconds(work, calls) / calls for _ in range(rounds))


def products(batch: int) -> Piece:
    """Forward, the gradient of the weights and that of the inputs, layer by layer."""
    seconds, operations = 0.0, 0
    for inputs, units in _LAYERS:
        rows, weights, outputs = torch.randn(batch, inputs), torch.randn(inputs, units), torch.randn(batch, units)
        into = torch.empty_like(outputs), torch.empty_like(weights), torch.empty_like(rows)
        for left, right, made in (
            (rows, weights, into[0]),
            (rows.t(), outputs, into[1]),
            (outputs, weights.t(), into[2]),
        ):
            seconds += seconds_of(lambda left=left, right=right, made=made: torch.mm(left, right, out=made))
            operations += 2 * batch * inputs * units
    rate = operations / seconds / 1e9
    return Piece("matrix products", f"{operations / 1e6:.2f} MFLOP at {rate:.0f} GFLOP/s", seconds)


def wide_rows(batch: int, rows: census_rows.CensusRows) -> Piece:
    """The distinct wide weights of a batch and their two accumulators, read and written where they lie."""
    ids = rows.wide_ids()
    orders = census_rows.orders(len(rows), batch)
    batches = [torch.from_numpy(np.unique(ids[next(orders)])) for _ in range(64)]
    tables = [torch.zeros(census_rows.WIDE_ROWS) for _ in range(_FTRL_TABLES)]
    turn = itertools.cycle(batches)

    def work() -> None:
        places = next(turn)
        for one in tables:
            one.index_put_((places,), one.index_select(0, places))

    touched = statistics.mean(map(len, batches))
    lines = touched * _FTRL_TABLES * _LINE_BYTES / 1024
    amount = f"{touched:.0f} rows of {_FTRL_TABLES} tables, {lines:.0f} KiB of cache lines"
    return Piece("wide rows", amount, seconds_of(work))


def network_update() -> Piece:
    """Weights, gradients and accumulators of the network once through Adagrad."""
    weights, gradients, sums = (torch.rand(_WEIGHTS) for _ in range(3))

    def work() -> None:
        sums.addcmul_(gradients, gradients)
        weights.addcdiv_(gradients, sums.sqrt(), value=-1e-9)

    return Piece(
        "network's weights", f"{_WEIGHTS:,} weights, {5 * 4 * _WEIGHTS / 1024:.0f} KiB moved", seconds_of(work)
    )


def bandwidth() -> float:
    """Bytes a second of a copy that no cache holds, reading and writing counted."""
    source, target = torch.zeros(_LARGE // 4), torch.empty(_LARGE // 4)
    return 2 * _LARGE / seconds_of(lambda: target.copy_(source), rounds=5)


def gemm_rate() -> float:
    """Floating-point operations a second of a large matrix product."""
    one, two, made = (torch.randn(1024, 1024) for _ in range(3))
    return 2 * 1024**3 / seconds_of(lambda: torch.mm(one, two, out=made), rounds=5)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench floor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=overhead.DATA, help="folder with adult.data.csv")
    add("--batches", type=int, nargs="+", default=[40, 512], help="rows in a step")
    add("--rounds", type=int, default=15, help="how often our step is measured")
    add("--quick", action="store_true", help="a few steps, uncompiled, to see that it runs")
    args = parser.parse_args(arguments)
    check_data(parser, args.data)
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what the machine can do, the pieces, and how far the step is from their sum."""
    args = parse(arguments)
    threads = torch.get_num_threads()
    # Our step takes one thread at these sizes, and the input the other core.
    torch.set_num_threads(1)
    rows = census_rows.read(args.data / "adult.data.csv")
    print(f"\nOne thread: {gemm_rate() / 1e9:.0f} GFLOP/s in a product of 1024 x 1024, ", end="")
    print(f"{bandwidth() / 2**30:.1f} GiB/s copying {_LARGE // 2**20} MiB")
    pieces = {batch: [products(batch), wide_rows(batch, rows), network_update()] for batch in args.batches}
    torch.set_num_threads(threads)
    options = ["--data", args.data, "--batches", *args.batches, "--rounds", args.rounds]
    steps = overhead.measured(
        overhead.parse([*map(str, options), *(["--quick", "--compile", "no"] if args.quick else [])])
    )
    for batch, found in pieces.items():
        floor, step = sum(piece.seconds for piece in found), steps[batch].microseconds("bare", "wall")
        lines = [[piece.what, piece.amount, piece.seconds * 1e6] for piece in found]
        lines += [["floor", "", floor * 1e6], ["compiled step", f"{step / floor / 1e6:.2f} times the floor", step]]
        show(f"at{batch}", f"A step of {batch} rows", table(["", "amount", "us"], lines))
    show_machine()
    return 0


def _seconds(work: Callable[[], object], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
