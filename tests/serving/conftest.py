"""A small export, and the application that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.models import app_of, write_export
from torch_estimator.serving.app import ServingApp

# It needs TensorFlow, and runs in an environment of its own.
collect_ignore = ["tensorflow_serving_client.py"]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the versions 1 and 2 of a model, which multiply by 1 and 2."""
    directory = tmp_path_factory.mktemp("small")
    for version in (1, 2):
        write_export(directory / str(version), factor=version)
    return directory


@pytest.fixture(scope="session")
def app(base: Path) -> Iterator[ServingApp]:
    """The application of a server of both versions."""
    with app_of(base) as made:
        yield made
