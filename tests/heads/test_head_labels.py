import numpy as np
import pyarrow as pa
import pytest

from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError
from torch_estimator.heads import BinaryClassHead, MultiClassHead, RegressionHead

VOCABULARY = ["cat", "dog", "fox"]


@pytest.mark.parametrize(
    "labels",
    [
        pa.array(["fox", "cat", "fox"]),
        pa.array(["fox", "cat", "fox"]).dictionary_encode(),
        pa.array(["fox", "cat", "fox"], type=pa.large_string()),
        pa.array(["cat", "fox", "cat", "fox"]).dictionary_encode().slice(1),
        np.array(["fox", "cat", "fox"], dtype=object),
        np.array([["fox"], ["cat"], ["fox"]], dtype=object),
        np.array([b"fox", b"cat", b"fox"], dtype=object),
        np.array(["fox", "cat", "fox"]),
        np.array([b"fox", b"cat", b"fox"]),
    ],
    ids=["arrow", "dictionary", "large", "slice", "object", "column", "bytes", "unicode", "fixed bytes"],
)
def test_strings_are_looked_up_in_the_vocabulary(labels):
    ids = MultiClassHead(3, label_vocabulary=VOCABULARY).prepare_labels(labels)
    assert ids.dtype == np.int64
    assert ids.tolist() == [[2], [0], [2]]


@pytest.mark.parametrize(
    "labels",
    [
        np.array([2, 0, 1], dtype=np.int32),
        np.array([[2], [0], [1]]),
        np.array([2, 0, 1], dtype=np.uint8),
        np.array([2.0, 0.0, 1.0]),
        np.array([2, 0, 1], dtype=object),
        pa.array([2, 0, 1]),
        pa.array([2, 0, 1]).dictionary_encode(),
    ],
)
def test_integers_are_the_ids(labels):
    ids = MultiClassHead(3).prepare_labels(labels)
    assert ids.dtype == np.int64
    assert ids.tolist() == [[2], [0], [1]]


@pytest.mark.parametrize(
    "labels", [np.array([True, False]), np.array([1, 0]), np.array([1.0, 0.0]), pa.array([True, False])]
)
def test_binary_labels_become_floats(labels):
    prepared = BinaryClassHead().prepare_labels(labels)
    assert prepared.dtype == np.float32
    assert prepared.tolist() == [[1.0], [0.0]]


def test_targets_keep_their_dimension():
    assert RegressionHead().prepare_labels(np.array([1, 2])).tolist() == [[1.0], [2.0]]
    targets = RegressionHead(2).prepare_labels(np.array([[1, 2]]))
    assert targets.dtype == np.float32
    assert targets.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("head", [BinaryClassHead(), MultiClassHead(3), RegressionHead()])
@pytest.mark.parametrize("labels", [np.zeros(0), np.zeros((0, 1)), np.zeros(0, dtype=object), pa.array([])])
def test_no_rows_give_no_rows(head, labels):
    assert head.prepare_labels(labels).shape == (0, 1)


@pytest.mark.parametrize(
    ("labels", "row", "problem"),
    [
        (["cat", "maybe", "owl"], 1, "unknown label 'maybe'; expected one of 'cat', 'dog', 'fox'"),
        (["cat", ""], 1, "unknown label ''; expected one of 'cat', 'dog', 'fox'"),
        (["cat", None], 1, "unknown label None; expected one of 'cat', 'dog', 'fox'"),
        ([None, "cat"], 0, "unknown label None; expected one of 'cat', 'dog', 'fox'"),
    ],
)
@pytest.mark.parametrize("make", [pa.array, lambda labels: np.array(labels, dtype=object)])
def test_the_first_unknown_label_is_named_with_its_row(labels, row, problem, make):
    with pytest.raises(RowError) as caught:
        MultiClassHead(3, label_vocabulary=VOCABULARY).prepare_labels(make(labels))
    assert (caught.value.row, caught.value.problem) == (row, problem)


def test_a_long_vocabulary_is_not_listed_whole():
    head = MultiClassHead(500, label_vocabulary=[f"c{i}" for i in range(500)])
    with pytest.raises(RowError, match=r"one of 'c0', .*'c9' or 490 more$"):
        head.prepare_labels(pa.array(["x"]))


@pytest.mark.parametrize(
    ("head", "labels", "row", "problem"),
    [
        (MultiClassHead(3), [0, 3], 1, "label 3 is out of range; expected an integer from 0 to 2"),
        (MultiClassHead(3), [-1, 0], 0, "label -1 is out of range; expected an integer from 0 to 2"),
        (MultiClassHead(3), [0, 1.5], 1, "label 1.5 is out of range; expected an integer from 0 to 2"),
        (MultiClassHead(3), [0, np.nan], 1, "label nan is not a number"),
        (BinaryClassHead(), [0, 2], 1, "label 2 is out of range; expected 0 or 1"),
        (BinaryClassHead(), [0.0, np.nan], 1, "label nan is not a number"),
        (RegressionHead(), [0.0, np.nan], 1, "label nan is not a finite number"),
        (RegressionHead(), [np.inf], 0, "label inf is not a finite number"),
        (
            RegressionHead(),
            [1e30, -1e300],
            1,
            "label -1e+300 is beyond float32, whose largest number is 3.403e+38; scale the values",
        ),
        (RegressionHead(2), [[0.0, 1.0], [2.0, np.nan]], 1, "label nan is not a finite number"),
    ],
)
def test_a_bad_number_is_named_with_its_row(head, labels, row, problem):
    with pytest.raises(RowError) as caught:
        head.prepare_labels(np.array(labels))
    assert (caught.value.row, caught.value.problem) == (row, problem)


def test_missing_numbers_are_not_numbers():
    with pytest.raises(RowError, match="row 1 of the batch: label nan is not a number"):
        BinaryClassHead().prepare_labels(pa.array([1, None]))
    with pytest.raises(RowError, match="row 0 of the batch: the label is missing"):
        RegressionHead().prepare_labels(np.array([None, None], dtype=object))


def test_strings_without_a_vocabulary_are_refused_with_what_to_give():
    message = r"labels are strings \(the first is '<=50K'\); give label_vocabulary with the 2 classes"
    with pytest.raises(InvalidTypeError, match=message):
        BinaryClassHead().prepare_labels(pa.array(["<=50K"]))
    with pytest.raises(InvalidTypeError, match="give label_vocabulary with the 3 classes"):
        MultiClassHead(3).prepare_labels(np.array(["a"], dtype=object))
    with pytest.raises(InvalidTypeError, match="a regression needs numbers"):
        RegressionHead().prepare_labels(np.array(["a"], dtype=object))


def test_numbers_with_a_vocabulary_are_refused():
    with pytest.raises(InvalidTypeError, match="labels are int64, but the head has a label_vocabulary"):
        MultiClassHead(3, label_vocabulary=VOCABULARY).prepare_labels(np.array([0, 1]))


@pytest.mark.parametrize(
    "labels",
    [np.array(["cat", 1], dtype=object), np.array([1, "cat"], dtype=object), np.array([b"\xff"], dtype=object)],
)
def test_mixed_labels_are_refused(labels):
    with pytest.raises(InvalidTypeError, match="labels are neither all numbers nor all strings"):
        MultiClassHead(3, label_vocabulary=VOCABULARY).prepare_labels(labels)
    with pytest.raises(InvalidTypeError):
        RegressionHead().prepare_labels(labels)


def test_dates_are_refused():
    with pytest.raises(InvalidTypeError, match=r"must be numbers or strings, but they are datetime64\[D\]"):
        RegressionHead().prepare_labels(np.array(["2024-01-01"], dtype="datetime64[D]"))


@pytest.mark.parametrize(
    ("head", "labels", "message"),
    [
        (BinaryClassHead(), np.zeros((4, 2)), r"must have shape \[N\] or \[N, 1\], but got \[4, 2\]"),
        (MultiClassHead(3), np.zeros((4, 1, 1)), r"but got \[4, 1, 1\]"),
        (RegressionHead(2), np.zeros(4), r"must have shape \[N, 2\], but got \[4\]"),
        (RegressionHead(2), pa.array([1.0, 2.0]), r"must have shape \[N, 2\], but got \[2\]"),
    ],
)
def test_other_shapes_are_refused(head, labels, message):
    with pytest.raises(InvalidValueError, match=message):
        head.prepare_labels(labels)
