"""Weights by label, as columns and in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import torch_estimator as te
from tests.data.positions import check_every_position
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, UserError


def weights(data: Dataset, name: str = "weight") -> list[float]:
    return [value for features, _ in data.batch(2) for value in features[name].tolist()]


@pytest.mark.parametrize(
    ("labels", "by_label"),
    [
        ([0, 2, 1, 0], {0: 0.5, 2: 4}),
        (np.array([[0], [2], [1], [0]]), {0: 0.5, 2: 4}),
        ([0.0, 2.0, 1.0, 0.0], {0: 0.5, 2: 4}),
        (["a", "c", "b", "a"], {"a": 0.5, "c": 4, "never": 9}),
        (pa.array(["a", "c", "", "a"]), {"a": 0.5, "c": 4}),
        (np.array([b"a", b"c", b"b", b"a"], object), {"a": 0.5, "c": 4}),
    ],
)
def test_every_row_has_the_weight_of_its_label(labels: Any, by_label: dict[Any, float]) -> None:
    data = Dataset.from_arrays({"x": np.arange(4)}, labels).class_weight(by_label)
    assert weights(data) == [0.5, 4, 1, 0.5]
    assert weights(data.shuffle(9, seed=1).repeat(2)).count(4) == 2


def test_booleans_are_labels() -> None:
    data = Dataset.from_arrays({"x": [1, 2]}, np.array([True, False])).class_weight({True: 3})
    assert weights(data) == [3, 1]


def test_existing_weights_are_multiplied() -> None:
    data = Dataset.from_arrays({"w": [2, 3, 4]}, [0, 1, 0]).class_weight({0: 0.5}, weight_column="w")
    assert weights(data, "w") == [1, 3, 2]
    assert weights(data.class_weight({1: 2}, "w"), "w") == [1, 6, 2]
    ((features, _),) = data.batch(3)
    assert features["w"].dtype == np.float32


def test_labels_are_those_after_their_mapping_and_after_a_map(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,no\n2,yes\n3,no\n")
    data = Dataset.from_csv(tmp_path / "a.csv", label="y")
    assert weights(data.class_weight({"yes": 3})) == [1, 3, 1]
    assert weights(data.repeat(2).class_weight({"yes": 3}).shard(2, 1)) == [3, 1, 1]
    mapped = Dataset.from_csv(tmp_path / "a.csv").label("y", {"no": 0, "yes": 1}).class_weight({1: 3})
    assert weights(mapped) == [1, 3, 1]
    made = Dataset.from_arrays({"x": [1, 2]}).batch(2).map(lambda f: (f, f["x"] - 1)).class_weight({1: 7})
    assert weights(made) == [1, 7]


def test_positions_do_not_depend_on_weights() -> None:
    rows = Dataset.from_arrays({"x": np.arange(9)}, np.arange(9) % 2).shuffle(9, seed=1)
    assert check_every_position(lambda: rows.class_weight({1: 3}).cache().repeat(2).batch(4)) == 5
    with rows.batch(4).iterator() as one, rows.class_weight({1: 3}).batch(4).iterator() as other:
        next(one)
        other.restore(one.state())
        assert next(other).features["x"].tolist() == next(one).features["x"].tolist()


def csv(folder: Path, weight: str = "") -> Path:
    file = folder / "a.csv"
    header = "x,y,weight\n" if weight else "x,y\n"
    file.write_text(header + "".join(f"{i},{'yes' if i % 4 else 'no'}{weight}\n" for i in range(16)))
    return file


@pytest.mark.parametrize("present", ["", ",0.5"])
def test_weights_go_from_a_file_into_the_loss(present: str, tmp_path: Path) -> None:
    data = Dataset.from_csv(csv(tmp_path, present), label="y").class_weight({"no": 3.0})
    estimator = te.LinearClassifier(
        [te.feature_column.numeric_column("x")], label_vocabulary=["no", "yes"], weight_column="weight"
    )
    metrics = estimator.evaluate(lambda: data.batch(16))
    # The labels' mean is weighted: 4 rows weigh 3, 12 weigh 1.
    assert metrics["label/mean"] == pytest.approx(12 / 24)


def test_training_may_be_weighted_where_evaluation_is_not(tmp_path: Path) -> None:
    rows = Dataset.from_csv(csv(tmp_path), label="y")
    estimator = te.LinearClassifier(
        [te.feature_column.numeric_column("x")], label_vocabulary=["no", "yes"], weight_column="weight"
    )
    estimator.train(lambda: rows.class_weight({"no": 3.0}).repeat(2).batch(8))
    metrics = estimator.evaluate(lambda: rows.class_weight({}).batch(8))
    assert metrics["label/mean"] == pytest.approx(12 / 16)
    assert len(list(estimator.predict(lambda: rows.batch(8)))) == 16


@pytest.mark.parametrize("kind", ["numpy", "pandas", "dataset"])
def test_an_example_weight_of_n_counts_as_n_rows(kind: str) -> None:
    x, labels, weight = np.array([1.0, 2.0, 3.0]), np.array([0, 1, 1]), np.array([1.0, 3.0, 0.0])

    def inputs(x: Any, labels: Any, weight: Any) -> Any:
        features = {"x": x, "w": weight}
        if kind == "numpy":
            return te.inputs.numpy_input_fn(features, labels, batch_size=8, shuffle=False)
        if kind == "pandas":
            return te.inputs.pandas_input_fn(pd.DataFrame(features), pd.Series(labels), batch_size=8, shuffle=False)
        return lambda: Dataset.from_arrays(features, labels).batch(8)

    def trained(input_fn: Any, weight_column: str | None) -> Any:
        estimator = te.LinearClassifier([te.feature_column.numeric_column("x")], weight_column=weight_column)
        return estimator.train(input_fn).get_variable_value("linear/linear_model/x/weights")

    weighted = trained(inputs(x, labels, weight), "w")
    repeated = trained(inputs(np.array([1.0, 2, 2, 2]), np.array([0, 1, 1, 1]), np.ones(4)), None)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda d: d.class_weight([1, 2]), InvalidTypeError, r"takes a dict label -> weight, but got \[1, 2\]"),
        (lambda d: d.class_weight({0: "a"}), InvalidTypeError, "the weight of label 0 must be a number, but got 'a'"),
        (lambda d: d.class_weight({"a": -1}), InvalidValueError, "'a' must be finite and not negative, but got -1"),
        (
            lambda d: d.class_weight({0: float("nan")}),
            InvalidValueError,
            "not negative, but got nan",
        ),
        (lambda d: d.class_weight({0: 1}, 3), InvalidTypeError, "weight_column must be the name of a column, but got"),
        (lambda d: weights(d.class_weight({0: 1}, "s")), DataError, "column 's' must hold one weight per row"),
    ],
)
def test_invalid_arguments_are_refused(make: Any, error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        make(Dataset.from_arrays({"x": [1, 2], "s": ["a", "b"]}, [0, 1]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Dataset.from_arrays({"x": [1]}), "needs one column of labels, but there is none"),
        (Dataset.from_arrays({"x": [1]}, {"a": [1], "b": [2]}), "needs one column of labels, but there is a dict"),
        (Dataset.from_arrays([1], [1]), "adds the column 'weight', but the features have no names"),
        (Dataset.from_arrays({"x": [1]}, np.ones((1, 2))), "row 0 .*class_weight needs one label per row"),
        (Dataset.from_arrays({"x": [1]}, pa.array([[1]])), "row 0 .*class_weight needs one label per row"),
    ],
)
def test_data_that_cannot_be_weighted_is_named(data: Dataset, message: str) -> None:
    with pytest.raises(DataError, match=message):
        weights(data.class_weight({1: 2}))


def test_weights_for_labels_of_another_kind_are_refused() -> None:
    rows = Dataset.from_arrays({"x": np.arange(4)}, np.arange(4) % 2).class_weight({"1": 3.0}, "weight").batch(2)
    with pytest.raises(DataError, match="class_weight has weights for '1', but labels like 0; give the keys"):
        list(rows)


def classifier(tmp_path: Path, **settings: Any) -> te.Estimator:
    return te.LinearClassifier([te.feature_column.numeric_column("x")], str(tmp_path), **settings)


def two_classes(names: tuple[Any, Any] = (0, 1)) -> Dataset:
    return Dataset.from_arrays({"x": np.arange(8)}, [names[row % 2] for row in range(8)])


@pytest.mark.parametrize(
    ("settings", "names", "by_label", "message"),
    [
        (
            {"label_vocabulary": ["no", "yes"]},
            ("no", "yes"),
            {"yess": 3.0},
            r"for 'yess', which .* classes: no, yes\.$",
        ),
        ({"label_vocabulary": ["no", "yes"]}, ("no", "yes"), {"yes": 1, "No": 3}, r"for 'No', which .*: no, yes\.$"),
        ({}, (0, 1), {2: 3.0}, r"a weight for 2, which is none of the model's classes: 0, 1\.$"),
        ({}, (0, 1), {0.5: 3.0}, r"a weight for 0\.5, which is none"),
        ({"n_classes": 30}, (0, 1), {-1: 3.0}, r"a weight for -1, which .*: 0, 1, 2, .*, 19, …\.$"),
    ],
)
def test_classes_that_the_model_does_not_have_are_refused(
    settings: Any, names: Any, by_label: Any, message: str, tmp_path: Path
) -> None:
    data = two_classes(names).class_weight(by_label).batch(2)
    estimator = classifier(tmp_path, weight_column="weight", **settings)
    for run in (lambda: estimator.train(lambda: data), lambda: estimator.evaluate(lambda: data)):
        with pytest.raises(InvalidValueError, match=message):
            run()
        estimator.train(lambda: two_classes(names).class_weight({}).batch(2), steps=1)


@pytest.mark.parametrize("column", [None, "other"])
def test_weights_that_the_model_does_not_read_are_refused(column: str | None, tmp_path: Path) -> None:
    data = two_classes().class_weight({1: 3.0}).batch(2)
    reads = "no column" if column is None else "'other'"
    message = f"makes the column 'weight', but the model reads its weights from {reads}; give it weight_column='weight'"
    with pytest.raises(InvalidValueError, match=message):
        classifier(tmp_path, weight_column=column).train(lambda: data)


def test_true_false_and_floats_are_classes(tmp_path: Path) -> None:
    data = two_classes().class_weight({True: 3.0, 0.0: 1.0}).batch(2)
    classifier(tmp_path, weight_column="weight").train(lambda: data)
