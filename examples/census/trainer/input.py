"""Where the rows come from: census files for training and evaluation, requests for serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch_estimator as te

from . import columns

SHUFFLE_BATCHES = 250


def read_csv(
    files: Sequence[str],
    *,
    batch_size: int,
    num_epochs: int | None = 1,
    shuffle_seed: int | None = None,
    input_context: te.InputContext | None = None,
) -> te.data.Dataset:
    """Batches of census rows with their labels.

    Args:
        files: Paths, globs or URLs of CSV files without a header, columns as in `columns.CSV_COLUMNS`.
        batch_size: Rows in a batch.
        num_epochs: How often to go through the files; None goes on for ever.
        shuffle_seed: The order's seed; None keeps the order of the files.
        input_context: Which part of the rows to read where several processes train; None for all.
    """
    used = [name for name in columns.CSV_COLUMNS if name not in columns.UNUSED]
    rows = te.data.Dataset.from_csv(files, column_names=columns.CSV_COLUMNS, select_columns=used, label=columns.LABEL)
    if input_context is not None:
        rows = rows.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if shuffle_seed is not None:
        rows = rows.shuffle(SHUFFLE_BATCHES * batch_size, seed=shuffle_seed)
    return rows.repeat(num_epochs).batch(batch_size)


def json_serving_input(feature_columns: Sequence[Any]) -> te.serving_input.ServingInput:
    """Requests that name every feature: one vector per feature, so that an instance has a bare value per name."""
    return te.serving_input.json(feature_columns)


def csv_serving_input(feature_columns: Sequence[Any]) -> te.serving_input.ServingInput:
    """Requests that are census rows without the label; fields the model does not use are dropped."""
    fields = [name for name in columns.CSV_COLUMNS if name != columns.LABEL]
    return te.serving_input.csv(fields, feature_columns)


SERVING_INPUTS: dict[str, Callable[[Sequence[Any]], te.serving_input.ServingInput]] = {
    "JSON": json_serving_input,
    "CSV": csv_serving_input,
}
