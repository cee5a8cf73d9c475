"""A word in the model directory tells one training with parameter servers from another."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.token import Token


@pytest.fixture
def read(tmp_path: Path) -> Token:
    """Of a worker, who has read what the chief has written."""
    word = Token(str(tmp_path), "chief 0").make()
    token = Token(str(tmp_path), "worker 0")
    assert token.read() == word
    assert not token.is_gone()
    return token


def test_a_training_is_over_when_its_word_is_gone(read: Token, tmp_path: Path) -> None:
    Token(str(tmp_path), "chief 0").remove()
    assert read.is_gone()


def test_a_training_is_over_when_the_next_one_has_begun(read: Token, tmp_path: Path) -> None:
    chief = Token(str(tmp_path), "chief 0")
    chief.remove()
    chief.make()
    assert read.is_gone()


def test_what_cannot_be_read_for_once_is_not_over(read: Token, tmp_path: Path) -> None:
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    assert not read.is_gone()


def test_without_a_word_the_directory_is_not_the_chief_s(tmp_path: Path) -> None:
    token = Token(str(tmp_path), "worker 0")
    with pytest.raises(ClusterError, match=rf"^worker 0 does not see the chief's model_dir: in its {tmp_path} there"):
        token.read()
    assert not token.is_gone()
