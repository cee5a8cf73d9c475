"""LatestExporter exports every time and keeps the newest."""

from __future__ import annotations

from typing import Any

import pytest

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.exporters import LatestExporter


def _receiver() -> None: ...


def test_every_model_is_exported_and_the_newest_are_kept(estimator: Any, export_path: str) -> None:
    exporter = LatestExporter("latest", _receiver, exports_to_keep=2)
    for step in range(4):
        exporter.export(estimator, export_path, f"ckpt-{step}", {"loss": 1.0}, step == 3)
    assert files.listdir(export_path) == ["1700000003", "1700000004"]
    assert [call["checkpoint_path"] for call in estimator.calls] == [f"ckpt-{step}" for step in range(4)]


def test_none_keeps_all(estimator: Any, export_path: str) -> None:
    exporter = LatestExporter("latest", _receiver, exports_to_keep=None)
    for step in range(7):
        exporter.export(estimator, export_path, f"ckpt-{step}", {}, False)
    assert len(files.listdir(export_path)) == 7


@pytest.mark.parametrize("keep", [0, -1, 1.5])
def test_a_number_that_keeps_nothing_is_refused(keep: int) -> None:
    with pytest.raises(InvalidValueError, match=f"exports_to_keep must be a positive whole number, .* but got {keep}"):
        LatestExporter("latest", _receiver, exports_to_keep=keep)
