"""What is in a baby-weight file, and what the wide and the deep part of the model see of it."""

from __future__ import annotations

from typing import Any

import torch

from torch_estimator import feature_column as fc

CSV_COLUMNS = ("weight_pounds", "is_male", "mother_age", "plurality", "gestation_weeks", "key")
LABEL = "weight_pounds"
KEY = "key"

IS_MALE = ("True", "False", "Unknown")
PLURALITY = ("Single(1)", "Twins(2)", "Triplets(3)", "Quadruplets(4)", "Quintuplets(5)", "Multiple(2+)")
AGES = list(range(15, 45))
WEEKS = list(range(17, 47))

# Of the training file. Years and weeks as they are, all far from 0, leave the network's rectified units dead.
_MEAN_AGE, _AGE_DEVIATION = 27.4, 6.2
_MEAN_WEEKS, _WEEKS_DEVIATION = 38.6, 2.6


def _normal_age(age: torch.Tensor) -> torch.Tensor:
    return (age - _MEAN_AGE) / _AGE_DEVIATION


def _normal_weeks(weeks: torch.Tensor) -> torch.Tensor:
    return (weeks - _MEAN_WEEKS) / _WEEKS_DEVIATION


def wide_and_deep_columns(embedding_size: int = 3) -> tuple[list[Any], list[Any]]:
    """The wide columns (categories and buckets) and the deep ones (numbers, and an embedding of the wide's cross)."""
    is_male = fc.categorical_column_with_vocabulary_list("is_male", IS_MALE)
    plurality = fc.categorical_column_with_vocabulary_list("plurality", PLURALITY)
    age_buckets = fc.bucketized_column(fc.numeric_column("mother_age"), AGES)
    week_buckets = fc.bucketized_column(fc.numeric_column("gestation_weeks"), WEEKS)
    wide: list[Any] = [is_male, plurality, age_buckets, week_buckets]
    deep = [
        fc.numeric_column("mother_age", normalizer_fn=_normal_age),
        fc.numeric_column("gestation_weeks", normalizer_fn=_normal_weeks),
        fc.embedding_column(fc.crossed_column(wide, hash_bucket_size=20_000), dimension=embedding_size),
    ]
    return wide, deep


def embedding_name(embedding_size: int = 3) -> str:
    """Name of the embedding column, by which its output can be exported."""
    _, deep = wide_and_deep_columns(embedding_size)
    return str(deep[-1].name)
