"""Feature columns: how raw columns become what a model computes with."""

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
