"""When an Estimator draws the initial values of embeddings, and what it does where a checkpoint follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.jobs import assert_same_variables
from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.checkpoint import load_checkpoint

ROWS = 40
WORDS = fc.categorical_column_with_hash_bucket("word", 11)
OTHERS = fc.categorical_column_with_hash_bucket("other", 11)


class Drawn:
    """An initializer that counts its calls."""

    calls = 0

    def __call__(self, rows: Tensor) -> None:
        self.calls += 1
        rows.normal_()

    def __deepcopy__(self, memo: Any) -> Drawn:
        return self


def rows() -> te.data.Dataset:
    rng = np.random.default_rng(0)
    words = rng.choice(["a", "b", "c"], ROWS)
    return te.data.Dataset.from_arrays({"word": words, "other": words}, rng.normal(size=ROWS).astype(np.float32))


def batches() -> te.data.Dataset:
    return rows().repeat().batch(8)


def some() -> te.data.Dataset:
    return rows().batch(8)


def canned(columns: list[Any], model_dir: str, **settings: Any) -> te.Estimator:
    config = te.RunConfig(random_seed=5, compile=False, model_dir=model_dir)
    return te.DNNRegressor([4], columns, dropout=0.2, config=config, **settings)


def of_module(columns: list[Any], model_dir: str, **settings: Any) -> te.Estimator:
    torch.manual_seed(0)
    return te.Estimator.from_module(
        nn.Sequential(nn.Dropout(0.2), nn.Linear(6 if len(columns) == 2 else 3, 1)),
        columns=columns,
        head=te.RegressionHead(),
        optimizer="Adagrad",
        config=te.RunConfig(random_seed=5, compile=False, model_dir=model_dir),
        **settings,
    )


Make = Callable[..., te.Estimator]


def embeddings(drawn: Drawn, kind: str = "embedding") -> list[Any]:
    if kind == "embedding":
        return [fc.embedding_column(WORDS, 3, initializer=drawn)]
    return list(fc.shared_embeddings([WORDS, OTHERS], 3, initializer=drawn))


@pytest.mark.parametrize("kind", ["embedding", "shared"])
@pytest.mark.parametrize("make", [canned, of_module])
def test_initial_values_are_drawn_only_where_no_checkpoint_follows(tmp_path: Path, make: Make, kind: str) -> None:
    drawn = Drawn()
    columns = embeddings(drawn, kind)
    made = make(columns, str(tmp_path / "model"))
    assert drawn.calls == 0
    made.evaluate(some)
    assert drawn.calls == 1
    made.train(batches, steps=3)
    assert drawn.calls == 2
    trained = made.get_variable_value(next(name for name in made.get_variable_names() if "embedding_weights" in name))
    again = make(columns, str(tmp_path / "model"))
    evaluated = again.evaluate(some)
    predictions = list(again.predict(some))
    again.export_saved_model(str(tmp_path / "exports"), te.serving_input.raw_features(columns))
    again.train(batches, steps=3)
    assert drawn.calls == 2
    # The numbers are the checkpoint's.
    assert evaluated == make(columns, str(tmp_path / "model")).evaluate(
        some, checkpoint_path=str(tmp_path / "model" / "model.ckpt-3")
    )
    assert np.std([one["predictions"] for one in predictions]) > 0
    assert np.abs(trained).min() > 0


@pytest.mark.parametrize("make", [canned, of_module])
def test_a_training_that_goes_on_without_drawing_is_bit_for_bit_the_same(tmp_path: Path, make: Make) -> None:
    columns = [fc.embedding_column(WORDS, 3), fc.embedding_column(OTHERS, 3)]
    whole = make(columns, str(tmp_path / "whole")).train(batches, steps=9)
    for _ in range(3):
        parts = make(columns, str(tmp_path / "parts")).train(batches, steps=3)
    assert_same_variables(parts, whole)


def test_a_warm_start_of_some_variables_leaves_the_others_their_initial_values(tmp_path: Path) -> None:
    columns = [fc.embedding_column(WORDS, 3), fc.embedding_column(OTHERS, 3)]
    before = canned(columns, str(tmp_path / "before")).train(batches, steps=3)
    settings = te.WarmStartSettings(before.latest_checkpoint() or "", vars_to_warm_start=".*word_embedding.*")
    canned(columns, str(tmp_path / "plain")).train(batches, steps=1)
    canned(columns, str(tmp_path / "warm"), warm_start_from=settings).train(batches, steps=1)
    trained = load_checkpoint(str(tmp_path / "before")).variables
    plain, warm = (load_checkpoint(str(tmp_path / name / "model.ckpt-0")).variables for name in ("plain", "warm"))
    for name, value in warm.items():
        assert torch.equal(value, (trained if "word_embedding" in name else plain)[name]), name
    other = next(value for name, value in plain.items() if "other_embedding" in name)
    assert other.abs().min() > 0


def test_what_a_checkpoint_lacks_is_an_error_and_no_zeros(tmp_path: Path) -> None:
    of_module([fc.embedding_column(WORDS, 3)], str(tmp_path)).train(batches, steps=1)
    two = of_module([fc.embedding_column(WORDS, 3), fc.embedding_column(OTHERS, 3)], str(tmp_path))
    for act in (lambda: two.evaluate(some), lambda: list(two.predict(some)), lambda: two.train(batches, steps=1)):
        with pytest.raises(te.errors.CheckpointError, match="other_embedding"):
            act()


class WithTeacher(nn.Module):
    """Learns what a layer outside of the model makes of the features."""

    def __init__(self, transform: fc.FeatureTransform) -> None:
        super().__init__()
        assert transform.dnn is not None
        self.layer = fc.InputLayer(transform.dnn)
        self.noise: Tensor
        self.register_buffer("noise", torch.rand(3), persistent=False)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return self.layer(features) * self.noise


def test_a_table_outside_of_the_module_has_its_initial_values_in_every_mode(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def model_fn(mode: str) -> te.EstimatorSpec:
        transform = fc.FeatureTransform(dnn_columns=[fc.embedding_column(WORDS, 3)])
        module, teacher = WithTeacher(transform), WithTeacher(transform).layer

        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            seen.append(teacher.tables[0].weight.detach().clone())
            return (outputs - labels[:, None]).square().mean()

        return te.EstimatorSpec(
            mode=mode,
            module=module,
            loss=loss,
            predictions=lambda outputs: {"output": outputs},
            optimizer=te.optim.SGD(lr=0.01),
            transform=transform,
        )

    made = te.Estimator(model_fn, str(tmp_path), te.RunConfig(random_seed=5, compile=False))
    made.train(batches, steps=1)
    made.evaluate(some)
    made.train(batches, steps=1)
    assert len(seen) > 2
    assert all(torch.equal(seen[0], one) for one in seen)
    assert seen[0][:-1].abs().min() > 0


@pytest.fixture(autouse=True)
def _generator() -> Iterator[None]:
    with torch.random.fork_rng([]):
        yield
