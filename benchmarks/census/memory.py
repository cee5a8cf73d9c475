"""The most memory resident while training from a small and from a large CSV file, each read to its end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.census.setup import OURS, Part, Setup, empty_cache
from benchmarks.protocol import alternate, at_most, table

BATCH = 512
MB = 10**6


def measure(setup: Setup) -> Part:
    """Trains as many steps on each as the large file has batches."""
    sizes = {"10 MB": 10 * MB, "1 GB": 20 * MB if setup.quick else 1000 * MB}
    with TemporaryDirectory() as folder, empty_cache() as variables:
        files = {name: Path(folder) / f"{size}.csv" for name, size in sizes.items()}
        rows = {name: write_repeated(setup.data / "adult.data.csv", files[name], sizes[name]) for name in sizes}
        steps = 60 if setup.quick else -(-max(rows.values()) // BATCH)
        shared = [*setup.arguments(batch=BATCH, steps=steps), "--compile", setup.compile_at_once]
        run = partial(OURS.run, variables=variables, timeout=1800)
        sides = {name: partial(run, [*shared, "--train-file", files[name]]) for name in sizes}
        measured = alternate(sides, 1, "memory")
    peaks = {name: measured.median(name, "peak_mb") for name in sizes}
    small, large = peaks.values()
    more = None if small is None or large is None else large - small
    return Part(
        title=f"Peak memory of {steps:,} steps of {BATCH}, compile={setup.compile_at_once}",
        table=table(["file", "rows", "peak MB"], [[name, rows[name], peaks[name]] for name in sizes]),
        verdicts=[at_most("MB more at the peak when training from 1 GB of CSV than from 10 MB", 300, more)],
        measured=measured,
    )


def write_repeated(source: Path, target: Path, size: int) -> int:
    """Repeats a CSV file until the copy has at least `size` bytes; gives the copy's rows."""
    text = source.read_bytes().strip() + b"\n"
    times = -(-size // len(text))
    with target.open("wb") as file:
        for _ in range(times):
            file.write(text)
    return times * text.count(b"\n")
