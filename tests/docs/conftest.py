"""The directory in which pages' code runs."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.census.trainer import sample
from tests.checkpoint.tensorflow_checkpoints import FOLDER
from tests.docs.pages import ROOT


@pytest.fixture(scope="session")
def census_sample(tmp_path_factory: pytest.TempPathFactory) -> sample.Sample:
    """The census data that `python -m examples.census.trainer.sample` writes, made once for all pages."""
    return sample.write(str(tmp_path_factory.mktemp("census-sample")))


@pytest.fixture
def readers_directory(census_sample: sample.Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory with `examples`, the census data and what TensorFlow has trained in it.

    A page may change the log's level, and import the programs that it has written.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    imported = set(sys.modules)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "census-sample").symlink_to(Path(census_sample.train_file).parent)
    for trained, name, step in (("people-tf", "people", 300), ("digits-tf", "own_v1", 9)):
        model_dir = tmp_path / "runs" / trained
        model_dir.mkdir()
        for suffix in ("index", "data-00000-of-00001"):
            shutil.copy(FOLDER / f"{name}.{suffix}", model_dir / f"model.ckpt-{step}.{suffix}")
        (model_dir / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
    logger = logging.getLogger("torch_estimator")
    level = logger.level
    yield tmp_path
    logger.setLevel(level)
    for name in set(sys.modules) - imported:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{tmp_path}{os.sep}"):
            del sys.modules[name]
