"""A wide and deep census model with random weights, and its predictions without an export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.programs import CENSUS_VOCABULARIES as VOCABULARIES
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.writer import write_export
from torch_estimator.feature_column.table import Table
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.heads import BinaryClassHead
from torch_estimator.networks import DNN, Linear, WideAndDeep

NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
ODD_STRINGS = ("", "never seen", "héllo", "日本語" * 200, "a\nb", "?", "x" * 5000, " ")

Raw = dict[str, np.ndarray[Any, Any]]


@dataclass
class Built:
    """A model with its feature transform and its head."""

    module: nn.Module
    transform: FeatureTransform
    head: Any

    def predict(self, raw: Mapping[str, Any]) -> Raw:
        """Return the predictions of the model without an export."""
        features = {key: torch.from_numpy(value) for key, value in self.transform.padded(self.transform(raw)).items()}
        with torch.no_grad():
            predictions = self.head.predictions(self.module.eval()(features))
        return self.head.decode({key: value.numpy() for key, value in predictions.items()})

    def export(self, base: Path, receiver: serving_input.ServingInput | None = None) -> ExportedModel:
        """Export the model, and load the export."""
        path = write_export(
            base,
            module=self.module,
            transform=self.transform,
            head=self.head,
            receiver=receiver or serving_input.raw_features(self.transform),
        )
        return ExportedModel.load(path)


def census_columns(hash_function: str = "murmur3") -> tuple[list[Any], list[Any]]:
    """Return wide and deep columns of the census sample. Numbers are scaled to keep logits small."""
    vocabularies = {key: fc.categorical_column_with_vocabulary_list(key, v) for key, v in VOCABULARIES.items()}
    occupation = fc.categorical_column_with_hash_bucket("occupation", 100, hash_function=hash_function)
    country = fc.categorical_column_with_hash_bucket("native_country", 100, hash_function=hash_function)
    numbers = [fc.numeric_column(key, normalizer_fn=lambda x: torch.log1p(x.clamp(min=0)) / 5) for key in NUMBERS]
    age_buckets = fc.bucketized_column(fc.numeric_column("age"), [18, 25, 30, 35, 40, 45, 50, 55, 60, 65])

    def cross(*keys: Any, size: int) -> Any:
        return fc.crossed_column(keys, size, hash_function=hash_function)

    wide = [
        cross("education", "occupation", size=10_000),
        cross(age_buckets, "race", "occupation", size=1_000_000),
        cross("native_country", "occupation", size=10_000),
        *(vocabularies[key] for key in VOCABULARIES if key != "race"),
        country,
        occupation,
        age_buckets,
    ]
    deep = [
        *(fc.indicator_column(column) for column in vocabularies.values()),
        fc.embedding_column(occupation, 8),
        fc.embedding_column(country, 8),
        *numbers,
    ]
    return wide, deep


def model_of(
    wide: list[Any],
    deep: list[Any],
    head: Any = None,
    hidden: tuple[int, ...] = (100, 70, 48, 34),
    sparse_combiner: Any = "sum",
    **dnn: Any,
) -> Built:
    """Return a model over columns, with random weights."""
    head = head or BinaryClassHead(label_vocabulary=["<=50K", ">50K"])
    transform = FeatureTransform(wide, deep)
    torch.manual_seed(1)
    module = WideAndDeep(
        linear=Linear(transform.linear, head.logits_dimension, sparse_combiner) if transform.linear else None,
        dnn=DNN(transform.dnn, hidden, head.logits_dimension, **dnn) if transform.dnn else None,
    )
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, Table):
                part.weight[:-1].normal_(0, 0.3)
            elif isinstance(part, nn.BatchNorm1d):
                for tensor in (part.running_var, part.weight):
                    tensor.uniform_(0.5, 2)
                for tensor in (part.running_mean, part.bias):
                    tensor.normal_()
        for name, parameter in module.named_parameters():
            if "bias" in name or name.endswith(".weights"):
                parameter.normal_(0, 0.3)
    return Built(module.eval(), transform, head)


def with_odd_rows(raw: Raw, strings: tuple[str, ...] = ODD_STRINGS) -> Raw:
    """Return the rows with some rows of unusual strings and numbers appended."""
    numbers = np.array([0, 18, 17.999, 1e6, -5, 65, 24.99, 25], np.float32)
    return {
        key: np.concatenate(
            [column, np.array(strings, object) if column.dtype == object else np.resize(numbers, len(strings))]
        )
        for key, column in raw.items()
    }


def assert_same(expected: Raw, answer: Raw) -> Raw:
    """Assert that predictions are equal: numbers to 1e-5, everything else exactly."""
    assert list(answer) == list(expected)
    for key, values in expected.items():
        assert (answer[key].dtype, answer[key].shape) == (values.dtype, values.shape), key
        if values.dtype.kind == "f":
            np.testing.assert_allclose(answer[key], values, rtol=0, atol=1e-5, err_msg=key)
        else:
            np.testing.assert_array_equal(answer[key], values, err_msg=key)
    return answer
