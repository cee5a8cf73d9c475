"""A warm start copies the selected weights, by name, and row by row for a changed vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.line_jobs import line, line_model_fn, points
from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.checkpoint import Checkpoint
from torch_estimator.checkpoint.variables import named_variables
from torch_estimator.checkpoint.warm_start import warm_start

LINEAR = "linear/linear_model/city/weights"
EMBEDDING = "dnn/input_from_feature_columns/input_layer/city_embedding/embedding_weights"


class Network(nn.Module):
    def __init__(self, words: int = 3, units: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, units)
        self.norm = nn.BatchNorm1d(units)
        self.last = nn.Linear(units, 1)

    def forward(self, features: Any) -> Tensor:
        return self.last(self.norm(self.words(features["word"])))  # type: ignore[no-any-return]


def trained(**variables: Any) -> Checkpoint:
    """Return a checkpoint of `Network` with all values 7, except for the given variables."""
    saved = {name: torch.full_like(value, 7) for name, value in named_variables(Network()).items()}
    return Checkpoint(path="old", step=5, variables={**saved, **variables})


def start(settings: dict[str, Any], checkpoint: Checkpoint | None = None, module: nn.Module | None = None) -> set[str]:
    """Return the names of the variables that a warm start changes."""
    module = module or Network()
    before = {name: value.clone() for name, value in named_variables(module).items()}
    names = warm_start(module, checkpoint or trained(), te.WarmStartSettings("old", **settings))
    changed = {name for name, value in named_variables(module).items() if not torch.equal(value, before[name])}
    assert changed <= set(names)
    return changed


PARAMETERS = {"words.weight", "norm.weight", "norm.bias", "last.weight", "last.bias"}
BUFFERS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


@pytest.mark.parametrize(
    ("expressions", "expected"),
    [
        (".*", PARAMETERS),
        ("last", {"last.weight", "last.bias"}),
        (r".*\.weight", {"words.weight", "norm.weight", "last.weight"}),
        ([".*"], PARAMETERS | BUFFERS),
        (["norm", "last.b"], BUFFERS | {"norm.weight", "norm.bias", "last.bias"}),
    ],
)
def test_an_expression_means_parameters_and_a_list_of_them_buffers_too(expressions: Any, expected: set[str]) -> None:
    assert start({"vars_to_warm_start": expressions}) == expected


@pytest.mark.parametrize(
    ("expressions", "warned"),
    [
        (".*", "'norm.running_mean', 'norm.running_var', 'norm.num_batches_tracked'; a list"),
        ("last", ""),
        ([".*"], ""),
    ],
)
def test_buffers_that_an_expression_leaves_out_are_named(
    expressions: Any, warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    start({"vars_to_warm_start": expressions})
    assert bool(caplog.text) == bool(warned)
    assert warned in caplog.text


def test_a_frozen_parameter_is_one_too() -> None:
    module = Network().requires_grad_(False)
    assert start({}, module=module) == PARAMETERS


def test_none_means_only_the_named_variables() -> None:
    checkpoint = trained(**{"old.bias": torch.tensor([3.0])})
    settings = {"vars_to_warm_start": None, "var_name_to_prev_var_name": {"last.bias": "old.bias"}}
    module = Network()
    assert start(settings, checkpoint, module) == {"last.bias"}
    assert module.last.bias.item() == 3.0


def test_a_renamed_variable_is_copied_with_those_of_expressions() -> None:
    checkpoint = trained(**{"first.weight": torch.full((1, 2), 3.0)})
    del checkpoint.variables["last.weight"]
    module = Network()
    assert start({"var_name_to_prev_var_name": {"last.weight": "first.weight"}}, checkpoint, module) == PARAMETERS
    assert module.last.weight.tolist() == [[3.0, 3.0]]


def by_word(module: Network, **arguments: Any) -> dict[str, Any]:
    given = {"new_vocab_size": -1, "num_oov_buckets": 0, **arguments}
    return {"vars_to_warm_start": None, "var_name_to_vocab_info": {"words.weight": te.VocabInfo(**given)}}


OLD = torch.tensor([[1.0, 1.5], [2.0, 2.5], [3.0, 3.5], [8.0, 8.5], [9.0, 9.5]])


@pytest.mark.parametrize("given_as", ["lists", "files"])
def test_rows_move_with_their_words_and_new_words_keep_their_start(tmp_path: Path, given_as: str) -> None:
    new, old = ["new", "c", "a", "newer"], ["a", "b", "c"]
    if given_as == "files":
        (tmp_path / "new").write_text("\n".join(new))
        (tmp_path / "old").write_text("\n".join(old) + "\n")
    module = Network(words=6)
    initial = module.words.weight.detach().clone()
    arguments = {"new_vocab": new, "old_vocab": old}
    if given_as == "files":
        arguments = {"new_vocab": str(tmp_path / "new"), "old_vocab": str(tmp_path / "old")}
    start(by_word(module, **arguments, num_oov_buckets=2), trained(**{"words.weight": OLD}), module)
    expected = torch.stack([initial[0], OLD[2], OLD[0], initial[3], OLD[3], OLD[4]])
    assert torch.equal(module.words.weight, expected)


def test_sizes_cut_vocabularies_short_and_a_backup_initializer_starts_new_words() -> None:
    module = Network(words=3)
    settings = by_word(
        module,
        new_vocab=["c", "b", "x", "unused"],
        new_vocab_size=3,
        old_vocab=["a", "b", "c", "x"],
        old_vocab_size=2,
        backup_initializer=nn.init.zeros_,
    )
    start(settings, trained(**{"words.weight": OLD}), module)
    assert module.words.weight.tolist() == [[0.0, 0.0], [2.0, 2.5], [0.0, 0.0]]


def test_columns_move_along_axis_1() -> None:
    class Classes(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.zeros(2, classes))

    module = Classes(3)
    info = te.VocabInfo(["cat", "eel", "dog"], 3, 0, ["dog", "cat"], axis=1)
    checkpoint = Checkpoint(path="old", step=1, variables={"kernel": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    warm_start(module, checkpoint, te.WarmStartSettings("old", ".*", {"kernel": info}))
    assert module.kernel.tolist() == [[2.0, 0.0, 1.0], [4.0, 0.0, 3.0]]


@pytest.mark.parametrize(
    ("settings", "checkpoint", "error", "message"),
    [
        (
            {"vars_to_warm_start": "lost"},
            {},
            ValueError,
            r"vars_to_warm_start 'lost' matches none of the model's variables, which are 'words.weight', 'norm",
        ),
        (
            {"vars_to_warm_start": ["words", "lost"]},
            {},
            ValueError,
            r"vars_to_warm_start 'lost' matches none of the model's variables, which are 'words.weight', 'norm",
        ),
        (
            {"var_name_to_prev_var_name": {"last.wight": "x"}},
            {},
            ValueError,
            "warm_start_from names the variable 'last.wight', which the model does not have; it has 'last.weight'",
        ),
        (
            {"var_name_to_prev_var_name": {"last.bias": "old.bias"}},
            {},
            te.UserError,
            r"1 variable only in the model: 'last.bias' \(as 'old.bias'\); say with vars_to_warm_start",
        ),
        (
            {},
            {"words.weight": OLD},
            te.UserError,
            r"1 variable of another shape: 'words.weight' \(\[5, 2\] in the checkpoint, \[3, 2\] in the model\); give",
        ),
        (
            {"var_name_to_vocab_info": {"words.weight": te.VocabInfo(["a", "b"], 2, 0, ["a"])}},
            {},
            ValueError,
            "'words.weight' has 3 entries along axis 0 in the model, but its VocabInfo says 2 words of new_vocab and",
        ),
        (
            {"var_name_to_vocab_info": {"words.weight": te.VocabInfo(["a", "b"], 2, 1, ["a", "b", "c"])}},
            {},
            ValueError,
            "'words.weight' has 3 entries along axis 0 in the checkpoint, but its VocabInfo says 3 words of old_vocab",
        ),
        (
            {"var_name_to_vocab_info": {"words.weight": te.VocabInfo(["a", "b", "c"], 3, 0, ["a"])}},
            {"words.weight": torch.ones(1, 4)},
            te.UserError,
            r"'words.weight' has shape \[3, 2\] in the model and \[1, 4\] in the checkpoint, but a VocabInfo with ax",
        ),
        (
            {"var_name_to_vocab_info": {"last.bias": te.VocabInfo(["a"], 1, 0, ["a"], axis=1)}},
            {},
            te.UserError,
            r"'last.bias' has shape \[1\] in the model and \[1\] in the checkpoint, but a VocabInfo with axis=1",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_change_nothing(
    settings: dict[str, Any], checkpoint: dict[str, Any], error: type[Exception], message: str
) -> None:
    module = Network()
    before = {name: value.clone() for name, value in named_variables(module).items()}
    with pytest.raises(error, match=message):
        warm_start(module, trained(**checkpoint), te.WarmStartSettings("old", **settings))
    assert all(torch.equal(value, before[name]) for name, value in named_variables(module).items())


def cities(names: list[str]) -> te.data.Dataset:
    features = {"city": np.array(names, dtype=object)}
    return te.data.Dataset.from_arrays(features, np.arange(len(names), dtype=np.float32)).batch(len(names))


def wide_and_deep(model_dir: Path, vocabulary: list[str], **arguments: Any) -> te.Estimator:
    city = fc.categorical_column_with_vocabulary_list("city", vocabulary, num_oov_buckets=1)
    return te.DNNLinearCombinedRegressor(
        str(model_dir),
        linear_feature_columns=[city],
        dnn_feature_columns=[fc.embedding_column(city, 2)],
        dnn_hidden_units=[3],
        config=te.RunConfig(random_seed=2),
        **arguments,
    )


def test_the_columns_of_a_canned_model_are_taken_over_word_by_word(tmp_path: Path) -> None:
    old_words, new_words = ["Oslo", "Rome", "Lima"], ["Lima", "Paris", "Oslo"]
    old = wide_and_deep(tmp_path / "old", old_words)
    old.train(lambda: cities([*old_words, "Nowhere"]).repeat(), steps=30)
    info = te.VocabInfo(new_words, 3, 1, old_words)
    settings = te.WarmStartSettings(old.model_dir, var_name_to_vocab_info={LINEAR: info, EMBEDDING: info})
    new = wide_and_deep(tmp_path / "new", new_words, warm_start_from=settings)

    def predicted(estimator: te.Estimator, names: list[str]) -> list[float]:
        return [float(one["predictions"][0]) for one in estimator.predict(lambda: cities(names))]

    known = ["Lima", "Oslo", "Nowhere"]
    # Before the job has a checkpoint, predictions use the warm-started weights too.
    assert predicted(new, known) == predicted(old, known)
    assert predicted(new, ["Paris"]) != predicted(old, ["Paris"])
    new.train(lambda: cities(new_words).repeat(), steps=1)
    first = te.load_checkpoint(f"{new.model_dir}/model.ckpt-0").variables
    rows = {name: te.load_checkpoint(old.model_dir).variables[name] for name in (LINEAR, EMBEDDING)}
    for name, before in rows.items():
        assert torch.equal(first[name][[0, 2, 3]], before[[2, 0, 3]])
    assert first[LINEAR][1].item() == 0.0
    assert not torch.equal(first[EMBEDDING][1], rows[EMBEDDING][1])


def test_an_export_without_a_checkpoint_has_the_warm_started_weights(tmp_path: Path) -> None:
    words = ["Oslo", "Rome", "Lima"]
    old = wide_and_deep(tmp_path / "old", words).train(lambda: cities(words).repeat(), steps=5)
    new = wide_and_deep(tmp_path / "new", words, warm_start_from=old.latest_checkpoint())
    city = fc.categorical_column_with_vocabulary_list("city", words, num_oov_buckets=1)
    exported = te.ExportedModel.load(
        new.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features([city]))
    )
    served = exported.predict({"city": np.array(words, dtype=object)})
    expected = [one["predictions"] for one in old.predict(lambda: cities(words))]
    np.testing.assert_allclose(np.asarray(served["predictions"]), expected, atol=1e-6)
    assert new.latest_checkpoint() is None


def test_only_where_the_job_has_no_checkpoint_of_its_own(tmp_path: Path) -> None:
    old = line(tmp_path / "old").train(points, steps=9)
    mine = line(tmp_path / "mine").train(points, steps=2)
    bias = mine.get_variable_value("linear.bias")
    again = te.Estimator(
        line_model_fn, str(tmp_path / "mine"), te.RunConfig(random_seed=1), warm_start_from=old.model_dir
    )
    assert again.evaluate(points)["global_step"] == 2
    assert again.train(points, max_steps=2).get_variable_value("linear.bias") == bias


def test_a_checkpoint_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    estimator = te.Estimator(line_model_fn, str(tmp_path / "job"), warm_start_from=str(tmp_path / "nowhere"))
    with pytest.raises(te.UserError, match=rf"^there is no checkpoint at {tmp_path}/nowhere\.$"):
        estimator.train(points, steps=1)
