"""The pages about migrating: names exist, what is missing is missing, and settings give TensorFlow's numbers."""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import torch_estimator as te
from tests.docs import tensorflow_v2
from tests.docs.pages import ROOT, blocks, side
from torch_estimator import feature_column as fc
from torch_estimator.optim.factories import check_factory
from torch_estimator.port.program import port, report

MIGRATE = ROOT / "docs" / "migrate"
NAMES = (MIGRATE / "names.md").read_text(encoding="utf-8")
CONTEXT = te.RunContext(global_step=0)
CONTEXT.loss_tensor = 0.0
ROOTS = {"te": te, "fc": fc, "Dataset": te.data.Dataset, "torch": torch, "context": CONTEXT}


def rows(page: str) -> Iterator[tuple[str, str]]:
    """Yield the two cells of each row of the tables of a page."""
    for line in page.splitlines():
        if line.startswith("| ") and not line.startswith(("| TensorFlow |", "| `tf.data` |")):
            left, right = re.split(r"(?<!\\) \| ", line.strip("| "), maxsplit=1)
            yield left, right


ROWS = list(rows(NAMES))


def section(heading: str) -> list[tuple[str, str]]:
    return list(rows(NAMES.split(f"\n## {heading}\n")[1].split("\n## ")[0]))


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def resolve(name: str) -> Any:
    first, *attributes = name.split(".")
    return functools.reduce(getattr, attributes, ROOTS[first])


def test_the_table_has_the_names_that_programs_use() -> None:
    assert len(ROWS) > 180
    assert all(left.strip() and right.strip() for left, right in ROWS)


@pytest.mark.parametrize("page", sorted(MIGRATE.glob("*.md")), ids=lambda page: page.stem)
def test_every_name_of_this_package_exists(page: Any) -> None:
    text = page.read_text(encoding="utf-8")
    # Code of TensorFlow may give our names to its own things.
    text = re.sub(r"```(tensorflow|diff)\n.*?```", "", text, flags=re.DOTALL)
    found = set(re.findall(r"(?<![\w.])((?:te|fc|Dataset|torch|context)(?:\.\w+)+)", text))
    for name in found:
        try:
            resolve(name)
        except AttributeError:
            pytest.fail(f"{page.name}: there is no {name}")


def test_every_argument_that_the_table_names_exists() -> None:
    checked = 0
    for _, right in ROWS:
        for code in codes(right):
            for name, arguments in re.findall(r"((?:te|fc|Dataset)(?:\.\w+)+)\(([^()]*)\)", code):
                called = resolve(name)
                parameters = inspect.signature(called.__init__ if isinstance(called, type) else called).parameters
                for argument in re.findall(r"(?:^|, )(\w+)=", arguments):
                    assert argument in parameters, f"{name} has no argument {argument}"
                    checked += 1
    assert checked > 30


def test_methods_of_a_dataset_that_the_table_calls_missing_are_missing() -> None:
    missing = [
        name
        for left, right in section("Operations of a Dataset")
        if right.startswith("**missing**")
        for name in codes(left)
    ]
    assert len(missing) > 5
    for name in missing:
        assert not hasattr(te.data.Dataset, name), f"Dataset.{name} is there: mend docs/migrate/names.md"


def test_names_that_are_the_same_here_are_the_same() -> None:
    named = [(left, right) for left, right in ROWS if right.startswith("the same names in `te`")]
    assert len(named) > 3
    for left, _ in named:
        for code in codes(left):
            assert hasattr(te, code.rpartition(".")[2]), code


def test_settings_of_sessions_are_refused() -> None:
    (row,) = [left for left, _ in ROWS if left.startswith("`RunConfig(session_config=…)`")]
    settings = re.findall(r"[a-z_]{6,}", row)
    assert len(settings) == 5
    for setting in settings:
        with pytest.raises(TypeError, match=setting):
            te.RunConfig(**{setting: None})


def test_hooks_have_the_methods_that_the_table_names() -> None:
    (row,) = [right for left, right in ROWS if left.startswith("`tf.estimator.SessionRunHook`")]
    methods = [code for code in codes(row) if not code.startswith("te.")]
    assert methods == ["begin", "before_step", "after_step", "end"]
    assert all(callable(getattr(te.Hook, method)) for method in methods)


def test_an_optimizer_may_be_a_partial_and_predicted_classes_are_str() -> None:
    assert any("`functools.partial(te.optim.Ftrl, lr=0.1)`" in right for _, right in ROWS)
    ages = te.data.Dataset.from_arrays({"age": [20.0, 60.0]}, labels=["<=50K", ">50K"]).batch(2)
    optimizer = functools.partial(te.optim.Ftrl, lr=0.1)
    age = te.feature_column.numeric_column("age")
    model = te.LinearClassifier([age], "memory://partial", optimizer=optimizer, label_vocabulary=["<=50K", ">50K"])
    model.train(lambda: ages, steps=1)
    assert {type(prediction["classes"][0]) for prediction in model.predict(lambda: ages)} == {str}


@pytest.mark.parametrize("code", [code for _, right in section("Optimizers") for code in codes(right) if "(" in code])
def test_an_optimizer_of_the_table_can_be_used(code: str) -> None:
    if code.startswith(("te.optim", "functools.partial")):
        optimizer = eval(code, {"te": te, "torch": torch, "functools": functools})
        check_factory(optimizer)
        optimizer([("weight", torch.nn.Parameter(torch.ones(1)))])


def cosine_decay_restarts(step: int) -> float:
    length, start = 1000, 0
    while step >= start + length:
        start, length = start + length, 2 * length
    return 0.05 * (1 + math.cos(math.pi * (step - start) / length))


# TensorFlow's formulas, in the order of the table.
SCHEDULES: list[Callable[[int], float]] = [
    lambda step: 0.1 * 0.96 ** (step / 1000),
    lambda step: 0.1 * 0.96 ** (step // 1000),
    lambda step: 0.1 if step <= 1000 else 0.01 if step <= 2000 else 0.001,
    lambda step: 0.5 * (1 - min(step, 1000) / 1000) ** 2,
    lambda step: 0.05 * (1 + math.cos(math.pi * min(step, 1000) / 1000)),
    cosine_decay_restarts,
    lambda step: 0.1 / (1 + 0.5 * step / 1000),
    lambda step: 0.1 * math.exp(-0.5 * step / 1000),
]


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_schedule_of_the_table_has_tensorflows_rates(number: int) -> None:
    (code,) = [code for code in codes(section("Learning-rate schedules")[number][1]) if code.startswith("lambda")]
    scope = {"te": te, "math": math, **{name: getattr(lr_scheduler, name) for name in dir(lr_scheduler)}}
    schedule = eval(code, scope)([("weight", torch.nn.Parameter(torch.ones(1)))])
    last = 1000 if "CosineAnnealingLR" in code else 2100
    for step in range(last + 1):
        assert schedule.get_last_lr()[0] == pytest.approx(SCHEDULES[number](step), rel=1e-6, abs=1e-9), step
        schedule.step()


@pytest.mark.parametrize("name", ["census", "mnist", "example"])
def test_a_port_has_as_many_lines_of_each_kind_as_its_page_says(name: str) -> None:
    page = MIGRATE / f"{name}.md"
    diffs = [block for block in blocks(page) if block.language == "diff"]
    kept = sum(line.startswith(" ") for block in diffs for line in block.code.splitlines())
    (ported,), generation = port({f"before/{name}.py": side(diffs, "-")})
    before, by_command, after = (
        [line for line in code.splitlines() if line] for code in (ported.before, ported.after, side(diffs, "+"))
    )
    by_hand = (Counter(after) - Counter(by_command)).total()
    counts = (
        f"Of its {len(before)} lines {kept} stay. [`estimator port`](port.md) changes {len(after) - kept - by_hand} "
        f"lines, and {by_hand} are written by hand. The port has {len(after)} lines."
    )
    assert counts in page.read_text(encoding="utf-8").replace("\n", " ")
    printed = "\n".join(report([ported], generation))
    assert all(printed.endswith(block.code.strip()) for block in blocks(page) if block.language == "text")


def test_the_diffs_of_the_example_are_its_program() -> None:
    page = MIGRATE / "example.md"
    program = next(block.code for block in blocks(page) if block.language == "python")
    after = side([block for block in blocks(page) if block.language == "diff"], "+")
    assert [line for line in after.splitlines() if line] == [line for line in program.splitlines() if line]


REFERENCE = json.loads(tensorflow_v2.REFERENCE.read_text(encoding="utf-8"))
NAMED_IN_REFERENCE = [name for name in REFERENCE if name != "tensorflow"]


class StartFrom(te.Hook):
    """The hook that docs/migrate/tf2.md shows, with weights that are at hand."""

    every_n_steps = None

    def __init__(self, weights: dict[str, Any]) -> None:
        self.weights = weights

    def begin(self, context: te.RunContext) -> None:
        with torch.no_grad():
            for name, variable in context.variables().items():
                variable.copy_(torch.tensor(self.weights[name]))


def v2_estimators(classes: Any, mean: dict[str, Any], optimizers: dict[str, Any]) -> dict[str, te.Estimator]:
    """Return one Estimator for each entry of the reference, by its name there.

    Args:
        classes: `te` or `te.v2`.
        mean: Arguments that give the mean loss.
        optimizers: Optimizers of deep models by the name in the reference; without an entry they have their default.
    """
    age, job = fc.numeric_column("age"), fc.categorical_column_with_vocabulary_list("job", tensorflow_v2.JOBS)
    deep = [age, fc.embedding_column(job, 2)]
    config = te.RunConfig(compile=False)
    makers: dict[str, Callable[..., te.Estimator]] = {
        "DNNClassifier": lambda **given: classes.DNNClassifier([4, 3], deep, config=config, **mean, **given),
        "DNNRegressor": lambda **given: classes.DNNRegressor([4, 3], deep, config=config, **mean, **given),
        "LinearClassifier": lambda: classes.LinearClassifier([age, job], config=config, **mean),
        "DNNLinearCombinedClassifier": lambda: classes.DNNLinearCombinedClassifier(
            linear_feature_columns=[job], dnn_feature_columns=deep, dnn_hidden_units=[4, 3], config=config, **mean
        ),
        "BaselineClassifier": lambda: classes.BaselineClassifier(config=config, **mean),
        "DNNEstimator": lambda **given: classes.DNNEstimator(
            te.BinaryClassHead(), [4, 3], deep, config=config, **given
        ),
    }
    return {
        name: makers[name.partition(" ")[0]](**({"optimizer": optimizers[name]} if name in optimizers else {}))
        for name in NAMED_IN_REFERENCE
    }


def estimators_with_the_settings_of_the_page() -> dict[str, te.Estimator]:
    optimizers = {
        "DNNClassifier": te.optim.Adagrad(lr=0.001),
        "DNNClassifier Adam": te.optim.Adam(lr=0.001, epsilon=1e-7),
        "DNNClassifier RMSProp": functools.partial(torch.optim.RMSprop, lr=0.001, alpha=0.9, eps=1e-7),
        "DNNClassifier SGD": te.optim.SGD(lr=0.01),
        "DNNClassifier Ftrl": te.optim.Ftrl(lr=0.001),
        "DNNRegressor": te.optim.Adagrad(lr=0.001),
        "DNNEstimator": te.optim.Adagrad(lr=0.001),
    }
    return v2_estimators(te, {"loss_reduction": "sum_over_batch_size"}, optimizers)


def estimators_of_v2() -> dict[str, te.Estimator]:
    named = [name for name in NAMED_IN_REFERENCE if " " in name]
    return v2_estimators(te.v2, {}, {name: name.partition(" ")[2] for name in named})


@pytest.mark.parametrize("make", [estimators_with_the_settings_of_the_page, estimators_of_v2])
@pytest.mark.parametrize("name", NAMED_IN_REFERENCE)
def test_v2_gives_tensorflows_weights_and_metrics(
    name: str, make: Callable[[], dict[str, te.Estimator]], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    reference, estimator = REFERENCE[name], make()[name]
    people = te.data.Dataset.from_arrays(*tensorflow_v2.people())

    estimator.train(
        lambda: people.repeat().batch(tensorflow_v2.BATCH_SIZE),
        hooks=[StartFrom(reference["initial"])],
        steps=tensorflow_v2.STEPS,
    )
    metrics = estimator.evaluate(lambda: people.batch(tensorflow_v2.EVAL_BATCH_SIZE))

    for variable, value in reference["trained"].items():
        np.testing.assert_allclose(estimator.get_variable_value(variable), value, rtol=0, atol=1e-6)
    # The premade classifiers of te sum the area under the precision-recall curve as those of v1 do.
    of_v1 = make is not estimators_of_v2 and name not in ("DNNEstimator", "DNNRegressor")
    different = {"auc_precision_recall"} if of_v1 else set()
    assert set(metrics) == set(reference["metrics"])
    for metric in set(metrics) - different:
        assert metrics[metric] == pytest.approx(reference["metrics"][metric], abs=2e-6), metric
