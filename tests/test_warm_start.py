"""WarmStartSettings and VocabInfo: invalid arguments, and reading of vocabularies."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

import torch_estimator as te
from torch_estimator import files


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    yield str(tmp_path) if request.param == "local" else "memory://test_warm_start"
    files.remove_tree("memory://test_warm_start")


def info(**arguments: Any) -> te.VocabInfo:
    given = {"new_vocab": ["a", "b"], "new_vocab_size": 2, "num_oov_buckets": 0, "old_vocab": ["a"], **arguments}
    return te.VocabInfo(**given)


def test_a_vocabulary_is_a_file_with_a_word_a_line(folder: str) -> None:
    path = files.join(folder, "words.txt")
    files.write_atomic(path, "Łódź\r\n\na b\u2028c\nlast\n".encode())
    words = info(new_vocab=path, new_vocab_size=-1, old_vocab=path, old_vocab_size=2)
    assert words.new_words() == ["Łódź", "", "a b\u2028c", "last"]
    assert words.old_words() == ["Łódź", ""]


def test_a_vocabulary_may_be_a_list(tmp_path: pathlib.Path) -> None:
    words = info(new_vocab=[3, 1, 2], new_vocab_size=None, old_vocab=["x", b"y"])
    assert (words.new_words(), words.old_words()) == (["3", "1", "2"], ["x", "y"])


def test_a_missing_or_short_vocabulary_is_one_sentence(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=rf"^old_vocab of a VocabInfo cannot be read: {tmp_path}/none: No such file"):
        info(old_vocab=tmp_path / "none").old_words()
    (tmp_path / "words").write_text("a\nb\n")
    with pytest.raises(ValueError, match=rf"^new_vocab_size of a VocabInfo is 3, but the file {tmp_path}/words has on"):
        info(new_vocab=tmp_path / "words", new_vocab_size=3).new_words()
    with pytest.raises(ValueError, match=r"^old_vocab_size of a VocabInfo is 2, but the list has only 1 words\.$"):
        info(old_vocab_size=2).old_words()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"new_vocab": 3}, TypeError, "new_vocab of a VocabInfo must be a file or a list of words, but got 3."),
        ({"new_vocab_size": 0}, ValueError, "new_vocab_size of a VocabInfo must be positive, or -1 for all words, bu"),
        ({"old_vocab_size": -2}, ValueError, "old_vocab_size of a VocabInfo must be positive, or -1 for all words, b"),
        ({"num_oov_buckets": -1}, ValueError, "num_oov_buckets of a VocabInfo must not be negative, but got -1."),
        ({"axis": 2}, ValueError, "axis of a VocabInfo must be 0 or 1, but got 2."),
        ({"backup_initializer": 0}, TypeError, "backup_initializer of a VocabInfo must be a function, but got 0."),
    ],
)
def test_a_vocab_info_is_checked(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        info(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ckpt_to_initialize_from": None}, TypeError, "ckpt_to_initialize_from must be a checkpoint or a directory"),
        ({"vars_to_warm_start": "("}, ValueError, r"vars_to_warm_start '\(' is not a regular expression: "),
        ({"vars_to_warm_start": ["ok", 3]}, TypeError, "vars_to_warm_start must be regular expressions, but got 3."),
        ({"vars_to_warm_start": 3}, TypeError, "vars_to_warm_start must be a regular expression, a list of them, or"),
        ({"var_name_to_vocab_info": ["a"]}, TypeError, r"var_name_to_vocab_info must be a dict by variable name, but"),
        ({"var_name_to_vocab_info": {"a": 3}}, TypeError, "var_name_to_vocab_info of 'a' must be a VocabInfo, but go"),
    ],
)
def test_settings_are_checked(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        te.WarmStartSettings(**{"ckpt_to_initialize_from": "runs/x", **arguments})


def test_an_estimator_takes_a_path_or_settings_and_nothing_else(tmp_path: pathlib.Path) -> None:
    from tests.line_jobs import line_model_fn

    for accepted in (None, "runs/x", tmp_path, te.WarmStartSettings(tmp_path)):
        te.Estimator(line_model_fn, str(tmp_path / "job"), warm_start_from=accepted)
    with pytest.raises(
        TypeError, match=r"^warm_start_from must be a checkpoint, a directory of checkpoints or WarmSta"
    ):
        te.Estimator(line_model_fn, str(tmp_path / "job"), warm_start_from=3)  # type: ignore[arg-type]


def test_optimizers_are_made_of_the_warm_started_weights(tmp_path: pathlib.Path) -> None:
    class Anchored(torch.optim.SGD):
        """Optimizer that keeps the initial values of its parameters."""

        made: ClassVar[list[list[torch.Tensor]]] = []

        def __init__(self, params: Any) -> None:
            own = list(params)
            super().__init__(own, lr=0.1)
            self.made.append([one.detach().clone() for _, one in own])

    def estimator(name: str, **settings: Any) -> te.Estimator:
        return te.LinearRegressor(
            [te.feature_column.numeric_column("x")], model_dir=tmp_path / name, optimizer=Anchored, **settings
        )

    before = estimator("before")
    before.train(lambda: te.data.Dataset.from_arrays({"x": [1.0, 2.0]}, [3.0, 5.0]).batch(2), max_steps=2)
    after = estimator("after", warm_start_from=str(tmp_path / "before"))
    after.train(lambda: te.data.Dataset.from_arrays({"x": [1.0, 2.0]}, [3.0, 5.0]).batch(2), max_steps=1)

    warm = sorted(float(one) for one in Anchored.made[-1])
    values = [before.get_variable_value(name) for name in before.get_variable_names() if name.startswith("linear/")]
    trained = sorted(value.item() for value in values if value.size == 1)
    assert warm == pytest.approx(trained)
    assert any(warm)
