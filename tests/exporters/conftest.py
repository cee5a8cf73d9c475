"""A stand-in for an Estimator whose exports are a single file."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from torch_estimator import files


class Estimator:
    """Estimator that writes exports named by a counter that looks like the time, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Any,
        assets_extra: Any = None,
        *,
        checkpoint_path: str | None = None,
        warmup_instances: int = 8,
    ) -> str:
        self.calls.append(
            {
                "base": export_dir_base,
                "receiver": serving_input_receiver_fn,
                "assets_extra": assets_extra,
                "checkpoint_path": checkpoint_path,
            }
        )
        path = files.join(export_dir_base, str(1_700_000_000 + len(self.calls)))
        files.makedirs(path)
        files.write_file(files.join(path, "model.onnx"), [b"onnx"])
        return path


@pytest.fixture
def estimator() -> Estimator:
    return Estimator()


@pytest.fixture(params=["local", "memory"])
def export_path(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "export" / "name")
        return
    yield "memory://test_exporters/export/name"
    files.remove_tree("memory://test_exporters")
