"""The columns of the programs that the reference numbers were computed with."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch_estimator import feature_column as fc

CENSUS_NAMES = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "gender",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income_bracket",
]
BABYWEIGHT_NAMES = ["weight_pounds", "is_male", "mother_age", "plurality", "gestation_weeks", "key"]
CENSUS_VOCABULARIES = {
    "gender": ["Female", "Male"],
    "race": ["Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White"],
    "education": [
        "Bachelors",
        "HS-grad",
        "11th",
        "Masters",
        "9th",
        "Some-college",
        "Assoc-acdm",
        "Assoc-voc",
        "7th-8th",
        "Doctorate",
        "Prof-school",
        "5th-6th",
        "10th",
        "1st-4th",
        "Preschool",
        "12th",
    ],
    "marital_status": [
        "Married-civ-spouse",
        "Divorced",
        "Married-spouse-absent",
        "Never-married",
        "Separated",
        "Married-AF-spouse",
        "Widowed",
    ],
    "relationship": ["Husband", "Not-in-family", "Wife", "Own-child", "Unmarried", "Other-relative"],
    "workclass": [
        "Self-emp-not-inc",
        "Private",
        "State-gov",
        "Federal-gov",
        "Local-gov",
        "?",
        "Self-emp-inc",
        "Without-pay",
        "Never-worked",
    ],
}


def census_wide(hash_function: Any = "farmhash") -> list[Any]:
    """The eleven columns of the linear part."""
    age = fc.bucketized_column(fc.numeric_column("age"), [18, 25, 30, 35, 40, 45, 50, 55, 60, 65])
    hashed = partial(fc.categorical_column_with_hash_bucket, hash_bucket_size=100, hash_function=hash_function)
    crossed = partial(fc.crossed_column, hash_function=hash_function)
    vocabularies = {
        key: fc.categorical_column_with_vocabulary_list(key, words) for key, words in CENSUS_VOCABULARIES.items()
    }
    return [
        *(column for key, column in vocabularies.items() if key != "race"),
        hashed("occupation"),
        hashed("native_country"),
        age,
        crossed(["education", "occupation"], hash_bucket_size=10_000),
        crossed([age, vocabularies["race"], "occupation"], hash_bucket_size=1_000_000),
        crossed(["native_country", "occupation"], hash_bucket_size=10_000),
    ]


def census_deep(hash_function: Any = "farmhash") -> list[Any]:
    """The columns of the deep part: indicators, embeddings and three scaled numbers."""

    def hashed(key: str) -> Any:
        column = fc.categorical_column_with_hash_bucket(key, 100, hash_function=hash_function)
        return fc.embedding_column(column, 8)

    def scaled(key: str, mean: float, deviation: float) -> Any:
        return fc.numeric_column(key, normalizer_fn=lambda x: (x - mean) / deviation)

    return [
        *(
            fc.indicator_column(fc.categorical_column_with_vocabulary_list(key, words))
            for key, words in CENSUS_VOCABULARIES.items()
        ),
        hashed("occupation"),
        hashed("native_country"),
        scaled("age", 38.6, 13.6),
        scaled("education_num", 10, 2.5),
        scaled("hours_per_week", 40, 12),
    ]


def babyweight_columns() -> tuple[list[Any], list[Any]]:
    """The columns of the linear and of the deep part."""
    is_male = fc.categorical_column_with_vocabulary_list("is_male", ["True", "False", "Unknown"])
    plurality = fc.categorical_column_with_vocabulary_list(
        "plurality", ["Single(1)", "Twins(2)", "Triplets(3)", "Quadruplets(4)", "Quintuplets(5)", "Multiple(2+)"]
    )
    mother_age = fc.numeric_column("mother_age")
    gestation_weeks = fc.numeric_column("gestation_weeks")
    wide = [
        is_male,
        plurality,
        fc.bucketized_column(mother_age, list(range(15, 45))),
        fc.bucketized_column(gestation_weeks, list(range(17, 47))),
    ]
    cross = fc.crossed_column(wide, 2000, hash_function="farmhash")
    return wide, [mother_age, gestation_weeks, fc.embedding_column(cross, 3)]
