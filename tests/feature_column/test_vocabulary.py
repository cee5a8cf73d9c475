from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torch_estimator import feature_column as fc
from torch_estimator import files
from torch_estimator.errors import InvalidValueError


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "words.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("text", ["b\nŠkoda\na b\n", "b\nŠkoda\na b", "b\r\nŠkoda\r\na b\r\n", "\ufeffb\nŠkoda\na b\n"])
def test_a_word_is_a_line_with_any_line_ending(text: str, tmp_path: Path) -> None:
    column = fc.categorical_column_with_vocabulary_file("k", written(tmp_path, text))
    assert column == fc.categorical_column_with_vocabulary_list("k", ["b", "Škoda", "a b"])


def test_all_arguments_are_those_of_a_vocabulary_list(tmp_path: Path) -> None:
    path = written(tmp_path, "7\n-3\n12\n")
    ids = fc.FeatureTransform(
        [fc.categorical_column_with_vocabulary_file("k", path, vocabulary_size=2, default_value=0, dtype="int64")]
    )({"k": np.array([-3, 7, 12, -1])})["linear/ids"]
    assert ids.ravel().tolist() == [1, 0, 0, 2]
    oov = fc.categorical_column_with_vocabulary_file("k", str(path), num_oov_buckets=3, multivalent=True)
    assert oov.num_buckets == 6
    assert oov.multivalent


def test_a_vocabulary_may_be_at_any_url() -> None:
    files.write_file("memory://vocabularies/words.txt", [b"x\ny\n"])
    column = fc.categorical_column_with_vocabulary_file("k", "memory://vocabularies/words.txt")
    assert column.vocabulary_list == ("x", "y")


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("", {}, "is empty"),
        ("a\n\nb\n", {}, "line 2 is empty"),
        ("a\nb\na\n", {}, "line 3 repeats 'a' of line 1"),
        ("a\nb\n", {"vocabulary_size": 3}, "has 2 lines, but vocabulary_size is 3"),
        ("a\n", {"vocabulary_size": 0}, "must be a positive integer, but got 0"),
        ("1\nx\n", {"dtype": int}, "line 2 is 'x', which is no integer"),
        ("1\n01\n", {"dtype": int}, "line 2 repeats 1 of line 1"),
        ("a\n", {"dtype": float}, "must be string or an integer type, but got 'float64'"),
        ("a\n", {"num_oov_buckets": 2, "default_value": 0}, "only one of them"),
        ("a\n", {"default_value": 4}, "must be -1 or an id below 1"),
        (b"a\n\xff\n", {}, r"is not UTF-8 text \(byte 2\)"),
    ],
)
def test_errors_name_the_fault_of_a_file(text: Any, arguments: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=message):
        fc.categorical_column_with_vocabulary_file("k", written(tmp_path, text), **arguments)


@pytest.mark.parametrize("base", ["local", "memory://nowhere"])
def test_a_missing_file_is_named(base: str, tmp_path: Path) -> None:
    path = f"{tmp_path if base == 'local' else base}/none.txt"
    with pytest.raises(InvalidValueError, match=r"vocabulary_file .*none.txt of column 'k' cannot be read: "):
        fc.categorical_column_with_vocabulary_file("k", path)


def test_words_beyond_the_size_are_not_checked(tmp_path: Path) -> None:
    column = fc.categorical_column_with_vocabulary_file("k", written(tmp_path, "a\nb\n\na\n"), vocabulary_size=2)
    assert column.num_buckets == 2


@pytest.mark.parametrize("buckets", [0, 3])
def test_blanks_around_every_value_are_warned_of_once(buckets: int, caplog: pytest.LogCaptureFixture) -> None:
    column = fc.categorical_column_with_vocabulary_list("work", ["Private", "State-gov"], num_oov_buckets=buckets)
    transform = fc.FeatureTransform([column])
    transform({"work": np.array(["Self-emp", "", "Private"])})
    transform({"work": np.array(["", " "])})
    assert not caplog.messages
    for _ in range(2):
        transform({"work": np.array([" Self-emp", " Private", ""])})
    (message,) = caplog.messages
    assert "Column 'work' knows none" in message
    assert "would know ' Private'" in message


def test_a_vocabulary_that_knows_no_value_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    transform = fc.FeatureTransform([fc.categorical_column_with_vocabulary_list("sex", ["M", "F", "O", "X"])])
    transform({"sex": np.array(["m"])})
    transform({"sex": np.array(["", ""])})
    transform({"sex": np.array(["m", "M"])})
    assert not caplog.messages
    for _ in range(2):
        transform({"sex": np.array(["male", "female", "", "male"])})
    assert caplog.messages == [
        "Column 'sex' knows none of the values that it has read, such as 'female', 'male'; its vocabulary has 'M', "
        "'F', 'O', …. Check their spelling, or give num_oov_buckets."
    ]


def test_integers_that_a_vocabulary_does_not_know_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    fc.FeatureTransform([fc.categorical_column_with_vocabulary_list("code", [10, 20])])({"code": np.array([1, 2, 3])})
    (message,) = caplog.messages
    assert "such as 1, 2, 3; its vocabulary has 10, 20. " in message


def test_buckets_for_unknown_values_need_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    column = fc.categorical_column_with_vocabulary_list("sex", ["M", "F"], num_oov_buckets=2)
    other = fc.categorical_column_with_vocabulary_list("code", ["a", "b"], default_value=1)
    fc.FeatureTransform([column, other])({"sex": np.array(["male", "female"]), "code": np.array(["x", "y"])})
    assert not caplog.messages
