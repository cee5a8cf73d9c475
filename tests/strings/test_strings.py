"""Operations on strings: of arrays and in graphs the same, and those of TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.strings.tensorflow_strings import NUMBERS, PATTERNS, REFERENCE, TABLE, TEXTS
from torch_estimator import serving_input, strings
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.export.dtypes import BY_COLUMN
from torch_estimator.export.exported_model import open_session
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.receivers import lower_receiver
from torch_estimator.export.signatures import TensorInfo
from torch_estimator.feature_column import RawFeature

GOLDEN = json.loads(REFERENCE.read_text())
Transform = Callable[[dict[str, Any]], dict[str, Any]]


def in_graph(transform: Transform, inputs: Mapping[str, Any], *, for_columns: bool = True) -> dict[str, Any]:
    """Run a transform as an ONNX graph in onnxruntime."""
    columns = {
        key: RawFeature(key=key, dtype="string" if one.dtype == object else one.dtype.name, shape=one.shape[1:] or (1,))
        for key, one in inputs.items()
    }
    graph = GraphBuilder()
    receiver = serving_input.receiver(serving_input.json(columns), transform)
    received = lower_receiver(graph, receiver, for_columns=for_columns)
    for key, raw in received.raw.items():
        graph.output(
            f"out/{key}", raw.tensor, TensorInfo(dtype=BY_COLUMN[raw.dtype].name, shape=(-1, raw.width), tensor=key)
        )
    session = open_session(graph.model(producer="", version="").SerializeToString())
    names = [f"out/{key}" for key in received.raw]
    return dict(zip(received.raw, session.run(names, dict(inputs)), strict=True))


def both(transform: Transform, **inputs: Any) -> dict[str, Any]:
    """Return what a transform gives for arrays, after a check that its graph gives the same."""
    given = {key: np.array(one, object) if isinstance(one[0], str) else np.array(one) for key, one in inputs.items()}
    computed = transform(dict(given))
    for key, found in in_graph(transform, given).items():
        expected = computed[key]
        if isinstance(expected, pa.ListArray):
            padding = {"string": "", "int64": -1, "float": 0.0}[str(expected.type.value_type)]
            kept = [row[: len(want)] for row, want in zip(found.tolist(), expected.to_pylist(), strict=True)]
            assert kept == expected.to_pylist()
            assert all(set(row[len(want) :]) <= {padding} for row, want in zip(found.tolist(), kept, strict=True))
        else:
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected.reshape(len(found), -1))
    return computed


def one(function: Callable[[Any], Any], texts: Any = TEXTS) -> Any:
    """Return what a function gives for one column, the same for arrays and in a graph."""
    result = both(lambda inputs: {"y": function(inputs["x"])}, x=texts)["y"]
    return result.to_pylist() if isinstance(result, pa.Array) else result.tolist()


def test_lower_and_upper_change_ascii_letters_as_tensorflow_does() -> None:
    assert one(strings.lower) == GOLDEN["lower"]
    assert one(strings.upper) == GOLDEN["upper"]


def test_words_are_those_of_tensorflow() -> None:
    assert one(strings.split) == GOLDEN["words"]
    for sep, expected in GOLDEN["string_split"].items():
        assert one(lambda x, sep=sep: strings.split(x, list(sep))) == expected


def test_a_fixed_number_of_parts_keeps_the_empty_ones_as_tensorflow_does() -> None:
    for sep, expected in GOLDEN["fields"].items():
        assert one(lambda x, sep=sep: strings.split(x, sep, 3)) == expected


def test_words_are_cut_and_padded_to_a_fixed_number() -> None:
    expected = [[*words, "", ""][:2] for words in GOLDEN["words"]]
    assert one(lambda x: strings.split(x, n=2)) == expected


def test_texts_without_words_make_empty_lists() -> None:
    assert one(strings.split, ["", "  "]) == [[], []]
    assert one(lambda x: strings.split(x, "||", 2), ["", ""]) == [["", ""]] * 2


@pytest.mark.parametrize("sep", ["+", ".", "\\", "[a]", "^$", "\n", "é", "(?:", ["a", "ab"], list("-]^[\\")])
def test_separators_are_no_regular_expressions(sep: Any) -> None:
    text = "x+y.z\\[a]^$\nabéab(?:-]^["
    separators = [sep] if isinstance(sep, str) else sep
    for separator in sorted(separators, key=len, reverse=True):
        text = text.replace(separator, "\0")
    assert one(lambda x: strings.split(x, sep), ["x+y.z\\[a]^$\nabéab(?:-]^["]) == [[p for p in text.split("\0") if p]]


def test_join_is_that_of_tensorflow() -> None:
    columns = {"x": TEXTS, "y": TEXTS[::-1]}
    for joined in (
        lambda inputs: strings.join([inputs["x"], "x", inputs["y"]], "_"),
        lambda inputs: inputs["x"] + "_x_" + inputs["y"],
    ):
        assert both(lambda inputs, joined=joined: {"z": joined(inputs)}, **columns)["z"].tolist() == GOLDEN["join"]


def test_regular_expressions_are_those_of_tensorflow() -> None:
    for pattern in PATTERNS:
        found = one(lambda x, pattern=pattern: strings.where(strings.regex_full_match(x, pattern), 1, 0))
        assert found == GOLDEN["regex_full_match"][pattern], pattern


def test_ids_and_names_are_those_of_tensorflow() -> None:
    assert one(lambda x: strings.lookup(x, TABLE)) == GOLDEN["ids"]
    names = one(lambda x: strings.lookup(x, dict(enumerate(TABLE)), "other"), [0, 3, 4, -1])
    assert names == GOLDEN["names"]


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_numbers_are_those_of_tensorflow(dtype: Any) -> None:
    expected = [-7 if number is None else number for number in GOLDEN["to_number"][dtype]]
    expected[NUMBERS.index(" ")] = -7  # TensorFlow reads blanks as 0.0.
    np.testing.assert_array_equal(one(lambda x: strings.to_number(x, dtype, default=-7), NUMBERS), expected)


def test_tables_may_hold_any_values() -> None:
    assert one(lambda x: strings.lookup(x, {"a": 0.5, "b": 2}, 3), ["b", "c", "a"]) == [2.0, 3.0, 0.5]
    assert one(lambda x: strings.lookup(x, {"a": "b", "": "none"}), ["a", "", "c"]) == ["b", "none", ""]
    assert one(lambda x: strings.lookup(x, {5: 7, -1: 0}, 1), [5, -1, 2]) == [7, 0, 1]
    assert np.isnan(one(lambda x: strings.lookup(x, {"a": 0.5}), ["c"])[0])


def test_lists_keep_their_lengths() -> None:
    def transform(inputs: dict[str, Any]) -> dict[str, Any]:
        words = strings.split(inputs["x"])
        number = strings.regex_full_match(words, "[0-9]+")
        return {
            "words": strings.where(number, "#", strings.lower(words)),
            "ids": strings.lookup(words, ["A", "b"], default=5),
            "numbers": strings.to_number(strings.where(number, words, "0")),
            "marked": strings.join([words, "!"]),
        }

    found = {key: one.to_pylist() for key, one in both(transform, x=["A b 17", "", "c"]).items()}
    assert found == {
        "words": [["a", "b", "#"], [], ["c"]],
        "ids": [[0, 1, 5], [], [5]],
        "numbers": [[0.0, 0.0, 17.0], [], [0.0]],
        "marked": [["A!", "b!", "17!"], [], ["c!"]],
    }


def test_operators_compute_what_numpys_compute() -> None:
    def transform(inputs: dict[str, Any]) -> dict[str, Any]:
        x, n, s = inputs["x"], inputs["n"], inputs["s"]
        middle = (x > 1) & ~(n == 3) | (s != "b")
        return {
            "sum": (x + 1 - 2 * x) / (3 - x),
            "count": 3 * n - n * n + 1,
            "chosen": strings.where(middle, s, "-" + s + "-"),
            "order": strings.where((x >= 2) | (n <= 1), x, strings.to_number(n)),
            "whole": strings.to_number(x / 2, "int64"),
            "below": strings.where(n < 2, 1.0, 0.5),
        }

    x = np.array([1, 2, 2.5], np.float32)
    found = both(transform, x=x, n=[1, 2, 3], s=["a", "b", "b"])
    assert found["chosen"].tolist() == ["a", "b", "-b-"]
    assert found["whole"].tolist() == [0, 1, 1]


def test_parts_of_a_fixed_number() -> None:
    def transform(inputs: dict[str, Any]) -> dict[str, Any]:
        parts = strings.split(inputs["x"], ":", 3)
        minutes = strings.to_number(parts[:, 0]) * 60 + strings.to_number(parts[:, 1])
        return {"minutes": minutes, "last": parts[:, -1], "two": parts[:, 1:]}

    found = both(transform, x=["1:30:x", "0:7"])
    assert {key: one.tolist() for key, one in found.items()} == {
        "minutes": [90.0, 7.0],
        "last": ["x", ""],
        "two": [["30", "x"], ["7", ""]],
    }


def test_arrays_may_come_in_any_form() -> None:
    for given in (["A", "b"], np.array(["A", "b"]), pa.array(["A", "b"]), pa.array(["A", "b"]).dictionary_encode()):
        assert strings.lower(given).tolist() == ["a", "b"]
    assert strings.lower(np.array([["A", "B"], ["C", None]], object)).tolist() == [["a", "b"], ["c", ""]]
    for lists in (
        [["A"], []],
        pa.array([["x"], ["A"], []])[1:],
        np.array([np.array(["A"]), np.array([], object)], object),
    ):
        assert strings.lower(lists).to_pylist() == [["a"], []]
    assert strings.lookup(np.array([1, 2], np.int32), {1: "a"}).tolist() == ["a", ""]
    assert strings.to_number(np.array([1, 2], np.int32)).dtype == np.float32


@pytest.mark.parametrize(
    ("transform", "error", "problem"),
    [
        (
            lambda x, n: x.strip(),
            InvalidTypeError,
            r"cannot compute strip of a request's columns; there are te\.strings",
        ),
        (lambda x, n: np.char.lower(x), InvalidTypeError, r"cannot compute numpy\.lower"),
        (
            lambda x, n: np.log(n),
            InvalidTypeError,
            "^log takes float32, but n is int64; convert it with",
        ),
        (
            lambda x, n: -x,
            InvalidTypeError,
            r"^negative takes float32 or int64, but x is string; convert",
        ),
        (lambda x, n: abs(n == 1), InvalidTypeError, r"^absolute takes float32 or int64, but ==\(n\) is bool\.$"),
        (
            lambda x, n: np.sin(n),
            InvalidTypeError,
            r"numpy\.sin .* transform= of te\.serving_input\.json and raw_",
        ),
        (
            lambda x, n: n @ n,
            InvalidTypeError,
            "cannot compute @, .* transform= of te.serving_input.json and raw",
        ),
        (lambda x, n: divmod(n, 2), InvalidTypeError, "cannot compute .*divmod"),
        (lambda x, n: np.maximum.reduce(n), InvalidTypeError, r"cannot compute numpy\.maximum"),
        (
            lambda x, n: n**-1,
            InvalidValueError,
            r"exponent of integers must be a constant of at least 0, but got n \*\* -1",
        ),
        (
            lambda x, n: 2**n,
            InvalidValueError,
            r"exponent of integers must be a constant of at least 0, but got 2 \*\* n",
        ),
        (lambda x, n: n**0.5, InvalidTypeError, r"^\*\* must be int64, but got 0\.5"),
        (
            lambda x, n: n % 2.5,
            InvalidTypeError,
            r"^% must be int64, but got 2\.5; convert the integers with te\.strings\.to_number",
        ),
        (lambda x, n: np.round(n, -1), InvalidTypeError, r"^/ takes float32, but n / 10\.0 has int64"),
        (lambda x, n: np.clip(n, 0.5, 1), InvalidTypeError, r"^maximum must be int64, but got 0\.5"),
        (lambda x, n: x % 7, InvalidTypeError, "^% takes float32 or int64, but x % 7 has string"),
        (lambda x, n: np.where(x == "a", 1, 0), InvalidTypeError, r"cannot compute numpy\.where"),
        (lambda x, n: np.asarray(x), InvalidTypeError, r"cannot compute numpy\.asarray"),
        (lambda x, n: torch.log1p(n), InvalidTypeError, r"cannot compute torch\.log1p"),
        (
            lambda x, n: x if x == "a" else n,
            InvalidTypeError,
            r"==\(x\) has no value before a request comes",
        ),
        (lambda x, n: f"{x}!", InvalidTypeError, r"x has no value before .* x \+ y in place of f-strings"),
        (lambda x, n: list(x), InvalidTypeError, "x has no value before"),
        (lambda x, n: float(n), InvalidTypeError, "n has no value before"),
        (lambda x, n: x - "a", InvalidTypeError, "^- takes float32 or int64, but x - 'a' has string"),
        (lambda x, n: n / 2, InvalidTypeError, "^/ takes float32, but n / 2 has int64"),
        (lambda x, n: n + 0.5, InvalidTypeError, r"^\+ must be int64, but got 0\.5"),
        (lambda x, n: n + x, InvalidTypeError, r"^\+ takes int64 here, but x is string; te\.strings has to_number"),
        (lambda x, n: ~n, InvalidTypeError, "^~ takes bool here, but n is int64"),
        (lambda x, n: strings.lower(n), InvalidTypeError, "^lower takes string here, but n is int64"),
        (lambda x, n: strings.where(n, x, "b"), InvalidTypeError, "^where takes bool here, but n is int64"),
        (lambda x, n: strings.where(n == 1, x, 0), InvalidTypeError, "^where must be string, but got 0"),
        (
            lambda x, n: strings.join([x, ["a"]]),
            InvalidTypeError,
            r"^join of x takes expressions and constants, but got",
        ),
        (lambda x, n: x[:, 1], InvalidValueError, r"x has the shape \(1,\) per row and got the index"),
        (lambda x, n: strings.split(x)[:, 0], InvalidValueError, r"split\(x\) has the shape \(-1,\) per row and got"),
        (lambda x, n: strings.split(x, n=2)[0], InvalidValueError, r"the index 0, but an export can only compute x\["),
        (
            lambda x, n: strings.split(strings.split(x)),
            InvalidValueError,
            r"takes one string per row, but split\(x\) has",
        ),
        (
            lambda x, n: strings.split(x) + strings.split(x, ","),
            InvalidValueError,
            r"^\+ takes columns of one shape, but",
        ),
        (lambda x, n: x + strings.split(x, n=2), InvalidValueError, r"but x has \(1,\) per row and split\(x\) \(2,\)"),
        (lambda x, n: n == 1, InvalidValueError, "'y' is a condition; give te.strings.where"),
        (
            lambda x, n: 1.0,
            InvalidTypeError,
            r"must return expressions by name, but 'y' is 1\.0; make it from an input",
        ),
    ],
)
def test_what_an_export_cannot_compute_is_named(transform: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        serving_input.receiver({"x": "string", "n": "int64"}, lambda inputs: {"y": transform(inputs["x"], inputs["n"])})


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (lambda: strings.lower([1, 2]), InvalidTypeError, r"^te\.strings\.lower takes string, but got int64"),
        (lambda: strings.lower("a"), InvalidTypeError, r"^te\.strings\.lower takes a column, but got 'a'"),
        (lambda: strings.split([["a", "b"]]), InvalidValueError, "takes one string per row, but got"),
        (lambda: strings.split(["a"], ""), InvalidValueError, "sep must not be empty, but got ''"),
        (lambda: strings.split(["a"], [1]), InvalidTypeError, r"sep must be a string, .* but got \[1\]"),
        (lambda: strings.split(["a"], n=0), InvalidValueError, "n must be a positive integer, but got 0"),
        (lambda: strings.regex_full_match(["a"], "("), InvalidValueError, r"a regular expression of RE2, but got '\('"),
        (lambda: strings.regex_full_match(["a"], "(?=a)"), InvalidValueError, "must be a regular expression of RE2"),
        (
            lambda: strings.join([["a"], ["b", "c"]]),
            InvalidValueError,
            r"^te\.strings\.join takes columns of one shape",
        ),
        (lambda: strings.lookup(["a"], "abc"), InvalidTypeError, "table must be a dict or a list, but got 'abc'"),
        (lambda: strings.lookup(["a"], []), InvalidValueError, "table must not be empty"),
        (lambda: strings.lookup(["a"], ["a", "a"]), InvalidValueError, "table has 'a' more than once"),
        (lambda: strings.lookup(["a"], {"a": 1, 2: 3}), InvalidTypeError, "keys of table must be int64, but got 'a'"),
        (
            lambda: strings.lookup(["a"], {1.5: 1}),
            InvalidTypeError,
            r"keys of table must be string or int64, but got 1\.5",
        ),
        (lambda: strings.lookup(["a"], {"a": 1}, "b"), InvalidTypeError, "default must be int64, but got 'b'"),
        (lambda: strings.lookup(["a"], {1: 1}), InvalidTypeError, r"te\.strings\.lookup takes int64, but got string"),
        (lambda: strings.to_number(["1", "x"]), InvalidValueError, "got 'x', which is no number, and has no default"),
        (lambda: strings.to_number([str(2**63)], "int64"), InvalidValueError, "got a number that int64 does not hold"),
        (lambda: strings.to_number(["1"], "int8"), InvalidValueError, 'dtype must be "float32" or "int64", but got'),
        (lambda: strings.to_number(["1"], "int64", 0.5), InvalidTypeError, r"default must be int64, but got 0\.5"),
    ],
)
def test_bad_arguments(call: Callable[[], Any], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        call()
