"""Command ``estimator check``: load an export, compare its predictions with the recorded ones, measure it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from torch_estimator.cli.registry_options import add_format
from torch_estimator.cli.show import newest_export
from torch_estimator.cli.tables import aligned, size_of
from torch_estimator.errors import printable
from torch_estimator.export.warmup import TOLERANCE
from torch_estimator.registry.check import CheckReport, check_export

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Loads an export in a process of its own, without torch. Compares what it predicts for the instances that were recorded
when it was written, and measures how long that takes. A version of a registry is compared with its manifest, too. The
exit status is 2 if something does not hold."""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "check", help="try an export: does it load, predict the same, how fast", description=_ABOUT
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("export", nargs="?", metavar="EXPORT", help="the export, or a directory of numbered ones")
    where.add_argument("--model-dir", metavar="DIR", help="EXPORT, named as for estimator predict")
    add_format(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print what was found out about an export."""
    report = check_export(newest_export(options.export or options.model_dir))
    if options.format == "json":
        print(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        print(printable(_text(report)))


def _text(report: CheckReport) -> str:
    lines = [
        f"{report.directory}: {size_of(report.bytes)}, onnxruntime {report.onnxruntime} on {report.machine}",
        f"Ready {report.start_secs:.2f} s after the start of a process, {report.load_secs:.2f} s of it to load the "
        "export; torch is not needed.",
    ]
    if report.has_manifest:
        lines.append("The files are those of its manifest.")
    if not report.instances:
        lines.append("It has no recorded instances, so that it was loaded only: nothing was compared or measured.")
        return "\n".join(lines)
    lines.append(f"All {report.instances} recorded predictions are reproduced (numbers within {TOLERANCE:g}).")
    table = [["BATCH", "MEDIAN", "P99", "ROWS/S"]]
    for size, latency in report.latency.items():
        rate = f"{1000 * size / latency.median_ms:,.0f}"
        table.append([str(size), f"{latency.median_ms:.3f} ms", f"{latency.p99_ms:.3f} ms", rate])
    return "\n".join([*lines, f"Latency of the signature {report.signature!r}, one thread:", aligned(table)])
