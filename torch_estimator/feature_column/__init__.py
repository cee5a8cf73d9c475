"""Feature columns: descriptions of how the columns of a data set become the inputs of a model.

The module `column` describes how to add a column. To make a new name public, add one line here.
"""

from typing import Any, NoReturn

from torch_estimator.errors import InvalidTypeError
from torch_estimator.feature_column.bucketized import BucketizedColumn as BucketizedColumn
from torch_estimator.feature_column.bucketized import bucketized_column as bucketized_column
from torch_estimator.feature_column.bucketized import quantile_boundaries as quantile_boundaries
from torch_estimator.feature_column.column import CategoricalColumn as CategoricalColumn
from torch_estimator.feature_column.crossed import CrossedColumn as CrossedColumn
from torch_estimator.feature_column.crossed import crossed_column as crossed_column
from torch_estimator.feature_column.dense_features import DenseFeatures as DenseFeatures
from torch_estimator.feature_column.dense_features import InputLayer as InputLayer
from torch_estimator.feature_column.embedding import EmbeddingColumn as EmbeddingColumn
from torch_estimator.feature_column.embedding import SharedEmbeddingColumn as SharedEmbeddingColumn
from torch_estimator.feature_column.embedding import embedding_column as embedding_column
from torch_estimator.feature_column.embedding import shared_embedding_columns as shared_embedding_columns
from torch_estimator.feature_column.embedding import shared_embeddings as shared_embeddings
from torch_estimator.feature_column.hash_bucket import HashedCategoricalColumn as HashedCategoricalColumn
from torch_estimator.feature_column.hash_bucket import (
    categorical_column_with_hash_bucket as categorical_column_with_hash_bucket,
)
from torch_estimator.feature_column.identity import IdentityCategoricalColumn as IdentityCategoricalColumn
from torch_estimator.feature_column.identity import categorical_column_with_identity as categorical_column_with_identity
from torch_estimator.feature_column.indicator import IndicatorColumn as IndicatorColumn
from torch_estimator.feature_column.indicator import indicator_column as indicator_column
from torch_estimator.feature_column.layouts import InputLayout as InputLayout
from torch_estimator.feature_column.layouts import LinearLayout as LinearLayout
from torch_estimator.feature_column.missing_indicator import MissingIndicatorColumn as MissingIndicatorColumn
from torch_estimator.feature_column.missing_indicator import missing_indicator_column as missing_indicator_column
from torch_estimator.feature_column.numeric import NumericColumn as NumericColumn
from torch_estimator.feature_column.numeric import numeric_column as numeric_column
from torch_estimator.feature_column.parse_example_spec import make_parse_example_spec as make_parse_example_spec
from torch_estimator.feature_column.raw_feature import RawFeature as RawFeature
from torch_estimator.feature_column.raw_feature import schema as schema
from torch_estimator.feature_column.sequence import SequenceCategoricalColumn as SequenceCategoricalColumn
from torch_estimator.feature_column.sequence import (
    sequence_categorical_column_with_hash_bucket as sequence_categorical_column_with_hash_bucket,
)
from torch_estimator.feature_column.sequence import (
    sequence_categorical_column_with_identity as sequence_categorical_column_with_identity,
)
from torch_estimator.feature_column.sequence import (
    sequence_categorical_column_with_vocabulary_file as sequence_categorical_column_with_vocabulary_file,
)
from torch_estimator.feature_column.sequence import (
    sequence_categorical_column_with_vocabulary_list as sequence_categorical_column_with_vocabulary_list,
)
from torch_estimator.feature_column.sequence import sequence_numeric_column as sequence_numeric_column
from torch_estimator.feature_column.sequence_features import SequenceFeatures as SequenceFeatures
from torch_estimator.feature_column.table import Piece as Piece
from torch_estimator.feature_column.table import Table as Table
from torch_estimator.feature_column.transform import FeatureTransform as FeatureTransform
from torch_estimator.feature_column.vocabulary import VocabularyListCategoricalColumn as VocabularyListCategoricalColumn
from torch_estimator.feature_column.vocabulary import (
    categorical_column_with_vocabulary_file as categorical_column_with_vocabulary_file,
)
from torch_estimator.feature_column.vocabulary import (
    categorical_column_with_vocabulary_list as categorical_column_with_vocabulary_list,
)
from torch_estimator.feature_column.weighted import WeightedCategoricalColumn as WeightedCategoricalColumn
from torch_estimator.feature_column.weighted import weighted_categorical_column as weighted_categorical_column
from torch_estimator.feature_column.weighted_sum import LinearModel as LinearModel


def input_layer(*_: Any, **__: Any) -> NoReturn:
    """Raise an error: TensorFlow's function makes variables, which belong to a module here. Use `DenseFeatures`.

    Raises:
        InvalidTypeError: Always. The message says how to make the layer.

    >>> fc.input_layer({}, [fc.numeric_column("x")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    torch_estimator.errors.InvalidTypeError: te.feature_column.input_layer would make new variables in every step; ...
    """
    raise InvalidTypeError(_MAKE_A_LAYER.format(name="input_layer", layer="DenseFeatures"))


def linear_model(*_: Any, **__: Any) -> NoReturn:
    """Raise an error: TensorFlow's function makes variables, which belong to a module here. Use `LinearModel`.

    Raises:
        InvalidTypeError: Always. The message says how to make the layer.

    >>> fc.linear_model({}, [fc.numeric_column("x")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    torch_estimator.errors.InvalidTypeError: te.feature_column.linear_model would make new variables in every step; ...
    """
    raise InvalidTypeError(_MAKE_A_LAYER.format(name="linear_model", layer="LinearModel"))


_MAKE_A_LAYER = (
    "te.feature_column.{name} would make new variables in every step; write self.{name} = "
    "te.feature_column.{layer}(columns) in your module's __init__, and self.{name}(features) in its forward."
)
