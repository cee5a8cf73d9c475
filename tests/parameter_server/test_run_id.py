"""A run id in the model directory tells one training with parameter servers from another."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.run_id import RunIdFile


@pytest.fixture
def read(tmp_path: Path) -> RunIdFile:
    """Return the file of a worker that has read the run id of the chief."""
    run_id = RunIdFile(str(tmp_path), "chief 0").read_or_create()
    file = RunIdFile(str(tmp_path), "worker 0")
    assert file.read() == run_id
    assert not file.is_training_over()
    return file


def test_a_training_is_over_when_its_run_id_is_gone(read: RunIdFile, tmp_path: Path) -> None:
    RunIdFile(str(tmp_path), "chief 0").remove()
    assert read.is_training_over()


def test_a_training_is_over_when_the_next_one_has_begun(read: RunIdFile, tmp_path: Path) -> None:
    chief = RunIdFile(str(tmp_path), "chief 0")
    chief.remove()
    chief.read_or_create()
    assert read.is_training_over()


def test_a_training_whose_run_id_cannot_be_read_for_once_is_not_over(read: RunIdFile, tmp_path: Path) -> None:
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    assert not read.is_training_over()


def test_a_directory_without_a_run_id_is_not_the_chief_s(tmp_path: Path) -> None:
    file = RunIdFile(str(tmp_path), "worker 0")
    with pytest.raises(ClusterError, match=rf"^worker 0 does not see the chief's model_dir: in its {tmp_path} there"):
        file.read()
    assert not file.is_training_over()
