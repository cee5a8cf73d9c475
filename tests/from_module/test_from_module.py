"""`Estimator.from_module`: arguments, all forms of features and labels, columns, errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.from_module.hand import BATCH, SETTINGS, data, input_fn, once
from torch_estimator import feature_column as fc
from torch_estimator.errors import CheckpointError

X, Y = data()


def estimator(module: nn.Module, model_dir: object, **arguments: Any) -> te.Estimator:
    arguments = {"loss": nn.MSELoss(), "optimizer": "Adam", **arguments}
    return te.Estimator.from_module(module, model_dir=str(model_dir), config=te.RunConfig(**SETTINGS), **arguments)


class ByName(nn.Module):
    """Module that takes ``{"a": [N, 2], "b": [N], "c": int64 [N]}``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 2)
        self.linear = nn.Linear(5, 1)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        parts = [features["a"], features["b"].unsqueeze(1), self.embedding(features["c"])]
        return self.linear(torch.cat(parts, 1))


class Pair(nn.Module):
    """Module that takes a tuple of ``[N, 2]`` and ``[N]``, and returns a dict and a tuple of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, features: tuple[Tensor, Tensor]) -> dict[str, Any]:
        numbers, one = features
        scores = self.linear(torch.cat([numbers, one.unsqueeze(1)], 1))
        return {"scores": scores, "more": (scores.argmax(1), one > 0)}


def pair_loss(outputs: dict[str, Any], labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs["scores"], (labels > 0).long())


def pair_predictions(outputs: dict[str, Any]) -> dict[str, Tensor]:
    best, positive = outputs["more"]
    return {"scores": outputs["scores"], "best": best, "positive": positive}


class Several(nn.Module):
    """Module whose ``forward`` takes each feature as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, numbers: Tensor, one: Tensor, scale: float = 1.0) -> Tensor:
        return self.linear(torch.cat([numbers, one.unsqueeze(1)], 1)) * scale


def pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 1))


FORMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dict": (ByName, {"a": X[:, :2].astype(float), "b": X[:, 2], "c": (X[:, 0] > 0).astype(np.int32) * 3}, {}),
    "tensor": (partial(nn.Linear, 3, 1), X.astype(np.float64), {}),
    "tuple": (Pair, (X[:, :2], X[:, 2]), {"loss": pair_loss, "predictions": pair_predictions}),
    "arguments": (Several, (X[:, :2], X[:, 2]), {}),
    "named arguments": (Several, {"one": X[:, 2], "numbers": X[:, :2], "unused": X}, {}),
    "images": (pooled, np.random.default_rng(1).normal(size=(len(X), 1, 8, 8)).astype(np.float32), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_features_of_every_form_are_trained_evaluated_predicted_and_exported(tmp_path: Path, form: str) -> None:
    make, features, arguments = FORMS[form]
    ours = estimator(make(), tmp_path, **arguments).train(input_fn(features, Y), steps=3)
    assert ours.evaluate(once(features, Y))["global_step"] == 3
    (predicted,) = ours.predict(once(features, Y, len(X)), yield_single_examples=False)

    exported = te.ExportedModel.load(ours.export_saved_model(str(tmp_path / "e"), te.serving_input.like(features)))
    names = features if isinstance(features, dict) else {"features": features}
    if isinstance(features, tuple):
        names = {f"features_{place}": column for place, column in enumerate(features)}
    answer = exported.predict(names)
    assert list(answer) == list(predicted)
    for key, value in predicted.items():
        assert answer[key].shape == value.shape
        np.testing.assert_allclose(answer[key], value, rtol=0, atol=1e-5, err_msg=key)


def columns() -> list[Any]:
    word = fc.categorical_column_with_vocabulary_list("word", ["a", "b"], num_oov_buckets=1)
    hashed = fc.categorical_column_with_hash_bucket("town", 10)
    return [fc.numeric_column("size"), fc.indicator_column(word), fc.embedding_column(hashed, 2)]


RAW = {
    "size": X[:, 0],
    "word": np.array(["a", "b", "", "x"] * (len(X) // 4), object),
    "town": np.array(["Ulm", "Köln", "Bonn"] * (len(X) // 3), object),
}


class Explicit(nn.Module):
    def __init__(self, transform: fc.FeatureTransform) -> None:
        super().__init__()
        assert transform.dnn is not None and transform.linear is not None
        self.columns = fc.InputLayer(transform.dnn)
        self.wide = fc.LinearModel(transform.linear, 1)
        self.deep = nn.Sequential(nn.Linear(self.columns.width, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return self.deep(self.columns(features)) + self.wide(features)


@pytest.mark.parametrize(("explicit", "with_head"), [(False, False), (False, True), (True, True)])
def test_raw_columns_in_front_of_a_module(tmp_path: Path, explicit: bool, with_head: bool) -> None:
    if explicit:
        wide = [fc.categorical_column_with_hash_bucket("town", 7), fc.numeric_column("size")]
        transform = fc.FeatureTransform(wide, columns())
        module, how = Explicit(transform), {"transform": transform}
    else:
        module, how = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1)), {"columns": columns()}
    end = {"head": te.heads.RegressionHead(), "loss": None} if with_head else {}
    ours = estimator(module, tmp_path, **how, **end)
    untrained = ours.evaluate(once(RAW, Y))["loss"]
    ours.train(input_fn(RAW, Y), steps=30)
    assert ours.evaluate(once(RAW, Y))["loss"] < untrained
    table = "dnn/input_from_feature_columns/input_layer/town_embedding/embedding_weights"
    assert table in ours.get_variable_names()

    (predicted,) = ours.predict(once(RAW, None, len(X)), yield_single_examples=False)
    receiver = te.serving_input.raw_features(columns())
    answer = te.ExportedModel.load(ours.export_saved_model(str(tmp_path / "e"), receiver)).predict(RAW)
    assert list(answer) == list(predicted)
    for key, value in predicted.items():
        np.testing.assert_allclose(answer[key], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("labels", "loss"),
    [
        (Y.astype(np.float64), nn.MSELoss()),
        (Y[:, None], nn.functional.l1_loss),
        ((Y > 0), nn.BCEWithLogitsLoss()),
        ((Y > 0).astype(np.int64)[:, None], nn.SmoothL1Loss()),
    ],
    ids=["float64", "[N, 1]", "bool", "int [N, 1]"],
)
@pytest.mark.parametrize("flat", [False, True])
def test_labels_of_values_fit_whatever_form_they_have(tmp_path: Path, labels: Any, loss: Any, flat: bool) -> None:
    module = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)) if flat else nn.Linear(3, 1)
    ours = estimator(module, tmp_path, loss=loss).train(input_fn(X, labels), steps=1)
    with torch.no_grad():
        outputs = ours.trained_module()(torch.from_numpy(X)).reshape(-1, 1)
    plain = torch.from_numpy(labels.astype(np.float32).reshape(-1, 1))
    expected = loss(
        outputs, plain[:, 0] if isinstance(loss, type(lambda: 0)) and loss.__name__ == "<lambda>" else plain
    )
    assert ours.evaluate(once(X, labels, len(X)))["loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("labels", [(Y > 0).astype(np.int32), (Y > 0).astype(np.int64)[:, None], Y > 0])
def test_labels_of_classes_fit_cross_entropy(tmp_path: Path, labels: Any) -> None:
    ours = estimator(nn.Linear(3, 2), tmp_path, loss=nn.CrossEntropyLoss()).train(input_fn(X, labels), steps=1)
    assert 0 < ours.evaluate(once(X, labels))["loss"] < 3


def test_class_probabilities_fit_cross_entropy(tmp_path: Path) -> None:
    labels = np.stack([Y > 0, Y <= 0], 1).astype(np.float64)
    estimator(nn.Linear(3, 2), tmp_path, loss=nn.functional.cross_entropy).train(input_fn(X, labels), steps=1)


@pytest.mark.parametrize(
    ("loss", "outputs", "labels", "message"),
    [
        (nn.MSELoss(), 2, Y, r"^MSELoss compares outputs and labels one by one, but outputs have the shape \[8, 2\] a"),
        (
            nn.functional.cross_entropy,
            2,
            Y,
            r"^cross_entropy takes scores \[N, classes\] and one class id per row, integers \[N\], but got outputs of "
            r"the shape \[8, 2\] and labels float32 \[8\]\.$",
        ),
        (nn.MSELoss(reduction="none"), 1, Y, "^The loss of an EstimatorSpec must return one number as a tensor, but g"),
    ],
)
def test_labels_that_cannot_be_compared_are_one_sentence(
    tmp_path: Path, loss: Any, outputs: int, labels: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        estimator(nn.Linear(3, outputs), tmp_path, loss=loss).train(input_fn(X, labels), steps=1)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            np.array(["yes", "no"] * (len(Y) // 2)),
            "labels that are numbers, but these are strings, such as 'yes'; give",
        ),
        ({"price": Y, "weight": Y}, "one tensor of labels, but these are a dict with price, weight; give one of them"),
    ],
)
def test_labels_that_a_loss_of_torch_does_not_take_are_one_sentence(tmp_path: Path, labels: Any, message: str) -> None:
    with pytest.raises(te.UserError, match=f"^MSELoss takes {message}"):
        estimator(nn.Linear(3, 1), tmp_path).train(input_fn(X, labels), steps=1)


@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_an_error_inside_the_module_stays_its_own_and_names_the_batch(tmp_path: Path, call: str) -> None:
    ours = estimator(nn.Linear(4, 1), tmp_path)
    data_fn = once((X,) if call == "train" else {"x": X}, Y)
    run = {
        "train": lambda: ours.train(data_fn, steps=1),
        "evaluate": lambda: ours.evaluate(data_fn),
        "predict": lambda: next(ours.predict(data_fn)),
    }[call]
    with pytest.raises(TypeError, match="linear") as raised:
        run()
    features = "(float32 [8, 3])" if call == "train" else "{'x': float32 [8, 3]}"
    mode, labels = ("train" if call == "train" else "eval"), "" if call == "predict" else " and labels float32 [8]"
    assert raised.value.__notes__ == [
        f"The module Linear failed in mode {mode} on a batch of features {features}{labels}."
    ]


def test_a_module_with_weights_predicts_and_exports_before_any_training(tmp_path: Path) -> None:
    module = nn.Linear(3, 1)
    ours = estimator(module, tmp_path)
    expected = module(torch.from_numpy(X)).detach().numpy()
    got = np.stack([one["output"] for one in ours.predict(once(X))])
    np.testing.assert_allclose(got, expected, atol=1e-6)
    path = ours.export_saved_model(str(tmp_path / "export"), te.serving_input.like(X))
    answer = te.ExportedModel.load(path).predict({"features": X})
    np.testing.assert_allclose(answer["output"], expected, atol=1e-5)
    assert ours.trained_module() is not module


def test_a_model_fn_has_nothing_to_predict_with_before_training(tmp_path: Path) -> None:
    from tests.line_jobs import line

    with pytest.raises(CheckpointError, match="to take the module from; train first"):
        line(tmp_path).trained_module()


def lbfgs(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(module.parameters())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"module": "net"}, TypeError, r"^module must be a torch.nn.Module, but got 'net'\.$"),
        ({"module": nn.LazyLinear(1)}, ValueError, "^The parameter 'weight' of LazyLinear has no shape yet; call the"),
        ({"optimizer": "Sgd"}, ValueError, "^Unknown optimizer 'Sgd'"),
        (
            {"optimizer": 3},
            TypeError,
            "^optimizer must be a name, a function from named parameters to an optimizer, or",
        ),
        ({"optimizer": [torch.optim.SGD]}, TypeError, "^optimizer must be a name, a function from named parameters to"),
        ({"optimizer": lbfgs}, TypeError, "^LBFGS evaluates the loss several times a step"),
        (
            {"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters())},
            ValueError,
            "^The optimizer SGD holds a parameter that is not one of the module Linear's; make it on module.parameters",
        ),
        ({"columns": [], "loss": nn.MSELoss()}, ValueError, "^columns must hold at least one feature column, but is"),
        ({"columns": columns(), "transform": 1}, ValueError, "^Give columns, or a module with its own InputLayer and"),
        ({"loss": None}, ValueError, "needs a head or a loss"),
        ({"head": te.heads.RegressionHead()}, ValueError, "takes a head, or loss, predictions and metrics, not both"),
        (
            {"loss": nn.AdaptiveLogSoftmaxWithLoss(4, 4, [2])},
            ValueError,
            "^The loss AdaptiveLogSoftmaxWithLoss has par",
        ),
    ],
)
def test_arguments_that_contradict_each_other_are_one_sentence(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    module = arguments.pop("module", nn.Linear(3, 1)) if "module" in arguments else nn.Linear(3, 1)
    given = {"optimizer": "Adam", **arguments}
    if given["optimizer"] is lbfgs:
        given["optimizer"] = lbfgs(module)
    with pytest.raises(error, match=message) as raised:
        estimator(module, tmp_path, **given).train(input_fn(X, Y), steps=1)
    assert isinstance(raised.value, te.UserError)


def test_embeddings_of_columns_need_an_optimizer_that_is_made_on_them(tmp_path: Path) -> None:
    module = nn.Linear(6, 1)
    with pytest.raises(
        TypeError, match=r"^optimizer must be a name or a function where columns hold embeddings, which"
    ):
        estimator(module, tmp_path, columns=columns(), optimizer=torch.optim.SGD(module.parameters()))


def test_without_an_optimizer_it_only_evaluates_and_predicts(tmp_path: Path) -> None:
    ours = estimator(nn.Linear(3, 1), tmp_path, optimizer=None)
    assert ours.evaluate(once(X, Y))["loss"] > 0
    with pytest.raises(ValueError, match=r"needs an optimizer to train, such as optimizer=.Adam"):
        ours.train(once(X, Y))


def test_a_module_that_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    module = nn.Linear(3, 1)
    module.weight_of_last_call = module.weight * 2
    with pytest.raises(
        TypeError, match=r"^The module Linear cannot be copied, which each training and evaluation need"
    ):
        estimator(module, tmp_path)


def test_state_that_is_not_a_tensor_is_refused(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"calls": 3}

        def set_extra_state(self, state: Any) -> None:
            return None

    with pytest.raises(TypeError, match=r"^The module keeps '_extra_state' as dict, which a checkpoint cannot hold"):
        estimator(Odd(3, 1), tmp_path).train(once(X, Y))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.linear(x if mask is None else x * mask)


def test_an_argument_with_a_default_is_given_where_the_features_name_it(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    module = Masked()
    estimator = te.Estimator.from_module(module, loss=nn.MSELoss(), optimizer="SGD", model_dir=str(tmp_path))

    for features, factor in (({"x": x, "mask": np.zeros_like(x)}, 0.0), ({"x": x}, 1.0), (x, 1.0)):
        dataset = te.data.Dataset.from_arrays(features).batch(8)
        outputs = [row["output"] for row in estimator.predict(lambda dataset=dataset: dataset)]
        with torch.no_grad():
            np.testing.assert_allclose(outputs, module(torch.from_numpy(x) * factor).numpy(), rtol=1e-6)


@pytest.mark.parametrize("clipped", [False, True])
def test_an_embedding_with_sparse_gradients_trains_as_one_with_whole_ones(tmp_path: Path, clipped: bool) -> None:
    ids = np.arange(len(Y)) % 4
    trained = []
    for sparse in (False, True):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(4, 2, sparse=sparse), nn.Linear(2, 1))
        optimizer = te.optim.clip_gradients_by_norm(te.optim.Adagrad(lr=0.1), 0.1) if clipped else "Adam"
        ours = estimator(module, tmp_path / str(sparse), optimizer=optimizer)
        trained.append(ours.train(input_fn(ids, Y), steps=5).get_variable_value("0.weight"))
    np.testing.assert_allclose(trained[1], trained[0], rtol=0, atol=1e-6)


@dataclasses.dataclass
class Distribution:
    """Output of `Spread` as a dataclass."""

    mean: Tensor
    deviation: Tensor
    unused: Tensor | None = None


class Moments(NamedTuple):
    """Output of `Spread` as a named tuple."""

    mean: Tensor
    deviation: Tensor


class Spread(nn.Module):
    """Module whose outputs are the attributes of an object."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        mean, log = self.linear(x).unbind(1)
        return self.kind(mean, log.exp())


@pytest.mark.parametrize("kind", [Distribution, Moments])
def test_outputs_with_fields_are_predicted_by_their_names(tmp_path: Path, kind: Callable[..., Any]) -> None:
    ours = estimator(Spread(kind), tmp_path, loss=lambda outputs, labels: (outputs.mean - labels).pow(2).mean())
    ours.train(input_fn(X, Y), steps=2)
    assert ours.evaluate(once(X, Y))["loss"] > 0
    predicted = next(ours.predict(once(X), yield_single_examples=False))
    assert sorted(predicted) == ["deviation", "mean"]
    exported = te.ExportedModel.load(ours.export_saved_model(str(tmp_path / "export"), te.serving_input.like(X)))
    answers = exported.predict({"features": X[:BATCH]})
    assert sorted(answers) == ["deviation", "mean"]
    for key, values in predicted.items():
        np.testing.assert_allclose(np.asarray(answers[key]), values, rtol=1e-5, atol=1e-6)


def test_a_prediction_that_is_no_tensor_is_one_sentence(tmp_path: Path) -> None:
    ours = estimator(Spread(lambda mean, deviation: {"both": Moments(mean, deviation)}), tmp_path)
    with pytest.raises(
        te.UserError, match=r"^The prediction 'both' must be a tensor, but is Moments; give predictions="
    ):
        next(ours.predict(once(X)))


AB = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
TWO = [fc.numeric_column("a"), fc.numeric_column("b")]


def train_on_columns(module: nn.Module, model_dir: Path, **settings: Any) -> None:
    settings = {"loss": nn.MSELoss(), "optimizer": "Adam", **settings}
    estimator = te.Estimator.from_module(module, columns=TWO, model_dir=str(model_dir), **settings)
    rows = te.data.Dataset.from_arrays({"a": AB[:, 0], "b": AB[:, 1]}, AB[:, :1]).batch(8)
    estimator.train(lambda: rows, steps=1)


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        (nn.Linear(3, 1), {}, "Linear does not take the 2 numbers per row that the columns make: mat1"),
        (nn.Identity(), {}, "has no parameters to train"),
        (nn.Linear(2, 1), {"loss": lambda out, y: (out.detach() - y).mean()}, "does not depend on any parameter"),
        (nn.Linear(2, 1), {"optimizer": torch.optim.LBFGS}, "LBFGS evaluates the loss several times"),
        (
            nn.Linear(2, 1),
            {"optimizer": partial(torch.optim.Adam, learning_rate=0.1)},
            "unexpected keyword argument 'learning_rate'",
        ),
    ],
)
def test_features_that_cannot_be_trained_on_are_one_sentence(
    module: nn.Module, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(te.UserError, match=message):
        train_on_columns(module, tmp_path, **settings)


def test_checking_the_width_changes_neither_module_nor_random_state(tmp_path: Path) -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(), nn.Linear(2, 1))
    state = torch.random.get_rng_state()

    te.Estimator.from_module(module, columns=TWO, loss=nn.MSELoss(), optimizer="Adam", model_dir=str(tmp_path))

    assert module.training
    assert int(module[0].num_batches_tracked) == 0
    assert torch.equal(state, torch.random.get_rng_state())


class _Ids(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"layer": layer})
        self.out = nn.LazyLinear(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner["layer"](x).flatten(1))


@pytest.mark.parametrize(
    ("layer", "last", "told"),
    [
        (nn.Embedding(10, 2), [57, 1], "inner.layer (Embedding) has 10 rows, for ids from 0 to 9, but got the id 57."),
        (nn.Embedding(10, 2), [-1, 1], "inner.layer (Embedding) has 10 rows, for ids from 0 to 9, but got the id -1."),
        (
            nn.EmbeddingBag(3, 2),
            [1, 3],
            "inner.layer (EmbeddingBag) has 3 rows, for ids from 0 to 2, but got the id 3.",
        ),
    ],
)
def test_an_id_outside_of_a_table_is_named_with_the_layer(
    tmp_path: Path, layer: nn.Module, last: list[int], told: str
) -> None:
    model = _Ids(layer)
    model(torch.zeros(2, 2, dtype=torch.int64))
    estimator = te.Estimator.from_module(
        model,
        loss=nn.MSELoss(),
        optimizer=te.optim.SGD(lr=0.1),
        model_dir=str(tmp_path),
        config=te.RunConfig(compile=False),
    )
    with pytest.raises((IndexError, RuntimeError)) as raised:
        estimator.train(lambda: (np.array([[0, 1], last]), np.zeros((2, 1), np.float32)), steps=1)
    assert raised.value.__notes__[0].endswith(told)


@pytest.mark.parametrize("mode", ["train", "evaluate"])
def test_batch_norm_of_one_row_is_explained(mode: str) -> None:
    estimator = te.Estimator.from_module(
        nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)),
        loss=nn.MSELoss(),
        optimizer=te.optim.SGD(lr=0.1),
        model_dir="memory://norm",
        config=te.RunConfig(compile=False),
    )
    one_row = np.ones((1, 1), np.float32)
    if mode == "evaluate":
        assert "loss" in estimator.evaluate(lambda: (one_row, one_row))
        return
    with pytest.raises(ValueError, match="more than 1 value") as raised:
        estimator.train(lambda: (one_row, one_row), steps=1)
    assert "0 (BatchNorm1d) cannot normalize one row in training" in raised.value.__notes__[0]
    assert "drop_remainder=True" in raised.value.__notes__[0]
