"""FinalExporter exports once, and all exporters check their settings."""

from __future__ import annotations

from typing import Any

import pytest

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter


def _receiver() -> None: ...


def test_only_the_final_model_is_exported(estimator: Any, export_path: str) -> None:
    exporter = FinalExporter("census", _receiver, {"a": "b"})
    assert exporter.export(estimator, export_path, "ckpt-1", {"loss": 1.0}, False) is None
    assert exporter.export(estimator, export_path, "ckpt-2", {"loss": 1.0}, True) == f"{export_path}/1700000001"
    assert estimator.calls == [
        {"base": export_path, "receiver": _receiver, "assets_extra": {"a": "b"}, "checkpoint_path": "ckpt-2"}
    ]


@pytest.mark.parametrize("kind", [FinalExporter, LatestExporter, BestExporter])
def test_settings_common_to_all(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "torch_estimator")
    exporter = kind(name="census", serving_input_receiver_fn=_receiver)
    assert isinstance(exporter, Exporter)
    assert exporter.name == "census"
    for name in ("", "a/b"):
        with pytest.raises(InvalidValueError, match=f"name must be a directory's name and not empty, but got {name!r}"):
            kind(name=name, serving_input_receiver_fn=_receiver)
    with pytest.raises(InvalidTypeError, match="name must be a string, but got 3"):
        kind(name=3, serving_input_receiver_fn=_receiver)
    with pytest.raises(InvalidValueError, match="'census': serving_input_receiver_fn must say"):
        kind(name="census", serving_input_receiver_fn=None)
    kind(name="census", serving_input_receiver_fn=_receiver, as_text=True)
    assert "'census': as_text has no effect" in caplog.text
