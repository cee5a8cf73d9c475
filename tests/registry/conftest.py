"""A small export, and registries on every kind of store."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.export.models import model_of
from tests.registry import stores
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.export.writer import write_export
from torch_estimator.registry import Registry


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a model with the inputs ``word`` and ``x``."""
    built = model_of([fc.categorical_column_with_hash_bucket("word", 10), fc.numeric_column("x")], [])
    path = write_export(
        tmp_path_factory.mktemp("export"),
        module=built.module,
        transform=built.transform,
        head=built.head,
        receiver=serving_input.raw_features(built.transform),
        global_step=12,
    )
    return Path(path)


@pytest.fixture(params=["local", "memory", "exclusive", "plain"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    """An empty registry: on a local path, on stores that can create an object exclusively, and on one that cannot."""
    stores.register()
    url = f"memory://{secrets.token_hex(8)}" if request.param == "memory" else stores.url(request.param, tmp_path)
    yield Registry(url)
    if request.param == "memory":
        fsspec.filesystem("memory").rm(url, recursive=True)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, export: Path) -> Path:
    """The directory of a registry with a model ``census`` of the versions 1 and 2."""
    path = tmp_path_factory.mktemp("template") / "registry"
    filled(Registry(path), export)
    return path


@pytest.fixture
def local(tmp_path: Path, template: Path) -> Registry:
    """A registry on a local path with a model ``census`` of the versions 1 and 2."""
    shutil.copytree(template, tmp_path / "registry")
    return Registry(tmp_path / "registry")


def filled(registry: Registry, export: Path) -> Registry:
    registry.create_model("census")
    for version in (1, 2):
        registry.create_version("census", version, export)
    return registry
