"""What each part of the census recipe is worth, and LightGBM on the same rows: `scripts/bench census_recipe`.

Five-fold cross-validation inside the training file: each line is the mean of five models, each trained on four fifths
and measured on the fifth that it has not seen. With `--test` each trains on the whole file, with five seeds, and is
measured on the test file, by which nothing was chosen. AUC is exact, by ranks. Seconds are those of training alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import torch_estimator as te
from benchmarks.peers import environment
from benchmarks.peers.census_split import People, Score, folds
from benchmarks.protocol import keep, show_machine, table
from examples.census import recipe
from examples.census.recipe import Settings
from examples.census.trainer import columns, featurizer
from torch_estimator import feature_column as fc

Columns = tuple[list[Any], list[Any]]
Model = Callable[[People, People, int], Score]

# The best of 24 random settings in the same cross-validation.
_TUNED = {
    "num_iterations": 300,
    "learning_rate": 0.08,
    "num_leaves": 15,
    "feature_fraction": 0.8,
    "min_data_in_leaf": 40,
    "lambda_l2": 5.0,
    "cat_l2": 5.0,
    "max_bin": 1000,
}
_SINGLE_AMOUNTS = {"min_data_per_group": 5, "cat_smooth": 1.0, "min_data_in_leaf": 5, "min_data_in_bin": 1}
# Parameters, and whether the amounts are given as categories, too.
LIGHTGBM: dict[str, tuple[dict[str, float], bool]] = {
    "LightGBM, defaults": ({}, False),
    "LightGBM, tuned": (_TUNED, False),
    "LightGBM, tuned, amounts also as categories": (_TUNED | _SINGLE_AMOUNTS, True),
}


def deep_model(
    fit: People, held_out: People, seed: int, *, settings: Settings, change: Callable[[Columns], Columns]
) -> Score:
    """Trains the recipe, or what a change made of it."""
    numbers = {name: fit.features[name] for name in (*recipe.NUMBERS, *recipe.AMOUNTS)}
    wide, deep = change(recipe.wide_and_deep_columns(numbers, settings))
    steps = settings.steps(len(fit))
    rows = fit.dataset().shuffle(len(fit), seed=seed).repeat().batch(settings.batch_size)
    with tempfile.TemporaryDirectory() as model_dir:
        config = te.RunConfig(model_dir=model_dir, random_seed=seed)
        estimator = recipe.build_estimator(config, wide, deep, steps, settings)
        return _trained(estimator, rows, steps, held_out)


def trainer_model(fit: People, held_out: People, seed: int) -> Score:
    """The trainer of this example with tf.estimator's optimizers, for as many rows as the recipe."""
    wide, deep = featurizer.wide_and_deep_columns()
    rows = fit.dataset().shuffle(len(fit), seed=seed).repeat().batch(40)
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = te.DNNLinearCombinedClassifier(
            linear_feature_columns=wide,
            dnn_feature_columns=deep,
            dnn_hidden_units=[100, 70, 48, 34],
            label_vocabulary=list(columns.LABELS),
            config=te.RunConfig(model_dir=model_dir, random_seed=seed),
        )
        return _trained(estimator, rows, len(fit) * Settings().epochs // 40, held_out)


def _trained(estimator: te.Estimator, rows: te.data.Dataset, steps: int, held_out: People) -> Score:
    started = time.perf_counter()
    estimator.train(lambda: rows, max_steps=steps)
    seconds = time.perf_counter() - started
    batches = estimator.predict(
        lambda: held_out.dataset().batch(4096), predict_keys="logistic", yield_single_examples=False
    )
    scores = np.concatenate([batch["logistic"].ravel() for batch in batches])
    return Score.of(scores, held_out.rich, seconds)


def lightgbm_model(
    fit: People, held_out: People, seed: int, *, python: Path, parameters: dict[str, float], amounts: bool
) -> Score:
    """Trains LightGBM in its own environment on the same columns, categories as such."""
    if amounts:
        fit, held_out = (
            People(
                rows.features | {f"the {name}": rows.features[name].astype(str) for name in recipe.AMOUNTS}, rows.rich
            )
            for rows in (fit, held_out)
        )
    categorical = [index for index, values in enumerate(fit.features.values()) if values.dtype.kind not in "if"]
    with tempfile.TemporaryDirectory() as folder:
        split, answer = f"{folder}/split.npz", f"{folder}/answer.npz"
        matrices = _codes(fit, held_out)
        np.savez(split, fit=matrices[0], held_out=matrices[1], labels=fit.rich, categorical=categorical)
        program = Path(environment.__file__).with_name("lightgbm_census.py")
        chosen = json.dumps(parameters | {"seed": seed})
        subprocess.run([str(python), str(program), split, answer, chosen], check=True, timeout=600)
        result = np.load(answer)
        return Score.of(result["scores"], held_out.rich, float(result["seconds"]))


def _codes(fit: People, held_out: People) -> tuple[np.ndarray, np.ndarray]:
    matrices = np.empty((len(fit), len(fit.features))), np.empty((len(held_out), len(fit.features)))
    for index, name in enumerate(fit.features):
        values = [fit.features[name], held_out.features[name]]
        if values[0].dtype.kind not in "if":
            known = np.unique(values[0].astype(str))
            # LightGBM takes negative codes for missing, as a category that it has not seen is.
            values = [
                np.where(np.isin(one.astype(str), known), np.searchsorted(known, one.astype(str)), -1) for one in values
            ]
        for matrix, column in zip(matrices, values, strict=True):
            matrix[:, index] = column
    return matrices


def _leave_out(wide: type | tuple[type, ...] = (), deep: Callable[[Any], bool] | None = None) -> Any:
    def change(both: Columns) -> Columns:
        kept = [column for column in both[0] if not isinstance(column, wide)]
        return kept, [column for column in both[1] if deep is None or not deep(column)]

    return change


def _embeds_buckets(column: Any) -> bool:
    return isinstance(getattr(column, "categorical_column", None), fc.BucketizedColumn)


def _variants() -> dict[str, Model]:
    """The recipe, and the recipe without one part each."""
    chosen = Settings()
    changes: dict[str, tuple[dict[str, Any], Callable[[Columns], Columns]]] = {
        "the recipe": ({}, _leave_out()),
        "amounts in 10 buckets": ({"amount_buckets": 10}, _leave_out()),
        "no buckets": ({}, _leave_out(fc.BucketizedColumn, _embeds_buckets)),
        "no buckets in the wide half": ({}, _leave_out(fc.BucketizedColumn)),
        "no buckets in the deep half": ({}, _leave_out(deep=_embeds_buckets)),
        "buckets, but no numbers": ({}, _leave_out(deep=lambda column: isinstance(column, fc.NumericColumn))),
        "numbers in 40 buckets": ({"number_buckets": 40}, _leave_out()),
        "no crosses": ({}, _leave_out(fc.CrossedColumn)),
        "no wide half": ({}, lambda both: ([], both[1])),
        "no deep half": ({}, lambda both: (both[0], [])),
        "no dropout": ({"dropout": None}, _leave_out()),
        "no weight decay": ({"wide_decay": 0.0, "deep_decay": 0.0}, _leave_out()),
        "the deep half's decay in the wide half": ({"wide_decay": chosen.deep_decay}, _leave_out()),
        "the same rates all the time": ({"one_cycle": False}, _leave_out()),
        "a third of the rates all the time": (
            {"one_cycle": False, "wide_rate": chosen.wide_rate / 3, "deep_rate": chosen.deep_rate / 3},
            _leave_out(),
        ),
        "5 epochs": ({"epochs": 5}, _leave_out()),
        "20 epochs": ({"epochs": 20}, _leave_out()),
    }
    variants: dict[str, Model] = {
        name: partial(deep_model, settings=dataclasses.replace(chosen, **settings), change=change)
        for name, (settings, change) in changes.items()
    }
    return variants | {"the trainer's columns and optimizers": trainer_model}


def _models(args: argparse.Namespace) -> dict[str, Model]:
    models = _variants()
    if args.test:
        models = {name: models[name] for name in ("the recipe", "the trainer's columns and optimizers")}
    if not args.no_peers:
        python = environment.python_of("lightgbm")
        models |= {
            name: partial(lightgbm_model, python=python, parameters=parameters, amounts=amounts)
            for name, (parameters, amounts) in LIGHTGBM.items()
        }
    return {name: model for name, model in models.items() if args.only in name}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-file", default=str(recipe.ADULT / "adult.data.csv"))
    parser.add_argument("--test-file", default=str(recipe.ADULT / "adult.test.csv"))
    parser.add_argument("--test", action="store_true", help="train on the whole file, measure on the test file")
    parser.add_argument("--no-peers", action="store_true", help="leave LightGBM out")
    parser.add_argument("--only", default="", help="part of the names of the lines to print")
    args = parser.parse_args()
    logging.getLogger("torch_estimator").setLevel("WARNING")
    people = People.of(args.train_file)
    if args.test:
        test = People.of(args.test_file)
        splits = [(seed, people, test) for seed in range(1, 6)]
    else:
        splits = [(1, *split) for split in folds(people, 5)]
    rows = []
    print(f"{'':44}{'AUC':>8}{'least':>8}{'accuracy':>10}{'least':>8}{'seconds':>9}")
    for name, model in _models(args).items():
        scores = [model(fit, held_out, seed) for seed, fit, held_out in splits]
        auc, accuracy = [score.auc for score in scores], [score.accuracy for score in scores]
        seconds = np.mean([score.seconds for score in scores])
        print(
            f"{name:44}{np.mean(auc):8.4f}{min(auc):8.4f}{np.mean(accuracy):10.4f}{min(accuracy):8.4f}{seconds:9.1f}",
            flush=True,
        )
        digits = (np.mean(auc), min(auc), np.mean(accuracy), min(accuracy))
        rows.append([name, *(f"{value:.4f}" for value in digits), f"{seconds:.1f}"])
    where = "the test file, five seeds" if args.test else "five-fold cross-validation"
    header = ["", "AUC", "least", "accuracy", "least", "seconds"]
    keep("test" if args.test else "cross_validation", f"The census recipe and its parts: {where}", table(header, rows))
    show_machine()


if __name__ == "__main__":
    main()
