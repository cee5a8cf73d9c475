"""Write what TensorFlow's `SequenceFeatures` makes of sequence columns to `tensorflow_sequences.json`.

It needs an environment of its own: ``pip install tensorflow-cpu==2.15.1``. From the repository's root::

    python -m tests.feature_column.tensorflow_sequences
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).with_suffix(".json")
VOCABULARY = ["a", "b", "c"]

# Lists by raw column. No list ends with a missing value, which TensorFlow would count in sparse tensors only.
RAW: dict[str, list[list[Any]]] = {
    "words": [["b", "z", "a"], ["c"], [], ["a", "b"]],
    "ids": [[0, 3, 9], [1], [], [-4, 2]],
    "codes": [[5, 123456, 7], [-3], [], [0, 5]],
    "numbers": [[1.5, -2.0, 3.0], [4.0], [], [5.0, 6.0]],
    "pairs": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0], [], [9.0, 10.0, 11.0, 12.0]],
}
# TensorFlow takes rows of one length, whose last values may be missing, as dense tensors of ids only.
DENSE: dict[str, list[list[Any]]] = {
    "words": [["b", "", "a"], ["c", "", ""], ["", "", ""], ["", "b", ""]],
    "ids": [[0, -1, 3], [2, -1, -1], [-1, -1, -1], [-1, 1, -1]],
}


def columns(fc: Any, int64: Any, initializer: Any, vocabulary_file: str, **hashed: Any) -> dict[str, Any]:
    """Return sequence columns by name of the case.

    Args:
        fc: The module of feature columns, TensorFlow's or ours.
        int64: The dtype.
        initializer: Initializer of embeddings: row i has i + 1 everywhere.
        vocabulary_file: File with `VOCABULARY`, a word in each line.
        hashed: Arguments of columns that hash.
    """
    name = "sequence_categorical_column_with_"
    identity, bucket, words, file = (
        getattr(fc, name + kind) for kind in ("identity", "hash_bucket", "vocabulary_list", "vocabulary_file")
    )
    return {
        "words_indicator": fc.indicator_column(words("words", VOCABULARY)),
        "words_oov": fc.indicator_column(words("words", VOCABULARY, num_oov_buckets=2, **hashed)),
        "words_default": fc.indicator_column(words("words", VOCABULARY, default_value=1)),
        "words_file": fc.embedding_column(file("words", vocabulary_file), 2, initializer=initializer),
        "words_hashed": fc.embedding_column(bucket("words", 50, **hashed), 1, initializer=initializer),
        "codes_hashed": fc.embedding_column(bucket("codes", 50, int64, **hashed), 1, initializer=initializer),
        "ids_embedding": fc.embedding_column(identity("ids", 4, 3), 3, initializer=initializer, max_norm=2.0),
        "numbers": fc.sequence_numeric_column("numbers", default_value=-1.0, normalizer_fn=lambda one: one / 2.0),
        "pairs": fc.sequence_numeric_column("pairs", shape=(2,)),
    }


CASES = {
    **{name: (name,) for name in ("words_indicator", "words_oov", "words_default", "words_file", "words_hashed")},
    **{name: (name,) for name in ("codes_hashed", "ids_embedding", "numbers", "pairs")},
    "together": ("words_indicator", "ids_embedding", "numbers", "pairs"),
}
DENSE_CASES = ("words_indicator", "words_file", "words_hashed", "ids_embedding")


def main() -> None:
    import tempfile

    import tensorflow as tf

    def initializer(shape: Any, dtype: Any, **_: Any) -> Any:
        return tf.cast(tf.broadcast_to(tf.range(1, shape[0] + 1)[:, None], shape), dtype)

    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
        file.write("\n".join(VOCABULARY) + "\n")
    made = columns(tf.feature_column, tf.int64, initializer, file.name)
    sparse = {key: tf.ragged.constant(lists).to_sparse() for key, lists in RAW.items()}
    found: dict[str, Any] = {"tensorflow": tf.__version__, "lists": {}, "dense": {}}
    for kind, cases, raw in (
        ("lists", CASES, sparse),
        ("dense", {name: (name,) for name in DENSE_CASES}, {key: tf.constant(one) for key, one in DENSE.items()}),
    ):
        for name, members in cases.items():
            layer = tf.keras.experimental.SequenceFeatures([made[one] for one in members])
            inputs, lengths = layer(dict(raw))
            found[kind][name] = [inputs.numpy().astype(float).round(6).tolist(), lengths.numpy().tolist()]
    REFERENCE.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
