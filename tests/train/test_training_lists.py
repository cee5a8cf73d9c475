"""Training on columns with lists and weights: rows of tables, compiled steps, exact resumption."""

from __future__ import annotations

import json
import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import torch_estimator as te
from tests.line_jobs import assert_same_variables, variables
from torch_estimator import feature_column as fc
from torch_estimator.compile.policy import ShapePolicy
from torch_estimator.optim import Adagrad, GradientDescent

TAGS = fc.categorical_column_with_vocabulary_list("tags", ["a", "b", "c", "d"], multivalent=True)
IDS = fc.categorical_column_with_identity("ids", 6, multivalent=True)
WEIGHTED = fc.weighted_categorical_column(TAGS, "weights")
CITY = fc.categorical_column_with_vocabulary_list("city", ["x", "y"])
WIDE = [TAGS, WEIGHTED, CITY, fc.crossed_column([TAGS, "city"], 30)]
DEEP = [
    fc.embedding_column(WEIGHTED, 3),
    *fc.shared_embeddings([IDS, fc.categorical_column_with_identity("id", 6)], 3, combiner="sum", max_norm=0.5),
    fc.indicator_column(WEIGHTED),
    fc.embedding_column(CITY, 3),
]


def rows(count: int = 60, most: int = 5) -> te.data.Dataset:
    random = np.random.default_rng(1)

    def lists(values: Any) -> list[Any]:
        return [random.choice(values, random.integers(0, most + 1)).tolist() for _ in range(count)]

    tags = lists(np.array(["a", "b", "c", "d", "", "e"], object))
    weights = [random.choice([0.5, 2.0, -1.0], len(row)).tolist() for row in tags]
    features = {
        "tags": pa.array(tags),
        "weights": pa.array(weights, pa.list_(pa.float32())),
        "ids": pa.array(lists(np.arange(-1, 7))),
        "id": random.integers(-1, 7, count),
        "city": random.choice(np.array(["x", "y", ""], object), count),
    }
    return te.data.Dataset.from_arrays(features, random.normal(size=count).astype(np.float32))


def job(model_dir: object, *, compile: bool = False, **arguments: Any) -> te.Estimator:
    return te.DNNLinearCombinedRegressor(
        str(model_dir),
        linear_feature_columns=WIDE,
        dnn_feature_columns=DEEP,
        dnn_hidden_units=[6],
        config=te.RunConfig(random_seed=3, save_checkpoints_steps=1000, compile=compile),
        **arguments,
    )


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_touched_rows_are_trained_as_the_whole_table_would_be(combiner: Any, tmp_path: Path) -> None:
    """An optimizer of torch's gets the dense gradient of a table, ours the rows that a batch touches."""

    def trained(name: str, optimizer: Any) -> te.Estimator:
        estimator = job(
            tmp_path / name, linear_optimizer=optimizer, dnn_optimizer=optimizer, linear_sparse_combiner=combiner
        )
        return estimator.train(lambda: rows().repeat().batch(7), steps=20)

    ours, theirs = (
        trained("ours", partial(GradientDescent, lr=0.02)),
        trained("torch", partial(torch.optim.SGD, lr=0.02)),
    )
    expected = variables(theirs)
    for name, value in variables(ours).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_shuffled_training_resumes_bit_for_bit(tmp_path: Path) -> None:
    def data() -> te.data.Dataset:
        return rows().shuffle(1000, seed=2).repeat().batch(7)

    whole = job(tmp_path / "whole").train(data, steps=20)
    for steps in (7, 13):
        resumed = job(tmp_path / "resumed").train(data, steps=steps)
    assert_same_variables(whole, resumed)


@pytest.mark.slow
def test_batches_of_another_length_than_before_are_compiled_too_and_resume_bit_for_bit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")

    def data() -> te.data.Dataset:
        tags = [["a"], ["b", "c"], ["d"] * 3, ["a"]] * 3
        return te.data.Dataset.from_arrays({"tags": pa.array(tags)}, np.arange(12, dtype=np.float32)).repeat().batch(2)

    def made(name: str, compile: bool = True) -> te.Estimator:
        config = te.RunConfig(random_seed=3, save_checkpoints_steps=1000, compile=compile)
        return te.LinearRegressor([TAGS], str(tmp_path / name), config=config, sparse_combiner="mean")

    whole = made("whole").train(data, steps=8)
    sizes = [int(n) for m in caplog.messages for n in re.findall(r"Compiling .* for batches of (\d+)", m)]
    assert sizes == [2, 2]
    eager = variables(made("eager", compile=False).train(data, steps=8))
    for name, value in variables(whole).items():
        np.testing.assert_allclose(value, eager[name], rtol=1e-5, atol=1e-6, err_msg=name)
    made("resumed").train(data, steps=3)
    assert_same_variables(whole, made("resumed").train(data, steps=5))


def test_a_compiled_step_over_every_kind_of_column_equals_the_eager_one(tmp_path: Path) -> None:
    def data() -> te.data.Dataset:
        return rows(14).repeat().batch(14)

    eager, compiled = (
        job(tmp_path / str(compile), compile=compile, dnn_optimizer=partial(Adagrad, lr=0.05)).train(data, steps=6)
        for compile in (False, True)
    )
    expected = variables(eager)
    for name, value in variables(compiled).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def steps_of(shapes: list[tuple[int, int]], before: Any = None) -> tuple[list[bool], Any]:
    """Which batches of those shapes take a compiled step, and the state at the end."""
    policy = ShapePolicy(before)
    return [policy.admits(shape[0], shape) for shape in shapes], json.loads(json.dumps(policy.state()))


def test_shapes_beyond_the_limit_and_smaller_batches_run_uncompiled() -> None:
    lengths = [2**n for n in range(10)]
    chosen, state = steps_of([(4, length) for length in lengths])
    assert chosen == [True] * 8 + [False] * 2
    # What was compiled stays compiled, and a resumed run knows.
    assert steps_of([(4, 1), (4, 128), (4, 256), (3, 1)], state)[0] == [True, True, False, False]
    assert steps_of([(3, 1), (4, 1), (3, 1), (4, 1)])[0] == [True, True, False, True]


def test_smaller_batches_of_which_many_come_are_compiled_for_also_after_a_resume(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    chosen, state = steps_of([(4, 1), *[(3, 1)] * 150])
    assert chosen == [True] + [False] * 150
    assert caplog.messages == ["Batches of 3 rows, after some of 4, run uncompiled until 200 of them have come."]
    assert steps_of([(3, 1)] * 60 + [(4, 1), (2, 1), (3, 1)], state)[0] == [False] * 50 + [True] * 11 + [False, True]
