"""Feature columns: how raw columns become what a model computes with."""

from typing import Any, NoReturn

from torch_estimator.errors import InvalidTypeError
from torch_estimator.feature_column.bucketized import BucketizedColumn, bucketized_column
from torch_estimator.feature_column.categorical import CategoricalColumn
from torch_estimator.feature_column.crossed import CrossedColumn, crossed_column
from torch_estimator.feature_column.embedding import EmbeddingColumn, embedding_column
from torch_estimator.feature_column.hash_bucket import (
    HashedCategoricalColumn,
    categorical_column_with_hash_bucket,
)
from torch_estimator.feature_column.identity import IdentityCategoricalColumn, categorical_column_with_identity
from torch_estimator.feature_column.indicator import IndicatorColumn, indicator_column
from torch_estimator.feature_column.input_layer import InputLayer
from torch_estimator.feature_column.layouts import InputLayout, LinearLayout
from torch_estimator.feature_column.linear_model import LinearModel
from torch_estimator.feature_column.numeric import NumericColumn, numeric_column
from torch_estimator.feature_column.quantiles import quantile_boundaries
from torch_estimator.feature_column.raw_feature import RawFeature
from torch_estimator.feature_column.schema import schema
from torch_estimator.feature_column.shared_embeddings import (
    SharedEmbeddingColumn,
    shared_embedding_columns,
    shared_embeddings,
)
from torch_estimator.feature_column.table import Table
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.feature_column.vocabulary_file import categorical_column_with_vocabulary_file
from torch_estimator.feature_column.vocabulary_list import (
    VocabularyListCategoricalColumn,
    categorical_column_with_vocabulary_list,
)
from torch_estimator.feature_column.weighted import WeightedCategoricalColumn, weighted_categorical_column


def input_layer(*_: Any, **__: Any) -> NoReturn:
    """Refuse tf.feature_column's function, which made variables wherever it was called.

    Raises:
        InvalidTypeError: Always; says what holds these variables here.
    """
    raise InvalidTypeError(
        "te.feature_column.input_layer cannot be called, since variables belong to a module here; give the columns to "
        "Estimator.from_module(module, columns=columns, ...), whose module takes what input_layer returned, or make an "
        "InputLayer(FeatureTransform(dnn_columns=columns).dnn) in your module's __init__."
    )


def linear_model(*_: Any, **__: Any) -> NoReturn:
    """Refuse tf.feature_column's function; see `input_layer`.

    Raises:
        InvalidTypeError: Always.
    """
    raise InvalidTypeError(
        "te.feature_column.linear_model cannot be called, since variables belong to a module here; make a "
        "LinearModel(FeatureTransform(linear_columns=columns).linear, ...) in your module's __init__, or use "
        "LinearClassifier or LinearRegressor."
    )


__all__ = [
    "BucketizedColumn",
    "CategoricalColumn",
    "CrossedColumn",
    "EmbeddingColumn",
    "FeatureTransform",
    "HashedCategoricalColumn",
    "IdentityCategoricalColumn",
    "IndicatorColumn",
    "InputLayer",
    "InputLayout",
    "LinearLayout",
    "LinearModel",
    "NumericColumn",
    "RawFeature",
    "SharedEmbeddingColumn",
    "Table",
    "VocabularyListCategoricalColumn",
    "WeightedCategoricalColumn",
    "bucketized_column",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_vocabulary_list",
    "crossed_column",
    "embedding_column",
    "indicator_column",
    "numeric_column",
    "quantile_boundaries",
    "schema",
    "shared_embedding_columns",
    "shared_embeddings",
    "weighted_categorical_column",
]
