"""Old checkpoints whose columns or labels now mean something else."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.errors import CheckpointError, InvalidValueError
from torch_estimator.feature_column.meaning import described, meaning_of

CONFIG = te.RunConfig(random_seed=1, compile=False)
ROWS = {
    "word": np.array(["no", "yes", "no", "perhaps"]),
    "x": np.array([-1.0, 0.5, 2.0, 3.0], dtype=np.float32),
    "y": np.array([1.0, 2.0, 0.0, 3.0], dtype=np.float32),
    "ids": np.array([[0, 1], [1, 1], [2, 0], [0, 2]]),
}
LABELS = np.array([0, 1, 0, 1])


def rows(labels=LABELS):
    return te.data.Dataset.from_arrays(ROWS, labels).repeat().batch(4)


def network(model_dir, columns, **settings):
    return te.DNNClassifier([2], columns, str(model_dir), config=CONFIG, **settings)


def words(*vocabulary, **settings):
    return fc.indicator_column(fc.categorical_column_with_vocabulary_list("word", vocabulary, **settings))


def averaged(combiner):
    ids = fc.categorical_column_with_identity("ids", 3, multivalent=True)
    return fc.embedding_column(ids, 2, combiner=combiner)


def scaled(mean, shape=1):
    return fc.numeric_column("x", shape, normalizer_fn=lambda x: (x - mean) / 2)


def crossed(*boundaries, keys=("word",), **settings):
    return fc.indicator_column(
        fc.crossed_column([*keys, fc.bucketized_column(fc.numeric_column("x"), boundaries)], 7, **settings)
    )


CHANGES = {
    "vocabulary": (words("no", "yes"), words("yes", "no"), r"'no', 'yes' there, and is 'yes', 'no' now"),
    "unknown words": (words("no", "yes", num_oov_buckets=1), words("no", "yes", "perhaps"), "vocabulary_list"),
    "their hash": (
        words("no", num_oov_buckets=3),
        words("no", num_oov_buckets=3, hash_function="farmhash"),
        "hash_function was murmur3 there, and is farmhash now",
    ),
    "boundaries": (
        fc.bucketized_column(fc.numeric_column("x"), [0.0]),
        fc.bucketized_column(fc.numeric_column("x"), [1.0]),
        "'x_bucketized': the setting boundaries was 0.0 there, and is 1.0 now",
    ),
    "kind of ids": (
        fc.indicator_column(fc.categorical_column_with_hash_bucket("word", 2)),
        words("no", "yes"),
        "vocabulary_list was None",
    ),
    "combiner": (averaged("mean"), averaged("sum"), "'ids_embedding': the setting combiner was mean there, and is sum"),
    "normalizer": (scaled(1.0), scaled(1.01), r"normalizer_fn\(-10\) was -5.5 there, and is -5.505"),
    "no normalizer": (scaled(1.0), fc.numeric_column("x"), r"normalizer_fn\(-1000\)"),
    "buckets in a cross": (crossed(0.0), crossed(1.0), "boundaries of x_bucketized was 0.0"),
    "hash key of a cross": (crossed(0.0), crossed(0.0, hash_key=5), "hash_key was None there, and is 5 now"),
    "other columns": (fc.numeric_column("x"), fc.numeric_column("y"), "network column 'x', which the model lacks"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_columns_that_mean_something_else_are_refused(change, tmp_path):
    before, now, message = CHANGES[change]
    model = network(tmp_path, [before]).train(rows, steps=1)
    checkpoint = model.latest_checkpoint()

    changed = network(tmp_path, [now])
    for use in (
        lambda: changed.train(rows, steps=1),
        lambda: changed.evaluate(rows, steps=1),
        lambda: next(iter(changed.predict(rows))),
        lambda: changed.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features([now])),
    ):
        with pytest.raises(CheckpointError, match=message):
            use()
    assert network(tmp_path, [before]).evaluate(rows, steps=1)["global_step"] == 1

    # The error names the way out.
    warm = network(tmp_path / "new", [now], warm_start_from=te.WarmStartSettings(checkpoint))
    warm.train(rows, steps=1)
    assert warm.evaluate(rows, steps=1)["global_step"] == 1


SAME = {
    "vocabulary from a file": lambda path: (words("no", "yes"), fc.indicator_column(from_file(path, "no\nyes\n"))),
    "hash of no word": lambda path: (words("no"), words("no", hash_function="farmhash")),
    "default of a number": lambda path: (fc.numeric_column("x"), fc.numeric_column("x", default_value=1.0)),
    "normalizer in other words": lambda path: (
        scaled(1.0),
        fc.numeric_column("x", normalizer_fn=lambda x: torch.add(0.5 * x, -0.5)),
    ),
    "normalizer that does nothing": lambda path: (
        fc.numeric_column("x"),
        fc.numeric_column("x", normalizer_fn=lambda x: x),
    ),
    "logarithm": lambda path: tuple(
        fc.numeric_column("x", normalizer_fn=lambda x: torch.log(torch.as_tensor(x) + 2)) for _ in range(2)
    ),
    "boundaries of numpy": lambda path: (
        fc.bucketized_column(fc.numeric_column("x"), [0, 1]),
        fc.bucketized_column(fc.numeric_column("x"), np.array([0.0, 1.0])),
    ),
    "combiner of single ids": lambda path: tuple(
        fc.embedding_column(fc.categorical_column_with_hash_bucket("word", 5), 2, combiner=how)
        for how in ("mean", "sum")
    ),
    "another initializer": lambda path: tuple(
        fc.embedding_column(fc.categorical_column_with_hash_bucket("word", 5), 2, initializer=how)
        for how in (None, torch.nn.init.ones_)
    ),
}


def from_file(path, text):
    Path(path).write_text(text)
    return fc.categorical_column_with_vocabulary_file("word", path)


@pytest.mark.parametrize("change", SAME)
def test_columns_of_equal_meaning_go_on(change, tmp_path):
    before, now = SAME[change](tmp_path / "words.txt")
    network(tmp_path / "model", [before]).train(rows, steps=1)

    assert network(tmp_path / "model", [now]).train(rows, steps=1).evaluate(rows, steps=1)["global_step"] == 2


def test_a_checkpoint_without_meanings_is_loaded_and_the_next_has_them(tmp_path):
    network(tmp_path, [words("no", "yes")]).train(rows, steps=1)
    state = tmp_path / "model.ckpt-1" / "state.json"
    document = json.loads(state.read_text())
    assert document.pop("crc32")
    assert document["state"].pop("meanings")
    state.write_text(json.dumps(document))

    network(tmp_path, [words("yes", "no")]).train(rows, steps=1)

    with pytest.raises(CheckpointError, match="'yes', 'no' there, and is 'no', 'yes' now"):
        network(tmp_path, [words("no", "yes")]).evaluate(rows, steps=1)


def test_labels_in_another_order_are_refused(tmp_path):
    labels = np.array(["a", "b", "a", "c"])

    def model(*classes):
        return te.LinearClassifier(
            [fc.numeric_column("x")], str(tmp_path), n_classes=3, label_vocabulary=list(classes), config=CONFIG
        )

    model("a", "b", "c").train(lambda: rows(labels), steps=1)

    with pytest.raises(CheckpointError, match=r"another head: .*'a', 'b', 'c' there, and is 'b', 'a', 'c' now"):
        model("b", "a", "c").evaluate(lambda: rows(labels), steps=1)


def test_labels_of_one_of_several_heads_in_another_order_are_refused(tmp_path):
    labels = {"one": np.array(["a", "b", "a", "b"]), "two": LABELS}

    def model(*classes):
        one = te.BinaryClassHead(name="one", label_vocabulary=classes)
        head = te.MultiHead([one, te.BinaryClassHead(name="two")])
        return te.DNNEstimator(head, [2], [fc.numeric_column("x")], str(tmp_path), config=CONFIG)

    model("a", "b").train(lambda: rows(labels), steps=1)

    with pytest.raises(CheckpointError, match="another head 'one': the setting label_vocabulary"):
        model("b", "a").train(lambda: rows(labels), steps=1)


def test_layers_made_of_columns_in_a_module_of_ones_own_are_compared(tmp_path):
    def model(column):
        layer = fc.DenseFeatures([column])
        module = torch.nn.Sequential(layer, torch.nn.Linear(layer.width, 1))
        return te.Estimator.from_module(
            module, loss=torch.nn.BCEWithLogitsLoss(), optimizer="SGD", model_dir=str(tmp_path), config=CONFIG
        )

    labels = LABELS[:, None].astype(np.float32)
    model(words("no", "yes")).train(lambda: rows(labels), steps=1)

    with pytest.raises(CheckpointError, match="another dense_features column 'word_indicator'"):
        model(words("yes", "no")).evaluate(lambda: rows(labels), steps=1)


def test_the_combiner_of_a_linear_model_is_compared_where_rows_have_several_ids(tmp_path):
    def model(column, combiner):
        return te.LinearClassifier([column], str(tmp_path / column.name), sparse_combiner=combiner, config=CONFIG)

    several = fc.categorical_column_with_identity("ids", 3, multivalent=True)
    one = fc.categorical_column_with_hash_bucket("word", 5)
    for column in (several, one):
        model(column, "sum").train(rows, steps=1)

    assert model(one, "mean").evaluate(rows, steps=1)["global_step"] == 1
    with pytest.raises(CheckpointError, match="sparse_combiner was sum there, and is mean now"):
        model(several, "mean").evaluate(rows, steps=1)


def test_a_normalizer_that_draws_numbers_changes_none_of_the_training():
    column = fc.numeric_column("x", normalizer_fn=lambda x: x + torch.rand_like(x))
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    first, again = meaning_of(column), meaning_of(column)

    assert first == again
    assert torch.equal(torch.rand(2), expected)


OF_OTHER_ROWS = {
    "mean and deviation": lambda x: (x - x.mean()) / x.std(),
    "mean of each number": lambda x: x - x.mean(0, keepdim=True),
    "greatest": lambda x: x / x.max(),
    "smallest": lambda x: x - x.min(),
    "median": lambda x: x - x.median(),
    "norm": lambda x: nn.functional.normalize(x, dim=0),
    "ranks": lambda x: x.argsort(0).float(),
    "sums so far": lambda x: x.cumsum(0),
    "number of rows": lambda x: x / len(x),
}


@pytest.mark.parametrize("normalizer", OF_OTHER_ROWS.values(), ids=OF_OTHER_ROWS)
@pytest.mark.parametrize("bucketized", [False, True])
def test_a_normalizer_that_mixes_rows_is_refused_before_the_first_step(normalizer, bucketized, tmp_path):
    column = fc.numeric_column("x", normalizer_fn=normalizer)
    steps = []

    class Steps(te.Hook):
        def before_step(self, context):
            steps.append(context.global_step)

    model = te.LinearClassifier([fc.bucketized_column(column, [0, 1]) if bucketized else column], str(tmp_path))
    with pytest.raises(InvalidValueError, match=r"normalizer_fn of numeric column 'x' must compute each row by itself"):
        model.train(rows, hooks=[Steps()], steps=1)

    assert not steps


@pytest.mark.parametrize(
    "normalizer",
    [
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: nn.functional.softmax(x, dim=1),
        lambda x: torch.log(x),
        lambda x: torch.exp(x),
        lambda x: x + 0.1 * torch.randn_like(x),
        lambda x: x.clamp(-1, 1) / torch.tensor([2.0, 3.0]),
    ],
)
def test_a_normalizer_of_each_row_by_itself_is_taken(normalizer):
    assert meaning_of(fc.numeric_column("x", 2, normalizer_fn=normalizer))["normalizer_fn"]


def test_a_normalizer_of_several_numbers_is_compared_in_each_of_them():
    def column(*means):
        return fc.numeric_column("x", 2, normalizer_fn=lambda x: x - torch.tensor(means))

    assert meaning_of(column(1.0, 2.0)) != meaning_of(column(2.0, 1.0))


def test_descriptions_differ_wherever_entries_do():
    long = [f"word{number}" for number in range(1000)]
    changed = [[*long[:-1], "other"], [*long, "other"], [*long[:-2], long[-2] + long[-1], ""], long[::-1]]

    texts = {described(entries) for entries in (long, *changed)}

    assert len(texts) == 5
    assert all(len(text) < 200 for text in texts)
    pairs = itertools.combinations([["1", "2"], [1, 2], ["1, 2"], ["1', '2"]], 2)
    assert all(described(one) != described(other) for one, other in pairs)
