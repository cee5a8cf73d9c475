"""Write what TensorFlow's operations on strings give for odd texts to `tensorflow_strings.json`.

It needs an environment of its own: ``pip install tensorflow-cpu==2.15.1``. From the repository's root::

    python -m tests.strings.tensorflow_strings
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).with_suffix(".json")

TEXTS = [
    "",
    " ",
    "a",
    "Red GREEN  blue ",
    "\ta\nb\x0bc\x0cd\re",
    "a,b,,c",
    ",a,",
    ",,",
    "a, b;c",
    "ÀÉ Straße İ",
    "日本,語",
    "a\u00a0b\u3000c",
    "x::y:::z",
    "1.5",
    "😀 😀",
]
NUMBERS = [
    "1",
    " 2 ",
    "\t-3",
    "1.5",
    ".5",
    "1.",
    "1e3",
    "-1E-2",
    "nan",
    "inf",
    "-inf",
    "",
    " ",
    "a",
    "1a",
    "1_0",
    "1 2",
    "٣",
]
PATTERNS = ["", ".*", "[a-z]+", r"\w*", "a|a.*", "(?i)red.*", r"\p{L}+.*", "[^,]*", "(?s).*", "a.b.*", r"\d+\.\d"]
TABLE = ["a", "1.5", "日本,語", " "]


def number(text: str, dtype: Any) -> float | None:
    """Return what TensorFlow reads, or None where it refuses the text."""
    import tensorflow as tf

    try:
        return tf.strings.to_number(text, dtype).numpy().item()
    except tf.errors.InvalidArgumentError:
        return None


def texts(tensor: Any) -> Any:
    return [[one.decode() for one in row] if isinstance(row, list) else row.decode() for row in tensor]


def main() -> None:
    import tensorflow as tf

    def lookup(keys: Any, values: Any, default: Any, asked: Any) -> Any:
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default)
        return table.lookup(tf.constant(asked, table.key_dtype)).numpy().tolist()

    def words(split: Callable[..., Any], *arguments: Any) -> Any:
        return [texts(split([one], *arguments).values.numpy().tolist()) for one in TEXTS]

    found = {
        "lower": texts(tf.strings.lower(TEXTS).numpy().tolist()),
        "upper": texts(tf.strings.upper(TEXTS).numpy().tolist()),
        "join": texts(tf.strings.join([TEXTS, "x", TEXTS[::-1]], "_").numpy().tolist()),
        "words": words(tf.strings.split),
        "string_split": {sep: words(tf.compat.v1.string_split, sep) for sep in (" ", ",", ":", ", ;")},
        "fields": {
            sep: texts(tf.strings.split(TEXTS, sep).to_tensor("", [None, 4])[:, :3].numpy().tolist())
            for sep in (",", "::", " ")
        },
        "regex_full_match": {one: tf.strings.regex_full_match(TEXTS, one).numpy().tolist() for one in PATTERNS},
        "to_number": {dtype.name: [number(one, dtype) for one in NUMBERS] for dtype in (tf.float32, tf.int64)},
        "ids": lookup(TABLE, tf.range(len(TABLE), dtype=tf.int64), tf.constant(-1, tf.int64), TEXTS),
        "names": texts(lookup(tf.range(len(TABLE), dtype=tf.int64), TABLE, "other", [0, 3, 4, -1])),
    }
    REFERENCE.write_text(json.dumps({"tensorflow": tf.__version__, **found}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
