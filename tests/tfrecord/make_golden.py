"""Makes the files in `golden/` with TensorFlow: run it in an environment with tensorflow==2.15.1.

    python tests/tfrecord/make_golden.py

`cases.json` holds serialized tf.Examples (base64), each with what tf.io.parse_single_example returns, or null
where it raises an error. `plain`, `gzip` and `zlib` are the same Examples in TFRecord files, those with a result only.
`sequences.json` holds SequenceExamples, each with what tf.io.parse_sequence_example returns.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

FOLDER = Path(__file__).with_name("golden")

SPEC = {
    "number": tf.io.FixedLenFeature([], tf.float32, 1.5),
    "matrix": tf.io.FixedLenFeature([2, 2], tf.float32, [[1.0, 2.0], [3.0, 4.0]]),
    "count": tf.io.FixedLenFeature([1], tf.int64, -7),
    "word": tf.io.FixedLenFeature([], tf.string, "none"),
    "needed": tf.io.FixedLenFeature([], tf.int64),
    "words": tf.io.VarLenFeature(tf.string),
    "ids": tf.io.VarLenFeature(tf.int64),
    "weights": tf.io.VarLenFeature(tf.float32),
    "ragged": tf.io.RaggedFeature(tf.int64, value_key="pieces"),
    "sparse": tf.io.SparseFeature("at", "value", tf.float32, 5),
    "pairs": tf.io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
}

CONTEXT_SPEC = {"id": tf.io.FixedLenFeature([], tf.int64), "tags": tf.io.VarLenFeature(tf.string)}
SEQUENCE_SPEC = {
    "clicks": tf.io.FixedLenSequenceFeature([], tf.int64),
    "points": tf.io.FixedLenSequenceFeature([2, 2], tf.float32, allow_missing=True),
    "names": tf.io.FixedLenSequenceFeature([2], tf.string, allow_missing=True),
    "words": tf.io.VarLenFeature(tf.string),
    "weights": tf.io.RaggedFeature(tf.float32, value_key="parts"),
}


def floats(*values: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def integers(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def texts(*values: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def example(**features: tf.train.Feature) -> bytes:
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def by_hand(name: bytes, feature: bytes) -> bytes:
    """An Example with `needed`, and with a feature whose message is given in bytes of fewer than 100."""
    entry = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    return example(needed=integers(1)) + b"\x0a" + bytes([len(features)]) + features


def examples() -> list[bytes]:
    draw = np.random.default_rng(1)
    one = integers(1)
    full = {
        "number": floats(0.25),
        "matrix": floats(5, 6, 7, 8),
        "count": integers(2**62),
        "word": texts("käse".encode()),
        "needed": integers(-(2**63)),
        "words": texts(b"a", b"", b"bc"),
        "ids": integers(0, 127, 128, -1, 2**63 - 1),
        "weights": floats(1e-45, -0.0, 3.4e38),
        "pieces": integers(3, 1),
        "at": integers(4, 0),
        "value": floats(2.5, 1.0),
        "unknown": texts(b"x" * 300),
        "pairs": floats(1, 2, 3, 4),
    }
    many = [
        {
            "needed": integers(int(draw.integers(-9, 9))),
            "ids": integers(*draw.integers(-(2**40), 2**40, draw.integers(0, 9)).tolist()),
            "weights": floats(*draw.normal(size=draw.integers(0, 9)).tolist()),
            "words": texts(*(b"w" * size for size in draw.integers(0, 200, draw.integers(0, 5)).tolist())),
        }
        for _ in range(20)
    ]
    return [
        example(**full),
        example(needed=one),
        b"",
        example(number=floats(1)),
        *(example(**row) for row in many),
        # No values, and no list at all.
        example(needed=one, words=texts(), ids=integers(), weights=floats()),
        example(needed=one, number=floats()),
        example(needed=one, number=tf.train.Feature(), ids=tf.train.Feature()),
        # Other types and numbers of values.
        example(needed=floats(1)),
        example(needed=integers(1, 2)),
        example(needed=one, ids=floats(1)),
        example(needed=one, word=integers(1)),
        example(needed=one, matrix=floats(1, 2, 3)),
        example(needed=one, pairs=floats(1, 2, 3)),
        example(needed=one, at=integers(5), value=floats(1)),
        example(needed=one, at=integers(1, 2), value=floats(1)),
        # The last entry with a key counts.
        example(needed=one, ids=integers(1)) + example(needed=integers(2), ids=integers(3, 4)),
        # Values that are not packed, fields that tf.Example does not have, and damage.
        by_hand(b"weights", b"\x12\x0a\x0d\x00\x00\x80\x3f\x0d\x00\x00\x00\x40"),
        by_hand(b"ids", b"\x1a\x05\x08\x05\x08\x96\x01"),
        example(needed=one) + b"\x12\x02ab",
        example(needed=one) + b"\x18\x05",
        by_hand(b"ids", b"\x1a\x03\x0a\x01\x96"),
        by_hand(b"weights", b"\x12\x05\x0a\x03\x00\x00\x80"),
        example(**full)[:-3],
        b"not an example at all",
    ]


def sequence(context: dict[str, tf.train.Feature], **lists: list[tf.train.Feature]) -> bytes:
    steps = {name: tf.train.FeatureList(feature=one) for name, one in lists.items()}
    return tf.train.SequenceExample(
        context=tf.train.Features(feature=context), feature_lists=tf.train.FeatureLists(feature_list=steps)
    ).SerializeToString()


def sequences() -> list[bytes]:
    draw = np.random.default_rng(2)
    one = {"id": integers(1)}
    clicks = [integers(3), integers(-4)]
    nothing = tf.train.Feature()
    lists = {
        "points": [floats(1, 2, 3, 4), floats(5, 6, 7, 8), floats(9, 10, 11, 12)],
        "names": [texts("käse".encode(), b"")],
        "words": [texts(b"a", b"b"), texts(), texts(b"c")],
        "parts": [floats(0.5), floats(1.5, 2.5), floats()],
        "unknown": [texts(b"x" * 300)] * 3,
    }
    full = sequence({"id": integers(7), "tags": texts(b"x", b"y")}, clicks=clicks, **lists)
    many = [
        sequence(
            {"id": integers(row), "tags": texts(*[b"t"] * int(draw.integers(0, 3)))},
            clicks=[integers(int(one)) for one in draw.integers(-(2**40), 2**40, draw.integers(0, 9))],
            points=[floats(*draw.normal(size=4)) for _ in range(draw.integers(0, 4))],
            names=[texts(b"n" * int(size), b"m") for size in draw.integers(0, 200, draw.integers(0, 4))],
            words=[texts(*[b"w"] * int(size)) for size in draw.integers(0, 4, draw.integers(0, 4))],
            parts=[floats(*draw.normal(size=size)) for size in draw.integers(0, 4, draw.integers(0, 4))],
        )
        for row in range(10)
    ]
    return [
        full,
        *many,
        sequence(one, clicks=clicks),
        sequence(one, clicks=[]),
        # Lists, features and steps that are missing or of another type or size.
        b"",
        sequence({}, clicks=clicks),
        sequence(one),
        sequence(one, words=[]),
        sequence(one, clicks=[integers(1), nothing]),
        sequence(one, clicks=[integers(1), integers()]),
        sequence(one, clicks=[integers(1, 2)]),
        sequence(one, clicks=[floats(1)]),
        sequence(one, clicks=clicks, points=[floats(1, 2, 3, 4), floats(1, 2, 3)]),
        sequence(one, clicks=clicks, points=[nothing]),
        sequence(one, clicks=clicks, words=[nothing, texts(b"a")], parts=[nothing, floats(1)]),
        sequence(one, clicks=clicks, words=[integers(1)]),
        sequence(one, clicks=clicks, words=[texts(b"a"), floats()]),
        sequence(one, clicks=clicks, parts=[floats(1), texts(b"a")]),
        sequence({"id": floats(1)}, clicks=clicks),
        # The last entry with a key counts.
        sequence(one, clicks=clicks) + sequence({"id": integers(2)}, clicks=[integers(5)]),
        # A list of floats that is not packed, a field that a SequenceExample does not have, and damage.
        sequence(one, clicks=clicks) + b"\x12\x14\x0a\x12\x0a\x05parts\x12\x09\x0a\x07\x12\x05\x0d\x00\x00\x80\x3f",
        sequence(one, clicks=clicks) + b"\x1a\x02ab",
        full[:-3],
        b"not an example at all",
    ]


def parsed_sequence(serialized: bytes) -> dict[str, Any] | None:
    try:
        context, lists, lengths = tf.io.parse_sequence_example([serialized], CONTEXT_SPEC, SEQUENCE_SPEC)
    except (tf.errors.InvalidArgumentError, ValueError):
        return None
    words = lists["words"]
    lists["words"] = [[] for _ in range(words.dense_shape[1])]
    for (_, step, _), value in zip(words.indices.numpy(), words.values.numpy(), strict=True):
        lists["words"][step].append(value)
    for name in ("clicks", "points", "names"):
        assert int(lengths[name][0]) == lists[name].shape[1]
        lists[name] = lists[name][0].numpy().tolist()
    lists["weights"] = lists["weights"].to_list()[0]
    return {"id": int(context["id"][0]), "tags": context["tags"].values.numpy().tolist(), **lists}


def in_text(value: Any) -> Any:
    """Bytes become strings."""
    if isinstance(value, list):
        return [in_text(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def parsed(serialized: bytes) -> dict[str, Any] | None:
    try:
        found = tf.io.parse_single_example(serialized, SPEC)
    except (tf.errors.InvalidArgumentError, ValueError):
        return None
    result = {}
    for name, value in found.items():
        if isinstance(value, tf.SparseTensor):
            if name == "sparse":
                # An index that is too large is an error only where the tensor is used.
                try:
                    value = tf.sparse.to_dense(tf.sparse.reorder(value))
                except tf.errors.InvalidArgumentError:
                    return None
            else:
                value = value.values
        is_text = value.dtype == tf.string
        values = np.asarray(value.numpy(), dtype=object if is_text else None).reshape(-1).tolist()
        result[name] = [one.decode() if is_text else one for one in values]
    return result


def write_cases(name: str, cases: list[dict[str, Any]]) -> None:
    lines = [json.dumps({**case, "example": base64.b64encode(case["example"]).decode()}) for case in cases]
    (FOLDER / name).write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    cases = [{"example": one, "parsed": parsed(one)} for one in examples()]
    write_cases("cases.json", cases)
    for name, compression in (("plain", ""), ("gzip", "GZIP"), ("zlib", "ZLIB")):
        with tf.io.TFRecordWriter(str(FOLDER / name), compression) as writer:
            for case in cases:
                if case["parsed"] is not None:
                    writer.write(case["example"])
    rows = [{"example": one, "parsed": parsed_sequence(one)} for one in sequences()]
    for row in rows:
        if row["parsed"] is not None:
            row["parsed"] = {name: in_text(value) for name, value in row["parsed"].items()}
    write_cases("sequences.json", rows)


if __name__ == "__main__":
    main()
