"""Distributions of initial values, and when an Estimator makes those of embeddings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.cluster_jobs import Cluster, Process, ended
from tests.line_jobs import assert_same_variables
from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.initial_values import Distribution, truncated_normal, uniform
from torch_estimator.networks import glorot_uniform

ROWS = 40
WORDS = fc.categorical_column_with_hash_bucket("word", 11)
OTHERS = fc.categorical_column_with_hash_bucket("other", 11)


def within(points: Tensor) -> Tensor:
    """Return the distribution function of the normal distribution between -2 and 2."""
    inside = torch.erf(torch.tensor(2 / 2**0.5))
    return (torch.erf(points / 2**0.5) + inside) / (2 * inside)


def embedding(rows: int, dimension: int) -> Tensor:
    ids = fc.categorical_column_with_identity("id", rows)
    transform = fc.FeatureTransform(dnn_columns=[fc.embedding_column(ids, dimension)])
    assert transform.dnn is not None
    (table,) = fc.InputLayer(transform.dnn).tables
    return table.weight.detach()[:-1] * dimension**0.5


CASES = {
    "embedding of 1": (lambda: embedding(400_000, 1), 2.0, within),
    "embedding of 8": (lambda: embedding(50_000, 8), 2.0, within),
    "kernel": (lambda: glorot_uniform(997, 401) / (6 / 1398) ** 0.5, 1.0, lambda points: (points + 1) / 2),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_have_their_distribution(case: str) -> None:
    draw, limit, function = CASES[case]
    torch.manual_seed(0)
    numbers = draw().flatten()
    assert 0.999 * limit < numbers.abs().max() <= limit * (1 + 1e-6)
    points = torch.linspace(-limit, limit, 41)
    found = torch.stack([(numbers <= point).double().mean() for point in points])
    # A correct sample exceeds these differences with a probability of 10 ** -13 and 10 ** -4.
    assert (found - function(points)).abs().max() < 4 / len(numbers) ** 0.5
    assert abs(numbers.mean()) < 4 / len(numbers) ** 0.5
    # No number is more frequent than others: 65,536 of them are equally probable.
    assert torch.unique(numbers, return_counts=True)[1].max() < 40


NORMAL, UNIFORM = Distribution(truncated_normal, 1 / 0.773741**0.5), Distribution(uniform, 3**0.5)


@pytest.mark.parametrize("of", [NORMAL, UNIFORM], ids=["normal", "uniform"])
@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_rows_columns_variables_and_seeds_are_independent(of: Distribution, width: int) -> None:
    """Means, squares and correlations stay below six standard errors; another seed fails once in 10,000 runs."""
    rows = 40_000 // width
    numbers, renamed, seeded, next_seed = (
        of.rows(seed, name, np.arange(rows), width).astype(np.float64)
        for seed, name in ((3, "a"), (3, "b"), (2**61, "a"), (4, "a"))
    )
    assert np.abs(numbers.mean(0)).max() < 6 / rows**0.5
    assert np.abs((numbers**2).mean(0) - 1).max() < 6 / rows**0.5
    sums = numbers.sum(1) / width**0.5
    assert np.abs(sums).max() < 6
    assert abs((sums**2).mean() - 1) < 6 * (2 / rows) ** 0.5
    pairs = [(numbers, renamed), (numbers, seeded), (numbers, next_seed)]
    pairs += [(numbers[lag:], numbers[:-lag]) for lag in (1, 2, 3, 4, 64, 256)]
    pairs += [(numbers[:, lag:], numbers[:, :-lag]) for lag in (1, 2, 3, 4, 5, 8) if lag < width]
    for one, other in pairs:
        assert abs((one * other).mean()) < 6 / one.size**0.5
        assert abs(((one**2 - 1) * (other**2 - 1)).mean()) < 6 / one.size**0.5


@pytest.mark.parametrize(("rows", "width"), [(5, 3), (1 << 17, 1), (30_000, 7), (3, 1 << 17)])
def test_rows_are_equal_in_any_order_and_block_and_wherever_they_are_made(rows: int, width: int) -> None:
    weight = torch.empty(rows, width, dtype=torch.float64)
    NORMAL.fill(weight, 3, "a")
    ids = np.random.default_rng(0).permutation(rows)
    assert np.array_equal(NORMAL.rows(3, "a", ids, width), weight[ids].float().numpy())
    for one in (0, rows - 1):
        assert np.array_equal(NORMAL.rows(3, "a", np.array([one]), width)[0], weight[one].float().numpy())
    assert len({row.tobytes() for row in weight.numpy()}) == rows or width == 1


def test_a_process_without_torch_makes_the_same_rows() -> None:
    program = (
        "import sys, numpy\n"
        "from torch_estimator.initial_values import Distribution, truncated_normal\n"
        "rows = Distribution(truncated_normal, 0.5).rows(7, 'words', numpy.arange(5, 9), 6)\n"
        "assert 'torch' not in sys.modules\n"
        "print(rows.tobytes().hex())"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert there.strip() == Distribution(truncated_normal, 0.5).rows(7, "words", np.arange(5, 9), 6).tobytes().hex()


PROGRAM = """
import sys
import numpy as np
import torch_estimator as te
from torch_estimator import feature_column as fc

words = fc.categorical_column_with_hash_bucket("word", 11)
data = te.data.Dataset.from_arrays({"word": np.array(["a", "b"] * 20)}, np.zeros(40, np.float32))
strategy = eval("te.distribute." + sys.argv[2]) if len(sys.argv) > 2 else None
config = te.RunConfig(model_dir=sys.argv[1], random_seed=5, compile=False, train_distribute=strategy)
estimator = te.DNNLinearCombinedRegressor(
    linear_feature_columns=[words],
    dnn_feature_columns=[fc.embedding_column(words, 3)],
    dnn_hidden_units=[4],
    config=config,
)
read = lambda: data.repeat().batch(8)
te.train_and_evaluate(estimator, te.TrainSpec(read, max_steps=2), te.EvalSpec(read, steps=1))
"""


@pytest.mark.parametrize(
    ("strategy", "cluster"),
    [
        ("MirroredStrategy(replicas=2)", {}),
        ("MultiWorkerMirroredStrategy()", {"workers": 1}),
        ("ParameterServerStrategy()", {"workers": 0, "servers": 2}),
    ],
)
def test_every_strategy_starts_with_the_same_numbers(tmp_path: Path, strategy: str, cluster: dict[str, int]) -> None:
    results = ended([Process(PROGRAM, [str(tmp_path / "alone")], {})])
    given = str(tmp_path / "together"), strategy
    results += Cluster(PROGRAM, **cluster).run(*given) if cluster else ended([Process(PROGRAM, given, {})])
    for result in results:
        assert result.status == 0, result.output
    alone, together = (load_checkpoint(str(tmp_path / one / "model.ckpt-0")) for one in ("alone", "together"))
    assert alone.variables.keys() == together.variables.keys()
    for name, value in alone.variables.items():
        assert torch.equal(value, together.variables[name]), name
        assert "embedding" not in name or value.abs().min() > 0


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
