"""A small export to look at and to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.models import model_of
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.export.writer import write_export


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an export for every receiver: ``raw``, ``json`` and ``csv``, each with a numbered export."""
    base = tmp_path_factory.mktemp("exports")
    built = model_of([fc.categorical_column_with_hash_bucket("word", 10), fc.numeric_column("x")], [])
    receivers = {
        "raw": serving_input.raw_features(built.transform, defaults={"key": "nokey"}),
        "json": serving_input.json(built.transform),
        "csv": serving_input.csv(["id", "word", "x"], built.transform),
    }
    for name, receiver in receivers.items():
        write_export(
            base / name,
            module=built.module,
            transform=built.transform,
            head=built.head,
            receiver=receiver,
            global_step=12,
            clock=lambda: 1_700_000_000,
        )
    return base
