"""Large tables of models that evaluate, predict and export: in files, with the results that tables in memory give."""

from __future__ import annotations

import gc
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.feature_column import table
from torch_estimator.from_module.module_model import ColumnsThenModule
from torch_estimator.train import mapped_memory, mapped_tables

TOWN = fc.embedding_column(fc.categorical_column_with_identity("town", 5000), 4)


def data() -> te.data.Dataset:
    towns = np.random.default_rng(0).integers(0, 5000, 640)
    return te.data.Dataset.from_arrays({"town": towns}, (towns % 3 == 0).astype(np.float32)).batch(64)


def job(model_dir: Path) -> te.Estimator:
    return te.DNNClassifier([8], [TOWN], str(model_dir), optimizer=te.optim.Adagrad(lr=0.5))


def results(model_dir: Path) -> tuple[dict[str, float], list[Any], list[float]]:
    estimator = job(model_dir)
    metrics = estimator.evaluate(data)
    logits = [one["logits"].tolist() for one in estimator.predict(data)]
    path = estimator.export_saved_model(str(model_dir / "export"), te.serving_input.raw_features([TOWN]))
    served = te.ExportedModel.load(path).predict({"town": np.arange(100)})["logits"]
    shutil.rmtree(model_dir / "export")
    return metrics, logits, served.tolist()


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LARGE_BYTES", 1000)


def test_results_are_those_of_tables_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job(tmp_path).train(data, steps=20)
    expected = results(tmp_path)
    monkeypatch.setattr(table, "LARGE_BYTES", 1000)
    assert results(tmp_path) == expected


@pytest.mark.parametrize("kind", ["canned", "averages", "columns", "tied"])
def test_an_export_reads_tables_from_the_checkpoint_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It has the bytes of an export of tables in memory. Only a table that something else reads, too, is in a file."""

    class Last(torch.nn.Linear):
        def forward(self, columns: torch.Tensor) -> torch.Tensor:
            return super().forward(columns) + (self.table[3].sum() if hasattr(self, "table") else 0)

    adagrad = te.optim.Adagrad(lr=0.5)
    if kind == "averages":
        adagrad = te.optim.moving_average(adagrad, 0.9)

    def model_fn(mode: te.ModeKeys) -> te.EstimatorSpec:
        transform = fc.FeatureTransform(dnn_columns=[TOWN])
        module = ColumnsThenModule(transform.dnn, Last(4, 1))
        if kind == "tied":
            module.module.table = module.input_layer.tables[0].weight
        return te.EstimatorSpec(
            mode=mode, module=module, transform=transform, head=te.BinaryClassHead(), optimizer=adagrad
        )

    if kind in ("canned", "averages"):
        estimator: te.Estimator = te.DNNClassifier([8], [TOWN], str(tmp_path), optimizer=adagrad)
    else:
        estimator = te.Estimator(model_fn, str(tmp_path))
    estimator.train(data, steps=20)

    def exported() -> bytes:
        path = estimator.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features([TOWN]))
        return Path(path, "model.onnx").read_bytes()

    expected = exported()
    monkeypatch.setattr(table, "LARGE_BYTES", 1000)
    mapped: list[object] = []
    monkeypatch.setattr(
        mapped_tables, "mapped_zeros", lambda *shape: mapped.append(shape) or mapped_memory.mapped_zeros(*shape)
    )
    assert exported() == expected
    assert bool(mapped) == (kind == "tied")


@pytest.mark.usefixtures("large")
def test_models_of_one_checkpoint_share_the_file_and_a_later_checkpoint_gets_another(tmp_path: Path) -> None:
    estimator = job(tmp_path).train(data, steps=5)
    one, two = estimator.trained_module(), estimator.trained_module()
    (first,), (second,) = ([part for part in of.modules() if isinstance(part, fc.Table)] for of in (one, two))
    assert first.weight.data_ptr() == second.weight.data_ptr()
    before = first.weight.detach().clone()

    estimator.train(data, steps=5)
    (third,) = (part for part in estimator.trained_module().modules() if isinstance(part, fc.Table))

    assert torch.equal(first.weight, before)
    assert not torch.equal(third.weight, before)
    assert np.array_equal(third.weight[:-1].detach(), estimator.get_variable_value(_name(estimator)))
    del one, two, first, second, third
    gc.collect()
    assert len(mapped_tables._mapped) == 0


@pytest.mark.usefixtures("large")
def test_a_checkpoint_of_another_training_under_the_same_name_is_read(tmp_path: Path) -> None:
    kept = job(tmp_path).train(data, steps=5).trained_module()
    shutil.rmtree(tmp_path)
    estimator = te.DNNClassifier([8], [TOWN], str(tmp_path), config=te.RunConfig(random_seed=77))
    estimator.train(data, steps=5)
    (found,) = (part for part in estimator.trained_module().modules() if isinstance(part, fc.Table))
    assert np.array_equal(found.weight[:-1].detach(), estimator.get_variable_value(_name(estimator)))
    del kept


@pytest.mark.usefixtures("large")
def test_a_disk_without_room_is_said_and_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    job(tmp_path).train(data, steps=5)
    monkeypatch.setattr(mapped_memory.os, "posix_fallocate", full)
    caplog.set_level(logging.WARNING, "torch_estimator")
    assert job(tmp_path).evaluate(data)["global_step"] == 5
    assert "A table of 80016 bytes takes memory, since " in caplog.text
    assert "(No space left on device); name another place in TMPDIR." in caplog.text


def _name(estimator: te.Estimator) -> str:
    return next(name for name in estimator.get_variable_names() if name.endswith("embedding_weights"))
