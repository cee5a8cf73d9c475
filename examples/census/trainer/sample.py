"""A made-up census: files with the Adult data set's fifteen columns, drawn from a process known exactly.

`people` describes the process. Because it gives every row's true P(income > 50K), what the best possible
model reaches is known too: it answers ">50K" where P > 1/2 and ranks people by P.
`python -m examples.census.trainer.sample` prints that accuracy and AUC.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.csv

from torch_estimator import errors, files

from . import columns, people
from .options import at_least

TRAIN_ROWS = 32_561
EVAL_ROWS = 16_278
TRAIN_FILE = "train.csv"
EVAL_FILE = "eval.csv"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Where a sample lies and what the best possible model scores on its evaluation file."""

    train_file: str
    eval_file: str
    best_accuracy: float
    best_auc: float


def write(directory: str, *, seed: int = 1, train_rows: int = TRAIN_ROWS, eval_rows: int = EVAL_ROWS) -> Sample:
    """Writes `train.csv` and `eval.csv` under `directory`, a path or an fsspec URL.

    The two files are drawn from the same process with different random numbers. The same arguments always
    give the same bytes. `sample.json`, written last, keeps the result, and a directory that has it for the
    same arguments is left as it is.
    """
    made_with = {"seed": seed, "train_rows": train_rows, "eval_rows": eval_rows}
    record = files.join(directory, "sample.json")
    if files.exists(record):
        known = json.loads(files.read_text(record))
        if known["made_with"] == made_with:
            return _sample(directory, known["best"])
    files.makedirs(directory)
    train, evaluation = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    _write_csv(files.join(directory, TRAIN_FILE), people.draw(train_rows, train)[0])
    population, chance = people.draw(eval_rows, evaluation)
    _write_csv(files.join(directory, EVAL_FILE), population)
    best = best_reachable(chance, population["income_bracket"] == columns.LABELS[1])
    files.write_atomic(record, json.dumps({"made_with": made_with, "best": best}, indent=2).encode())
    return _sample(directory, best)


def best_reachable(chance: np.ndarray, rich: np.ndarray) -> dict[str, float]:
    """Accuracy and AUC on these very rows of the model that knows every row's true probability."""
    order = np.argsort(chance, kind="stable")
    rank = np.empty(len(chance))
    rank[order] = np.arange(1, len(chance) + 1)
    positives = int(rich.sum())
    pairs = positives * (len(rich) - positives)
    wins = rank[rich].sum() - positives * (positives + 1) / 2
    accuracy = np.mean((chance > 0.5) == rich)
    return {"best_accuracy": float(accuracy), "best_auc": float(wins / pairs) if pairs else 0.0}


def _sample(directory: str, best: Mapping[str, float]) -> Sample:
    return Sample(
        train_file=files.join(directory, TRAIN_FILE),
        eval_file=files.join(directory, EVAL_FILE),
        best_accuracy=best["best_accuracy"],
        best_auc=best["best_auc"],
    )


def _write_csv(path: str, population: dict[str, np.ndarray]) -> None:
    table = pa.table({name: pa.array(population[name]) for name in columns.CSV_COLUMNS})
    sink = pa.BufferOutputStream()
    options = pa.csv.WriteOptions(include_header=False, quoting_style="none")
    pa.csv.write_csv(table, sink, options)
    files.write_atomic(path, sink.getvalue().to_pybytes())


def main(arguments: list[str] | None = None) -> None:
    """Writes a sample and prints what can be reached on it."""
    parser = argparse.ArgumentParser(description="Write a made-up census: train.csv and eval.csv.")
    parser.add_argument("--out", default="runs/census-sample", help="directory or URL (default: %(default)s)")
    parser.add_argument("--seed", type=at_least(0), default=1, help="default: %(default)s")
    parser.add_argument("--train-rows", type=at_least(1), default=TRAIN_ROWS, help="default: %(default)s")
    parser.add_argument("--eval-rows", type=at_least(1), default=EVAL_ROWS, help="default: %(default)s")
    args = parser.parse_args(arguments)
    with errors.exit_on_user_error():
        sample = write(args.out, seed=args.seed, train_rows=args.train_rows, eval_rows=args.eval_rows)
    print(f"{sample.train_file}: {args.train_rows} rows")
    print(f"{sample.eval_file}: {args.eval_rows} rows")
    print(f"best reachable on it: accuracy {sample.best_accuracy:.4f}, AUC {sample.best_auc:.4f}")


if __name__ == "__main__":
    main()
