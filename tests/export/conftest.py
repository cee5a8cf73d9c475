"""Fixtures: the census rows, and a census model with its export."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.export.models import NUMBERS, Built, Raw, assert_same, census_columns, model_of
from tests.programs import CENSUS_NAMES as NAMES
from torch_estimator.export.exported_model import ExportedModel


@pytest.fixture(scope="session")
def census_rows(shared_data: Path) -> Raw:
    """All rows of the census test file, by column."""
    with open(shared_data / "census" / "adult.test.csv", newline="") as file:
        columns = dict(zip(NAMES, zip(*csv.reader(file), strict=True), strict=True))
    return {
        key: np.array(columns[key], np.float32 if key in NUMBERS else object)
        for key in NAMES
        if key not in ("fnlwgt", "income_bracket")
    }


@pytest.fixture(scope="session")
def census_model() -> Built:
    """A census model that hashes with murmur3."""
    return model_of(*census_columns())


@pytest.fixture(scope="session")
def census_export(census_model: Built, tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    """The export of `census_model` with raw columns as inputs."""
    return census_model.export(tmp_path_factory.mktemp("census"))


@pytest.fixture
def same(tmp_path: Path) -> Callable[[Built, Raw], Raw]:
    """Check that a model and its export predict the same; return the predictions."""

    def check(built: Built, raw: Raw) -> Raw:
        return assert_same(built.predict(raw), built.export(tmp_path).predict(raw))

    return check
