"""The model's inputs: which columns the linear (wide) part and the network (deep) part see, and how."""

from __future__ import annotations

from typing import Any

import torch

from torch_estimator import feature_column as fc

from . import columns

AGE_BOUNDARIES = (18, 25, 30, 35, 40, 45, 50, 55, 60, 65)


def wide_and_deep_columns(embedding_size: int = 8) -> tuple[list[Any], list[Any]]:
    """The wide columns (categories and their crosses) and the deep ones (numbers, indicators, embeddings)."""
    age, education_num, hours_per_week = map(fc.numeric_column, ("age", "education_num", "hours_per_week"))
    # Up to 99,999 while nearly all are 0: as they are, a few rows would throw the network off its course.
    capital_gain = fc.numeric_column("capital_gain", normalizer_fn=torch.log1p)
    capital_loss = fc.numeric_column("capital_loss", normalizer_fn=torch.log1p)
    gender = fc.categorical_column_with_vocabulary_list("gender", columns.GENDER)
    race = fc.categorical_column_with_vocabulary_list("race", columns.RACE)
    education = fc.categorical_column_with_vocabulary_list("education", columns.EDUCATION)
    marital_status = fc.categorical_column_with_vocabulary_list("marital_status", columns.MARITAL_STATUS)
    relationship = fc.categorical_column_with_vocabulary_list("relationship", columns.RELATIONSHIP)
    workclass = fc.categorical_column_with_vocabulary_list("workclass", columns.WORKCLASS)
    occupation = fc.categorical_column_with_hash_bucket("occupation", hash_bucket_size=100)
    native_country = fc.categorical_column_with_hash_bucket("native_country", hash_bucket_size=100)
    age_buckets = fc.bucketized_column(age, AGE_BOUNDARIES)

    wide = [
        fc.crossed_column(["education", "occupation"], hash_bucket_size=10_000),
        fc.crossed_column([age_buckets, "race", "occupation"], hash_bucket_size=1_000_000),
        fc.crossed_column(["native_country", "occupation"], hash_bucket_size=10_000),
        gender,
        native_country,
        education,
        occupation,
        workclass,
        marital_status,
        relationship,
        age_buckets,
    ]
    deep = [
        *map(fc.indicator_column, (workclass, education, marital_status, gender, race, relationship)),
        fc.embedding_column(native_country, dimension=embedding_size),
        fc.embedding_column(occupation, dimension=embedding_size),
        age,
        education_num,
        capital_gain,
        capital_loss,
        hours_per_week,
    ]
    return wide, deep
