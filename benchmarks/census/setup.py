"""What all parts of the census benchmark are told, and what each gives back."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.protocol import Measured, Side, Table, Verdict

OURS = Side(name="torch-estimator", script="ours_census")

TRAIN_FILE, TEST_FILE = "adult.data.csv", "adult.test.csv"


def check_data(parser: ArgumentParser, folder: Path, files: Sequence[str] = (TRAIN_FILE,)) -> None:
    """Ends the command with a sentence where a folder lacks one of these files."""
    for file in files:
        if not (folder / file).is_file():
            parser.error(f"{folder} has no {file}; name the folder of the census files with --data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How to measure.

    `data` is a folder with adult.data.csv and adult.test.csv. `rounds` is how often every side runs. With `quick`, so
    little is run that the numbers mean nothing. `compile`, auto, yes or no, is our `RunConfig.compile` of whole
    commands. `peers` are those that take part, by key. `threads` are those of every side; None is each one's own
    choice.
    """

    data: Path
    rounds: int
    quick: bool
    compile: str
    peers: Mapping[str, Side]
    threads: int | None = None

    def arguments(self, *, batch: int, steps: int, warmup: int = 1) -> list[object]:
        """The arguments that all scripts share."""
        threads = ["--threads", self.threads] if self.threads else []
        return ["--data", self.data, "--batch", batch, "--steps", steps, "--warmup", warmup, *threads]

    @property
    def compile_at_once(self) -> str:
        """For steady states: the code that "auto" would switch to, from the start."""
        return "no" if self.compile == "no" else "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part found."""

    title: str
    table: Table
    verdicts: list[Verdict]
    measured: Measured


@contextmanager
def empty_cache() -> Iterator[dict[str, str]]:
    """The variables that give our side a cache of compiled code of its own, empty at first."""
    with TemporaryDirectory() as folder:
        yield cache_variables(Path(folder))


def cache_variables(folder: Path) -> dict[str, str]:
    """The variables that keep compiled code, ours and torch's, in a folder."""
    return {"TORCH_ESTIMATOR_CACHE_DIR": str(folder / "steps"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
