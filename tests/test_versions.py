"""The key of a compiled step covers this project's own sources, which are compiled into the step or made it."""

from __future__ import annotations

from pathlib import Path

import pytest

import torch_estimator
from torch_estimator.versions import own_sources


@pytest.mark.parametrize("name", ["one.py", "compile/run_steps.h", "compile/step_model.h", "compile/matrix_product.h"])
def test_a_changed_source_file_changes_the_hash(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_estimator, "__file__", str(tmp_path / "__init__.py"))
    source = tmp_path / name
    source.parent.mkdir(exist_ok=True)
    digests = set()
    for text in ("a", "b"):
        source.write_text(text)
        digests.add(own_sources.__wrapped__())
    assert len(digests) == 2
