"""How steps per second grow with the cluster, on paper: `scripts/bench scaling`.

What a step of the census sample costs is measured here, by who spends it: the process that trains, its transport, the
server, and the way between them (`benchmarks/peers/ours_costs.py`, `benchmarks/engine/server_farm.py`). A simulation of
events (`benchmarks/simulation`) that knows nothing else has to come within 15 % of how many steps one and two workers
with one server took in the same run on this machine's cores, and two synchronous workers. Then it tells how many steps
per second clusters of up to 1,000 workers would take, each process on a machine of its own, and what holds them up; and
draws it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.census.setup import check_data, empty_cache
from benchmarks.engine.echo import round_trips
from benchmarks.engine.gathering import gathers, line_through
from benchmarks.engine.waking import wake_secs
from benchmarks.protocol import ROOT, Measured, Table, Verdict, at_most, conclude, show, show_machine, table
from benchmarks.simulation import Machine, Network
from benchmarks.simulation.comparison import Compared, Here, compare, update_secs
from benchmarks.simulation.measured import (
    SLEEP_MS,
    TOGETHER,
    WAYS,
    Plan,
    exchanges_of,
    measure,
    measure_servers,
    side_of,
    worker_of,
)
from benchmarks.simulation.plot import Line, Panel, svg
from benchmarks.simulation.prediction import Curve, replicas_curve, served_curve

DATA = ROOT.parent / "shared" / "data" / "census"
DRAWING = ROOT / "docs" / "pictures" / "scaling.svg"

MOST_ERROR = 15.0
WORKERS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SERVERS = (1, 4, 16, 64)

_SIZES = [64, 16_384, 163_840, 1_048_576]
_WAITING = "waiting for input"


def look_around(args: argparse.Namespace) -> tuple[Here, str]:
    """What messages cost on this machine, and a table of it."""
    calls = 20 if args.quick else 400
    trips, collectives = round_trips(_SIZES, calls), gathers(_SIZES, calls)
    call, _ = line_through(collectives)
    rows = [
        [f"{trip.size:,}", *(1e6 * secs for secs in (trip.secs, trip.cpu_secs, trip.idle_secs, collectives[trip.size]))]
        for trip in trips
    ]
    machine = Machine(cores=len(os.sched_getaffinity(0)), wake=wake_secs(calls))
    told = table(["bytes", "there and back us", "CPU of both us", "idle us", "exchange of 2 us"], rows)
    return (
        Here(machine=machine, call=call),
        f"{told}\n\nAn idle core begins {1e6 * machine.wake:.1f} us after it was told to.",
    )


def cost_table(measured: Measured) -> Table:
    """What a step costs whom, from the last round."""
    rows = []
    for way in WAYS:
        for report in measured.results.get(side_of(way, 1), [])[-1:]:
            (server,), stages = report["farm"]["servers"], report["stages"]
            secs = [
                stages["compute"],
                stages["look up"] + report["around"],
                stages["pack"],
                stages["unpack"],
                report["io"],
                report["beside"],
                server["handle"],
                report["farm"]["io"],
            ]
            rows.append([way, *(1e6 * one for one in secs), report["wall"] * 1e6])
    header = [
        "CPU us a step",
        "compute",
        "around it",
        "pack",
        "unpack",
        "transport",
        "input",
        "server",
        "its transport",
    ]
    return table([*header, "on the clock"], rows)


def server_table(measured: Measured) -> Table:
    """What a step costs with more servers, in all and on the busiest one."""
    rows = []
    for count, (report,) in measured.results.items():
        servers, stages = report["farm"]["servers"], report["stages"]
        secs = [stages["pack"], stages["unpack"], report["io"], max(one["handle"] for one in servers)]
        largest = max(one["up"] + one["down"] for one in servers)
        rows.append([count, *(1e6 * one for one in secs), f"{largest:,.0f}"])
    return table(["servers", "pack us", "unpack us", "transport us", "busiest server us", "its bytes"], rows)


def comparison_table(compared: Sequence[Compared]) -> Table:
    """Measured and simulated, the medians."""
    rows = [[one.way, one.workers, one.middle(one.measured), one.middle(one.simulated), one.error] for one in compared]
    return table(["", "workers", "steps/s measured", "simulated", "error %"], rows)


def verdicts_of(compared: Sequence[Compared]) -> list[Verdict]:
    """That each is near enough."""
    return [
        at_most(
            f"simulated {one.way}, {one.workers} that train: error in %",
            MOST_ERROR,
            None if one.error is None else abs(one.error),
        )
        for one in compared
    ]


def predict(args: argparse.Namespace, here: Here, measured: Measured, servers: Measured) -> dict[str, dict[str, Curve]]:
    """By what holds workers back, by cluster, batches per second."""
    network = Network(latency=args.latency_us / 1e6, bytes_per_s=args.gbit * 1e9 / 8)
    workers = [count for count in WORKERS if count <= args.most]
    exchanges = {int(count): exchanges_of(reports[-1]) for count, reports in servers.results.items()}
    unbound = worker_of(servers.results["1"][-1])
    waiting = worker_of(measured.results[side_of(_WAITING, 1)][-1], pause=SLEEP_MS / 1000)
    curves = {
        name: {_servers(count): served_curve(worker, some, network, workers) for count, some in exchanges.items()}
        for name, worker in (("Nothing but training", unbound), (f"{SLEEP_MS} ms of waiting for each batch", waiting))
    }
    report = measured.results[side_of(TOGETHER, 2)][-1]
    size, alike = report["message"]["bytes"], worker_of(report)
    together = {
        name: replicas_curve(alike, size, network, workers, call=here.call, update=update, reduces=reduces)
        for name, update, reduces in (
            ("all_gather", lambda count: update_secs(report, count), False),
            ("ring all-reduce", lambda _: update_secs(report, 2), True),
        )
    }
    return {**curves, "Synchronous": together}


def prediction_table(curves: Mapping[str, Curve]) -> Table:
    """Batches per second by workers."""
    first = next(iter(curves.values()))
    rows = [[f"{count:,}", *(curve.rates[count] for curve in curves.values())] for count in first.rates]
    return table(["workers", *curves], rows)


def said_of(name: str, curve: Curve) -> str:
    """A sentence on where a curve bends."""
    most = max(curve.rates)
    if curve.linear_to == most:
        return f"{name}: linear to {most:,} workers, within a tenth."
    busy = curve.bottleneck
    held = f", where the {busy} is busy {100 * curve.busy[most][busy]:.0f} % of the time" if busy else ""
    return f"{name}: linear to {curve.linear_to:,} workers; {curve.rates[most]:,.0f} batches/s with {most:,}{held}."


def drawing(predicted: Mapping[str, Mapping[str, Curve]]) -> str:
    """All of it as SVG."""
    panels = []
    for title, curves in predicted.items():
        first = next(iter(curves.values())).rates
        linear = Line(name="linear", points=[(count, count * first[1]) for count in first], dashed=True)
        lines = [Line(name=name, points=list(curve.rates.items())) for name, curve in curves.items()]
        panels.append(Panel(title=title, x="workers", y="batches/s", lines=[*lines, linear]))
    return svg(panels)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder with adult.data.csv")
    add("--batch", type=int, default=40, help="rows in a step")
    add("--rounds", type=int, default=3, help="how often everything is measured")
    add("--gbit", type=float, default=10.0, help="of the cluster's network, Gbit/s of each machine, each way")
    add("--latency-us", type=float, default=50.0, help="of the cluster's network, microseconds one way")
    add("--most", type=int, default=max(WORKERS), help="workers of the largest cluster that is simulated")
    add("--drawing", type=Path, default=DRAWING, help="where the plot goes; a quick run draws none")
    add("--quick", action="store_true", help="one round of few steps, to see that it runs")
    args = parser.parse_args(arguments)
    check_data(parser, args.data)
    if args.quick:
        args.rounds, args.most = 1, min(args.most, 10)
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables and the verdicts; gives the exit status."""
    args = parse(arguments)
    plan = Plan(
        data=args.data,
        batch=args.batch,
        rounds=args.rounds,
        servers=SERVERS[:2] if args.quick else SERVERS,
        quick=args.quick,
    )
    here, messages = look_around(args)
    print(f"\nA message on this machine\n\n{messages}", flush=True)
    with empty_cache() as variables:
        measured = measure(plan, variables)
        servers = measure_servers(plan, variables)
    show("costs", f"A step of {args.batch} rows, one worker and one server", cost_table(measured))
    show("more_servers", "With more servers", server_table(servers))
    compared = compare(measured, here)
    show("compared", "Measured on this machine, and simulated", comparison_table(compared))
    failed = [*measured.failures, *servers.failures]
    if not failed:
        predicted = predict(args, here, measured, servers)
        for title, curves in predicted.items():
            show(title, f"{title}, batches/s", prediction_table(curves))
            print("\n" + "\n".join(said_of(name, curve) for name, curve in curves.items()))
        if not args.quick:
            args.drawing.write_text(drawing(predicted))
    show_machine(measured.versions())
    return conclude(verdicts_of(compared), failed=failed, quick=args.quick)


def _servers(count: int) -> str:
    return f"{count} server{'s' * (count > 1)}"


if __name__ == "__main__":
    sys.exit(main())
