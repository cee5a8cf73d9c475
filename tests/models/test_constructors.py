"""Constructors of the premade models: arguments, defaults, names of variables, and results of training."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.optim import Adagrad, Adam, Ftrl, GradientDescent, RMSProp

AGE = fc.numeric_column("age")
CITY = fc.categorical_column_with_vocabulary_list("city", ["Oslo", "Rome"])
EMBEDDED = fc.embedding_column(CITY, 3)
CONFIG = te.RunConfig(random_seed=1, save_checkpoints_steps=1000)


def people(labels: Any = (0, 1, 1, 0, 1, 0)) -> te.data.Dataset:
    features = {
        "age": np.array([0.1, 0.7, 0.8, 0.2, 0.9, 0.3], np.float32),
        "city": np.array(["Oslo", "Rome", "Rome", "", "Rome", "Lima"], object),
        "weight": np.array([1.0, 2.0, 1.0, 1.0, 0.5, 1.0], np.float32),
    }
    return te.data.Dataset.from_arrays(features, np.array(labels)).batch(6)


CLASSIFIERS: dict[str, Callable[..., te.Estimator]] = {
    "linear": partial(te.LinearClassifier, [CITY, AGE], config=CONFIG),
    "dnn": partial(te.DNNClassifier, [4], [EMBEDDED, AGE], config=CONFIG),
    "combined": partial(
        te.DNNLinearCombinedClassifier,
        linear_feature_columns=[CITY],
        dnn_feature_columns=[EMBEDDED, AGE],
        dnn_hidden_units=[4],
        config=CONFIG,
    ),
}
REGRESSORS: dict[str, Callable[..., te.Estimator]] = {
    "linear": partial(te.LinearRegressor, [CITY, AGE], config=CONFIG),
    "dnn": partial(te.DNNRegressor, [4], [EMBEDDED, AGE], config=CONFIG),
    "combined": partial(
        te.DNNLinearCombinedRegressor,
        linear_feature_columns=[CITY],
        dnn_feature_columns=[EMBEDDED, AGE],
        dnn_hidden_units=[4],
        config=CONFIG,
    ),
}
BINARY_KEYS = "accuracy accuracy_baseline auc auc_precision_recall average_loss global_step label/mean loss precision"
BINARY_PREDICTIONS = "logits logistic probabilities class_ids classes all_class_ids all_classes"


def rates(estimator: te.Estimator) -> list[tuple[type, float]]:
    """Return the optimizers of a model with their learning rates, the linear part first."""
    optimizers, _ = estimator.job.builder.build(te.ModeKeys.TRAIN, estimator.config).make_optimizers()
    return [(type(optimizer), optimizer.param_groups[0]["lr"]) for optimizer in optimizers]


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_binary_classifier_learns_and_has_tf_estimators_keys(tmp_path: Path, kind: str) -> None:
    rates = {"linear": {"optimizer": "Ftrl"}, "dnn": {"optimizer": "Adam"}, "combined": {"dnn_optimizer": "Adam"}}
    estimator = CLASSIFIERS[kind](model_dir=str(tmp_path), **rates[kind])
    estimator.train(lambda: people().repeat(), steps=5)
    before = estimator.evaluate(people)["loss"]
    results = estimator.train(lambda: people().repeat(), steps=40).evaluate(people)
    assert list(results) == [*BINARY_KEYS.split(), "prediction/mean", "recall"]
    assert results["loss"] < before
    assert results["loss"] == pytest.approx(6 * results["average_loss"])
    prediction = next(estimator.predict(people))
    assert list(prediction) == BINARY_PREDICTIONS.split()
    assert prediction["classes"].tolist() in (["0"], ["1"])


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_classifier_of_several_classes(tmp_path: Path, kind: str) -> None:
    estimator = CLASSIFIERS[kind](model_dir=str(tmp_path), n_classes=3, label_vocabulary=["no", "maybe", "yes"])
    data = partial(people, ["no", "yes", "yes", "maybe", "yes", "no"])
    results = estimator.train(data).evaluate(data)
    assert list(results) == ["accuracy", "average_loss", "global_step", "loss"]
    prediction = next(estimator.predict(data))
    assert prediction["probabilities"].shape == (3,)
    assert prediction["all_classes"].tolist() == ["no", "maybe", "yes"]


@pytest.mark.parametrize("kind", REGRESSORS)
def test_a_regressor(tmp_path: Path, kind: str) -> None:
    estimator = REGRESSORS[kind](model_dir=str(tmp_path), label_dimension=2)
    data = partial(people, np.arange(12.0, dtype=np.float32).reshape(6, 2))
    results = estimator.train(data).evaluate(data)
    assert list(results) == ["average_loss", "global_step", "label/mean", "loss", "prediction/mean"]
    assert results["label/mean"] == 5.5
    assert next(estimator.predict(data))["predictions"].shape == (2,)


@pytest.mark.parametrize("makers", [CLASSIFIERS, REGRESSORS])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_loss_is_the_sum_over_the_batch_unless_something_else_is_wanted(
    tmp_path: Path, kind: str, makers: dict[str, Callable[..., te.Estimator]]
) -> None:
    reduction = te.LossReduction.SUM_OVER_BATCH_SIZE
    summed = makers[kind](model_dir=str(tmp_path / "sum")).evaluate(people)
    mean = makers[kind](model_dir=str(tmp_path / "mean"), loss_reduction=reduction).evaluate(people)
    assert summed["loss"] == pytest.approx(6 * summed["average_loss"])
    assert mean["loss"] == pytest.approx(mean["average_loss"]) == pytest.approx(summed["average_loss"])


@pytest.mark.parametrize("makers", [CLASSIFIERS, REGRESSORS])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_examples_can_be_weighted(tmp_path: Path, kind: str, makers: dict[str, Callable[..., te.Estimator]]) -> None:
    estimator = makers[kind](model_dir=str(tmp_path), weight_column="weight").train(people)
    results = estimator.evaluate(people)
    assert results["label/mean"] == pytest.approx(3.5 / 6.5)
    assert results["loss"] == pytest.approx(6.5 * results["average_loss"])


def test_a_missing_weight_column_is_named(tmp_path: Path) -> None:
    estimator = CLASSIFIERS["linear"](model_dir=str(tmp_path), weight_column="importance")
    with pytest.raises(te.UserError, match="importance"):
        estimator.train(people)


def test_variables_have_tf_estimators_names(tmp_path: Path) -> None:
    estimator = te.DNNLinearCombinedClassifier(
        str(tmp_path),
        linear_feature_columns=[CITY, AGE],
        dnn_feature_columns=[EMBEDDED, AGE],
        dnn_hidden_units=[4, 2],
        config=CONFIG,
    ).train(people)
    shapes = {name: estimator.get_variable_value(name).shape for name in estimator.get_variable_names()}
    weights = {name: shape for name, shape in shapes.items() if not name.endswith(("/Adagrad", "/Ftrl", "/Ftrl_1"))}
    assert weights == {
        "dnn/hiddenlayer_0/bias": (4,),
        "dnn/hiddenlayer_0/kernel": (4, 4),
        "dnn/hiddenlayer_1/bias": (2,),
        "dnn/hiddenlayer_1/kernel": (4, 2),
        "dnn/input_from_feature_columns/input_layer/city_embedding/embedding_weights": (2, 3),
        "dnn/logits/bias": (1,),
        "dnn/logits/kernel": (2, 1),
        "global_step": (),
        "linear/linear_model/age/weights": (1, 1),
        "linear/linear_model/bias_weights": (1,),
        "linear/linear_model/city/weights": (2, 1),
    }
    slots = set(shapes) - set(weights)
    assert slots == {
        *(f"{name}/Adagrad" for name in weights if name.startswith("dnn/")),
        *(f"{name}/{slot}" for name in weights if name.startswith("linear/") for slot in ("Ftrl", "Ftrl_1")),
    }


def test_default_optimizers_are_tf_estimators() -> None:
    assert rates(te.LinearClassifier([AGE], config=CONFIG)) == [(Ftrl, 0.2)]
    many = [fc.numeric_column(f"x{index}") for index in range(36)]
    assert rates(te.LinearRegressor(many, config=CONFIG)) == [(Ftrl, 0.2)]
    assert rates(te.LinearRegressor(many, config=CONFIG, optimizer=None)) == [(Ftrl, pytest.approx(1 / 6))]
    assert rates(te.DNNClassifier([2], [AGE], config=CONFIG)) == [(Adagrad, 0.05)]
    assert rates(te.DNNRegressor([2], [AGE], config=CONFIG)) == [(Adagrad, 0.05)]
    for kind in (CLASSIFIERS["combined"], REGRESSORS["combined"]):
        assert rates(kind()) == [(Ftrl, 0.005), (Adagrad, 0.001)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Adagrad", Adagrad), ("Adam", Adam), ("Ftrl", Ftrl), ("RMSProp", RMSProp), ("SGD", GradientDescent)],
)
def test_an_optimizers_name_keeps_the_models_learning_rate(name: str, kind: type) -> None:
    assert rates(te.LinearClassifier([AGE], optimizer=name, config=CONFIG)) == [(kind, 0.2)]
    assert rates(te.DNNClassifier([2], [AGE], optimizer=name, config=CONFIG)) == [(kind, 0.05)]


def test_an_optimizer_may_be_a_function_of_the_parameters() -> None:
    linear = te.LinearClassifier([AGE], optimizer=partial(te.optim.Ftrl, lr=0.3), config=CONFIG)
    assert rates(linear) == [(Ftrl, 0.3)]
    combined = CLASSIFIERS["combined"](
        linear_optimizer=partial(torch.optim.SGD, lr=0.1), dnn_optimizer=partial(torch.optim.AdamW, lr=0.2)
    )
    assert rates(combined) == [(torch.optim.SGD, 0.1), (torch.optim.AdamW, 0.2)]


@pytest.mark.parametrize(
    ("part", "prefix"),
    [
        ({"linear_feature_columns": [CITY]}, "linear/"),
        ({"dnn_feature_columns": [EMBEDDED], "dnn_hidden_units": [2]}, "dnn/"),
    ],
)
def test_a_combined_model_may_have_one_part_only(tmp_path: Path, part: dict[str, Any], prefix: str) -> None:
    estimator = te.DNNLinearCombinedClassifier(str(tmp_path), **part, config=CONFIG).train(people)
    assert {name.startswith(prefix) for name in estimator.get_variable_names() if name != "global_step"} == {True}


def test_hidden_units_may_be_empty_for_a_network_of_logits_only(tmp_path: Path) -> None:
    estimator = te.DNNClassifier([], [AGE], str(tmp_path), config=CONFIG).train(people)
    assert estimator.get_variable_value("dnn/logits/kernel").shape == (1, 1)


def test_dropout_and_batch_norm_work_in_training_only(tmp_path: Path) -> None:
    estimator = te.DNNClassifier([8], [AGE], str(tmp_path), dropout=0.5, batch_norm=True, config=CONFIG)
    estimator.train(lambda: people().repeat(), steps=4)
    assert estimator.evaluate(people) == estimator.evaluate(people)
    assert estimator.get_variable_value("dnn/batchnorm_0/num_batches_tracked") == 4
    assert estimator.get_variable_value("dnn/batchnorm_0/running_mean").any()


def test_the_activation_can_be_chosen(tmp_path: Path) -> None:
    results = [
        te.DNNClassifier([8], [AGE], str(tmp_path / name), activation_fn=function, config=CONFIG).evaluate(people)
        for name, function in (("relu", torch.relu), ("tanh", torch.tanh), ("module", torch.nn.Tanh()))
    ]
    assert results[0] != results[1] == results[2]


COMBINED = te.DNNLinearCombinedClassifier


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: te.LinearClassifier([]), ValueError, "^A model needs feature columns, but feature_columns is empty."),
        (
            lambda: te.LinearClassifier(AGE),
            TypeError,
            "^Feature columns must be given as a list, but got NumericColumn",
        ),
        (lambda: te.LinearClassifier([AGE, AGE]), ValueError, "age"),
        (lambda: te.DNNClassifier([2], [CITY]), (TypeError, ValueError), "city"),
        (lambda: te.DNNClassifier([2], []), ValueError, "^A model needs feature columns, but feature_columns is e"),
        (lambda: te.DNNClassifier([0], [AGE]), ValueError, r"^hidden_units must be positive integers, but got \[0\]"),
        (lambda: te.DNNClassifier([2.5], [AGE]), ValueError, r"^hidden_units must be positive integers, but got \[2.5"),
        (lambda: te.DNNClassifier(8, [AGE]), TypeError, "^hidden_units must be a list of positive integers, but got 8"),
        (lambda: te.DNNClassifier("8 4", [AGE]), TypeError, "^hidden_units must be a list of positive integers, but"),
        (lambda: te.DNNClassifier(["8", "x"], [AGE]), ValueError, r"^hidden_units must be positive integers, but got"),
        (lambda: te.DNNClassifier(["0"], [AGE]), ValueError, r"^hidden_units must be positive integers, but got \[0\]"),
        (lambda: te.DNNClassifier([2], [AGE], dropout=1.0), ValueError, "^dropout must be at least 0 and less than 1"),
        (lambda: te.DNNClassifier([2], [AGE], dropout=-0.1), ValueError, "^dropout must be at least 0 .* but got -0.1"),
        (lambda: te.DNNClassifier([2], [AGE], dropout="a"), TypeError, "^dropout must be a number, but got 'a'"),
        (lambda: te.DNNClassifier([2], [AGE], activation_fn="relu"), TypeError, "^activation_fn must be a function"),
        (
            lambda: te.DNNClassifier([2], [AGE], activation_fn=torch.nn.ReLU),
            TypeError,
            r"^activation_fn must be a function of a tensor, but got the class ReLU; give an object of it, ReLU\(\)\.$",
        ),
        (lambda: te.DNNClassifier([2], [AGE], batch_norm="yes"), TypeError, "^batch_norm must be True or False, but g"),
        (lambda: te.DNNClassifier([2], [AGE], n_classes=1), ValueError, "n_classes"),
        (lambda: te.LinearClassifier([AGE], n_classes=0), ValueError, "n_classes"),
        (lambda: te.LinearRegressor([AGE], label_dimension=0), ValueError, "label_dimension"),
        (lambda: te.LinearClassifier([AGE], label_vocabulary=["a"]), ValueError, "label_vocabulary"),
        (lambda: te.LinearClassifier([AGE], optimizer="Adamax"), ValueError, "^Unknown optimizer 'Adamax'; the names"),
        (lambda: te.LinearClassifier([AGE], optimizer=0.1), TypeError, "^An optimizer must be a name or a function"),
        (
            lambda: te.LinearClassifier([AGE], optimizer=torch.optim.SGD([torch.zeros(1)])),
            TypeError,
            r"^An optimizer must be given without parameters.*; write functools\.partial\(torch\.optim\.SGD, lr=",
        ),
        (lambda: te.LinearClassifier([AGE], loss_reduction="most"), ValueError, "most"),
        (lambda: te.LinearClassifier([AGE], config="c"), TypeError, "^config must be a RunConfig, but got 'c'"),
        (COMBINED, ValueError, "^Give linear_feature_columns, dnn_feature_columns or both; both are empty."),
        (
            lambda: COMBINED(dnn_feature_columns=[AGE]),
            ValueError,
            "^dnn_feature_columns need dnn_hidden_units, the outputs of each hidden layer.",
        ),
    ],
)
def test_mistakes_are_reported_when_the_estimator_is_made(make: Callable[[], Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        make()
    assert isinstance(raised.value, te.UserError)


def test_columns_may_be_any_iterable(tmp_path: Path) -> None:
    columns = {"city": CITY, "age": AGE}
    estimator = te.LinearClassifier(columns.values(), str(tmp_path), config=CONFIG).train(people).train(people)
    assert "linear/linear_model/age/weights" in estimator.get_variable_names()
    te.DNNClassifier([2], (column for column in (AGE,)), config=CONFIG).evaluate(people)
    with pytest.raises(ValueError, match="both are empty"):
        COMBINED(linear_feature_columns={}.values(), dnn_feature_columns=iter(()))


@pytest.mark.parametrize(("combiner", "divisor"), [("sum", 1.0), ("mean", 2.0), ("sqrtn", math.sqrt(2))])
def test_a_linear_model_combines_the_values_of_a_row(combiner: Any, divisor: float, tmp_path: Path) -> None:
    pairs = fc.bucketized_column(fc.numeric_column("pair", shape=(2,)), [0.5])
    estimator = te.LinearRegressor(
        [pairs], str(tmp_path), sparse_combiner=combiner, optimizer=partial(GradientDescent, lr=0.1)
    )
    data = te.data.Dataset.from_arrays({"pair": np.array([[0.0, 1.0]])}, np.array([1.0])).batch(1)
    estimator.train(lambda: data, steps=1)
    weights = estimator.get_variable_value("linear/linear_model/pair_bucketized/weights").ravel()
    # The gradient d loss / d weight is 2 * (0 - 1) / divisor.
    assert weights.tolist() == pytest.approx([0.2 / divisor, 0, 0, 0.2 / divisor])
    (prediction,) = estimator.predict(lambda: data)
    assert prediction["predictions"][0] == pytest.approx(0.2 + 2 * 0.2 / divisor**2)


def test_combiners_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be one of mean, sqrtn, sum, but got 'max'"):
        te.LinearRegressor([CITY], str(tmp_path), sparse_combiner="max")  # type: ignore[arg-type]


def test_a_warm_start_takes_the_weights_of_another_job_and_counts_from_0(tmp_path: Path) -> None:
    make = CLASSIFIERS["combined"]
    first = make(model_dir=str(tmp_path / "first")).train(people().repeat, steps=5)
    second = make(model_dir=str(tmp_path / "second"), warm_start_from=first.model_dir)
    untrained = second.evaluate(people)
    expected = first.evaluate(people)
    assert untrained.pop("global_step") == 0
    assert expected.pop("global_step") == 5
    assert untrained == expected
    second.train(people().repeat, steps=1)
    assert int(second.get_variable_value("global_step")) == 1
    start = te.load_checkpoint(f"{second.model_dir}/model.ckpt-0")
    trained = te.load_checkpoint(first.model_dir)
    assert all(torch.equal(start.variables[name], value) for name, value in trained.variables.items())
    assert not all(torch.equal(start.slots[name], value) for name, value in trained.slots.items())
    # A job that has its own checkpoint continues from that.
    second.train(people().repeat, steps=1)
    assert int(second.get_variable_value("global_step")) == 2


def test_a_warm_start_from_another_model_is_one_sentence(tmp_path: Path) -> None:
    first = CLASSIFIERS["linear"](model_dir=str(tmp_path / "first")).train(people().repeat, steps=1)
    second = CLASSIFIERS["dnn"](model_dir=str(tmp_path / "second"), warm_start_from=first.model_dir)
    with pytest.raises(te.UserError, match="only in the model: 'dnn/"):
        second.train(people().repeat, steps=1)


def test_hidden_layers_average_as_tensorflow_does() -> None:
    from torch_estimator.feature_column import FeatureTransform
    from torch_estimator.networks import DNN

    layout = FeatureTransform((), [AGE]).dnn
    assert layout is not None
    norm = DNN(layout, [4], 1, batch_norm=True).batchnorm_0
    assert (norm.momentum, norm.eps) == (pytest.approx(0.001), 0.001)


def test_dropout_drops_hidden_units_only_while_training() -> None:
    from torch_estimator.feature_column import FeatureTransform
    from torch_estimator.networks import DNN

    transform = FeatureTransform((), [AGE])
    assert transform.dnn is not None
    torch.manual_seed(0)
    network = DNN(transform.dnn, [64], 1, dropout=0.5)
    features = {"dnn/numeric": torch.ones(1, 1)}
    assert not torch.equal(network(features), network(features))
    network.eval()
    assert torch.equal(network(features), network(features))


def test_hidden_units_may_be_text_of_a_command_line() -> None:
    estimator = te.DNNRegressor(["8", "4"], [AGE], "memory://units", config=te.RunConfig(compile=False))
    estimator.train(lambda: ({"age": [1.0, 2.0]}, [1.0, 2.0]), steps=1)
    shapes = {name: estimator.get_variable_value(name).shape for name in estimator.get_variable_names()}
    assert (8, 4) in shapes.values() or (4, 8) in shapes.values()
