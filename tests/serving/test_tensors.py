from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.served import INPUTS
from torch_estimator.export.dtypes import DTYPES
from torch_estimator.export.signatures import PREDICT, Signature
from torch_estimator.serving.tensors import (
    InputTensor,
    read_columns,
    split_bytes,
    texts_of,
)
from torch_estimator.web.errors import RequestError

SIGNATURE = Signature(method_name=PREDICT, inputs=INPUTS, outputs={})

MANDATORY = [
    InputTensor("text", "BYTES", [1], ["a"]),
    InputTensor("number", "FP32", [1], [0.1]),
    InputTensor("precise", "FP64", [1], [0.1]),
    InputTensor("small", "INT32", [1], [1]),
    InputTensor("large", "INT64", [1], [1]),
    InputTensor("flag", "BOOL", [1], [True]),
    InputTensor("pair", "FP32", [1, 2], [1, 2]),
]

TYPES = {"FP32": np.float32, "FP64": np.float64, "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_}


def read(*tensors: InputTensor) -> dict[str, Any]:
    """Read inputs together with those that are missing."""
    names = [tensor.name for tensor in tensors]
    columns, rows = read_columns([*tensors, *(one for one in MANDATORY if one.name not in names)], SIGNATURE)
    assert rows == 1
    return dict(columns)


def problem(*tensors: InputTensor) -> str:
    with pytest.raises(RequestError) as caught:
        read(*tensors)
    assert caught.value.status == 400
    return caught.value.message


def encoded(texts: list[str]) -> bytes:
    return DTYPES["DT_STRING"].encode(np.array(texts, object))


@given(st.lists(st.text()))
def test_texts_survive_the_binary_form(texts: list[str]) -> None:
    assert texts_of(split_bytes(encoded(texts), len(texts), "text"), "text") == texts


@given(st.data())
def test_numbers_survive_the_binary_form(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["number", "precise", "small", "large", "flag"]))
    datatype = INPUTS[name].type.datatype
    kind = np.dtype(TYPES[datatype])
    raw = data.draw(st.binary(min_size=kind.itemsize, max_size=kind.itemsize))
    if datatype == "BOOL":
        raw = bytes([raw[0] % 2])
    column = read(InputTensor(name, datatype, [1], raw))[name]
    assert column.dtype == kind
    assert INPUTS[name].type.encode(column) == raw


@given(st.binary(max_size=64), st.integers(0, 2**63))
def test_any_bytes_are_texts_or_an_error(data: bytes, count: int) -> None:
    try:
        texts = texts_of(split_bytes(data, count, "text"), "text")
    except RequestError as error:
        assert error.status == 400
    else:
        assert len(texts) == count
        assert encoded(texts) == data


dimensions = st.one_of(
    st.integers(-3, 3), st.integers(), st.sampled_from([2**31, 2**62, 2**63, 2**64, 10**30, 1.0, True])
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()), lambda part: st.lists(part, max_size=4)
)


@given(
    st.lists(
        st.builds(
            InputTensor,
            st.sampled_from([*INPUTS, "unknown", ""]),
            st.sampled_from([*(one.datatype for one in DTYPES.values()), "FP16", "UINT8", ""]),
            st.lists(dimensions, max_size=4),
            st.one_of(st.binary(max_size=64), st.lists(anything, max_size=4)),
        ),
        max_size=4,
    )
)
def test_any_tensors_are_columns_or_an_error(tensors: list[InputTensor]) -> None:
    try:
        columns, rows = read_columns(tensors, SIGNATURE)
    except RequestError as error:
        assert error.status == 400
    else:
        assert all(len(column) == rows for column in columns.values())


@pytest.mark.parametrize("shape", [[10**18], [2**62, 1], [3_000_000_000]])
@pytest.mark.parametrize("data", [b"", b"\x00" * 64, [], [1.0]])
def test_no_memory_is_taken_for_what_a_shape_claims(shape: list[int], data: Any) -> None:
    tracemalloc.start()
    try:
        for name, datatype in (("number", "FP32"), ("text", "BYTES"), ("tags", "BYTES"), ("ids", "INT64")):
            problem(InputTensor(name, datatype, shape, data))
        problem(InputTensor("ids", "INT64", [3_000_000_000, 0], b""))
        problem(InputTensor("tags", "BYTES", [3_000_000_000, 0], []))
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_empty_lists_have_no_memory_for_rows_without_elements() -> None:
    with pytest.raises(RequestError, match="3000000000 rows, but no element"):
        read_columns([InputTensor("ids", "INT64", [3_000_000_000, 0], b"")], SIGNATURE)


def test_rows_may_be_empty_lists() -> None:
    tensors = [InputTensor("tags", "BYTES", [2, 0], b"")]
    for one in MANDATORY:
        tensors.append(InputTensor(one.name, one.datatype, [2, *one.shape[1:]], [*one.data, *one.data]))
    columns, rows = read_columns(tensors, SIGNATURE)
    assert rows == 2
    assert columns["tags"] == [[], []]


def test_data_in_lists_may_be_nested_or_flat() -> None:
    assert read(InputTensor("pair", "FP32", [1, 2], [1.5, 2.5]))["pair"] == [[1.5, 2.5]]
    assert read(InputTensor("pair", "FP32", [1, 2], [[1.5, 2.5]]))["pair"] == [[1.5, 2.5]]
    assert read(InputTensor("ids", "INT64", [1, 3], [4, 5, 6]))["ids"] == [[4, 5, 6]]


def test_single_values_may_be_given_in_a_dimension_of_their_own() -> None:
    assert read(InputTensor("number", "FP32", [1, 1], [[2]]))["number"] == [2]
    assert read(InputTensor("precise", "FP64", [1], struct.pack("<d", 2)))["precise"].tolist() == [2]
    assert read(InputTensor("precise", "FP64", [1, 1], struct.pack("<d", 2)))["precise"].tolist() == [2]


def test_short_lists_of_numbers_can_be_joined_with_those_of_other_requests() -> None:
    assert read(InputTensor("ids", "INT64", [1, 2], struct.pack("<2q", 3, 4)))["ids"] == [[3, 4]]


def test_omitted_inputs_have_their_defaults() -> None:
    columns = read()
    assert columns["tags"] == ["none"]
    assert columns["ids"] == [[7]]
    assert columns["bonus"] == [0.5]


def test_errors_name_the_input_and_what_is_wrong() -> None:
    assert problem(InputTensor("x", "FP32", [1], [1])).startswith("Unexpected tensor name: 'x'; the inputs are text,")
    assert problem(InputTensor("number", "FP64", [1], [1])) == "Input number has the datatype FP32, not 'FP64'."
    assert problem(MANDATORY[0], MANDATORY[0]) == "Input text is given twice."
    shape = problem(InputTensor("pair", "FP32", [1, 3], [1, 2, 3]))
    assert shape == "Input pair must have the shape [rows, 2], but has [1, 3]."
    assert problem(InputTensor("ids", "INT64", [1, -1], [])).startswith("Input ids must have the shape [rows, any]")
    assert problem(InputTensor("number", "FP32", [1], [])) == "Input number has 0 elements, but its shape [1] has 1."
    few = problem(InputTensor("number", "FP32", [1], b"abc"))
    assert few == "Input number has 3 bytes, but 1 elements of FP32 have 4."
    assert problem(InputTensor("flag", "BOOL", [1], b"\x02")) == "Input flag has the byte 2; a BOOL is 0 or 1."
    assert (
        problem(InputTensor("text", "BYTES", [1], b"\x05\0\0\0a")) == "Input text ends within element 0, after 5 bytes."
    )
    assert problem(InputTensor("text", "BYTES", [1], b"\x01\0\0\0ab")) == "Input text has 1 bytes after its 1 elements."
    assert "not UTF-8" in problem(InputTensor("text", "BYTES", [1], b"\x01\0\0\0\xff"))
    assert problem(InputTensor("text", "BYTES", [0], [])).startswith("Input number has 1 rows, but")
    with pytest.raises(RequestError, match="Input text was missing"):
        read_columns(MANDATORY[1:], SIGNATURE)
    with pytest.raises(RequestError, match="has no instance"):
        read_columns([], SIGNATURE)
