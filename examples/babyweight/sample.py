"""A made-up file of births, for trying the example without the real data: `python -m examples.babyweight.sample`."""

from __future__ import annotations

import argparse

import numpy as np

from torch_estimator import errors, files

from ..options import at_least
from . import columns

TRAIN_ROWS = 20_000
EVAL_ROWS = 5_000
# In pounds: what is left where everything that the columns say is known.
NOISE = 1.0


def write(directory: str, *, seed: int = 1, train_rows: int = TRAIN_ROWS, eval_rows: int = EVAL_ROWS) -> list[str]:
    """Writes `train.csv` and `eval.csv` under `directory`, a path or an fsspec URL; returns their names.

    No row is a real birth. The weight is a curve of the weeks plus effects of sex, plurality and the mother's age plus
    normal noise of `NOISE` pounds, which no model can be closer than.
    """
    files.makedirs(directory)
    names = []
    for place, (name, rows) in enumerate((("train.csv", train_rows), ("eval.csv", eval_rows))):
        text = "".join(_births(np.random.default_rng([seed, place]), rows))
        names.append(files.join(directory, name))
        files.write_atomic(names[-1], text.encode())
    return names


def _births(draw: np.random.Generator, rows: int) -> list[str]:
    male = draw.random(rows) < 0.512
    plurality = draw.choice(3, size=rows, p=[0.965, 0.03, 0.005])
    age = np.clip(np.rint(draw.normal(27.4, 6.2, rows)), 13, 50).astype(int)
    weeks = np.clip(np.rint(draw.normal(38.9, 2.2, rows) - 3.0 * plurality), 18, 46).astype(int)
    weight = (
        7.6
        - 0.018 * np.square(np.clip(41 - weeks, 0, None)) * (weeks > 24)
        - 5.2 * (weeks <= 24)
        + 0.25 * male
        - 0.9 * plurality
        + 0.02 * np.clip(age - 20, -7, 12)
        + draw.normal(0.0, NOISE, rows)
    )
    weight = np.clip(weight, 0.5, None)
    words = columns.PLURALITY
    return [
        f"{weight[row]:.6f},{male[row]},{age[row]},{words[plurality[row]]},{weeks[row]}.0,{row:08d}\n"
        for row in range(rows)
    ]


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", default="runs/babyweight-sample", help="directory or URL")
    parser.add_argument("--seed", type=at_least(0), default=1, help="of the rows")
    parser.add_argument("--train-rows", type=at_least(1), default=TRAIN_ROWS, help="rows to train on")
    parser.add_argument("--eval-rows", type=at_least(1), default=EVAL_ROWS, help="rows to evaluate on")
    args = parser.parse_args()
    with errors.exit_on_user_error():
        try:
            names = write(args.out, seed=args.seed, train_rows=args.train_rows, eval_rows=args.eval_rows)
        except OSError as error:
            raise errors.InvalidValueError(f"{args.out} cannot be written: {files.reason(error)}.") from error
        print(f"wrote {' and '.join(names)}; the best root mean squared error any model can reach is {NOISE}")


if __name__ == "__main__":
    main()
