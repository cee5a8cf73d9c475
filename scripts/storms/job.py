"""The program that a storm of faults kills: the census model on numbered rows, with a line for every step.

Its rows are numbered in the column that the census model does not use, and each process that trains writes down the
numbers of those it computes with.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

import torch_estimator as te
from examples.census.trainer import columns, featurizer
from torch_estimator import errors
from torch_estimator import feature_column as fc
from torch_estimator.feature_column.numeric import NumericColumn

NUMBER = columns.UNUSED[0]
"""The column with the numbers of rows, from 1 on."""

SEEN = "seen"
"""The folder, in the model directory, with the numbers of all rows that were trained on, as int64."""

STEP = "step"
"""What a line begins with that tells the global step."""


PACE = "pace"
"""The file in the model directory with the seconds that each step takes beside what it computes."""

# Rows up to this number can be told from one another in a float32, and make a small feature.
_MOST_ROWS = 2**24


def scaled(numbers: torch.Tensor) -> torch.Tensor:
    """Makes a feature of the numbers of rows that loses nothing of them."""
    return numbers / _MOST_ROWS


class Tells(te.Hook):
    """Prints each step, writes down the rows of its batch in `folder`, and waits as long as the file `pace` says.

    `who` is the name of the process that trains. `place` is where the numbers of rows are among the numeric features of
    the network.
    """

    def __init__(self, folder: Path, pace: Path, who: str, place: int) -> None:
        self._pace = pace
        self._place = place
        folder.mkdir(parents=True, exist_ok=True)
        self._seen = (folder / f"{who}, {os.getpid()}").open("ab", buffering=0)

    def begin(self, context: te.hooks.RunContext) -> None:
        """Looks at what the model computes with, since input is read ahead."""
        assert context.module is not None
        context.module.register_forward_pre_hook(self._note)

    def after_step(self, context: te.hooks.RunContext) -> None:
        """Prints a line."""
        # One write, of which a kill leaves all or nothing.
        sys.stdout.write(f"{STEP} {context.global_step}\n")
        sys.stdout.flush()
        time.sleep(float(self._pace.read_text()))

    def _note(self, module: torch.nn.Module, inputs: tuple[Mapping[str, torch.Tensor]]) -> None:
        """Writes minus the size of a batch, and the numbers of its rows."""
        numbers = (inputs[0]["dnn/numeric"][:, self._place] * _MOST_ROWS).to(torch.int64)
        self._seen.write(np.array([-len(numbers), *numbers.tolist()], np.int64).tobytes())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--job-dir", type=Path, required=True)
    add("--train-file", type=Path, required=True)
    add("--eval-file", type=Path, required=True)
    add("--epochs", type=int, required=True)
    add("--batch", type=int, required=True)
    add("--every", type=int, required=True)
    return parser.parse_args()


def rows(file: Path) -> te.data.Dataset:
    """All rows of a file, numbers included."""
    return te.data.Dataset.from_csv(str(file), column_names=columns.CSV_COLUMNS, label=columns.LABEL)


def train_data(args: argparse.Namespace, input_context: te.InputContext) -> te.data.Dataset:
    """The part of one of those who train."""
    part = rows(args.train_file).shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return part.shuffle(10_000, seed=1).repeat(args.epochs).batch(args.batch)


def main() -> None:
    """Trains."""
    args = parse()
    logging.getLogger("torch_estimator").setLevel("INFO")
    config = te.RunConfig(
        model_dir=str(args.job_dir),
        random_seed=1,
        save_checkpoints_steps=args.every,
        experimental_max_worker_delay_secs=0,
        compile=False,
    )
    wide, deep = featurizer.wide_and_deep_columns()
    deep.append(fc.numeric_column(NUMBER, normalizer_fn=scaled))
    hooks = []
    if config.task_type in ("chief", "worker"):
        place = sorted(column.key for column in deep if isinstance(column, NumericColumn)).index(NUMBER)
        who = f"{config.task_type} {config.task_id}"
        hooks.append(Tells(args.job_dir / SEEN, args.job_dir / PACE, who, place))
    with errors.exit_on_user_error():
        te.train_and_evaluate(
            te.DNNLinearCombinedClassifier(
                linear_feature_columns=wide,
                dnn_feature_columns=deep,
                dnn_hidden_units=[32, 16],
                label_vocabulary=list(columns.LABELS),
                config=config,
            ),
            te.TrainSpec(functools.partial(train_data, args), hooks=hooks),
            te.EvalSpec(
                lambda: rows(args.eval_file).batch(args.batch),
                steps=20,
                name="storm",
                exporters=te.FinalExporter("census", te.serving_input.json(wide + deep)),
                start_delay_secs=0,
                throttle_secs=1,
            ),
        )


if __name__ == "__main__":
    main()
