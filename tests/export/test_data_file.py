"""Exports whose large initializers are in a second file. The limit is 20,000 bytes in the fast tests."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from tests.export.models import Built, model_of
from torch_estimator import feature_column as fc
from torch_estimator import files, serving_input
from torch_estimator.cli import main
from torch_estimator.errors import ExportError
from torch_estimator.export import writer
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.signatures import DATA_FILE
from torch_estimator.export.writer import write_export
from torch_estimator.heads import RegressionHead
from torch_estimator.registry import Registry

RAW = {"w": np.array(["a", "b", "", "c"], object), "x": np.array([1, 2, 3, 4], np.float32)}


@pytest.fixture
def built() -> Built:
    """A model with tables in both halves; the vectors of one are shortened when they are read."""
    words = fc.categorical_column_with_hash_bucket("w", 10_000)
    return model_of([words], [fc.embedding_column(words, 8, max_norm=0.5), fc.numeric_column("x")])


@pytest.fixture
def export(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The export of `built` with a second file."""
    monkeypatch.setattr(writer, "LARGEST_MODEL", 20_000)
    path = Path(built.export(tmp_path / "export").directory)
    assert (path / DATA_FILE).stat().st_size > 10_000 * 9 * 4 > 10 * (path / "model.onnx").stat().st_size
    return path


def test_the_second_file_gives_the_same_predictions(built: Built, export: Path, tmp_path: Path) -> None:
    expected = built.predict(RAW)
    for path in (export, _uploaded(built)):
        predicted = ExportedModel.load(path).predict(RAW)
        np.testing.assert_allclose(predicted["logits"], expected["logits"], atol=1e-6)
    files.remove_tree("memory://data-file")


def _uploaded(built: Built) -> str:
    return write_export(
        "memory://data-file",
        module=built.module,
        transform=built.transform,
        head=built.head,
        receiver=serving_input.raw_features(built.transform),
    )


class Tables(nn.Module):
    """Tables of several types, as a module of one's own has them."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.Embedding(2_000, 3, dtype=torch.float16)
        self.brains = nn.Embedding(2_000, 3, dtype=torch.bfloat16)
        self.numbers = nn.Parameter(torch.arange(3_000), requires_grad=False)
        self.flags = nn.Parameter(torch.arange(3_000) % 3 == 0, requires_grad=False)

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        ids = features["x"].reshape(-1).long()
        total = self.halves(ids).float().sum(1) + self.brains(ids).float().sum(1)
        result: torch.Tensor = (total + self.numbers[ids].float() * self.flags[ids].float())[:, None]
        return result


def test_tables_of_a_module_of_ones_own_are_in_the_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LARGEST_MODEL", 20_000)
    module = Tables()
    receiver = serving_input.raw_features([fc.numeric_column("x")])
    path = write_export(tmp_path, module=module, transform=None, head=RegressionHead(), receiver=receiver)
    assert os.path.getsize(f"{path}/{DATA_FILE}") >= 2 * 2_000 * 3 * 2 + 3_000 * 9
    x = np.array([0, 3, 1_999], np.float32)
    np.testing.assert_allclose(
        ExportedModel.load(path).predict({"x": x})["predictions"],
        module({"x": torch.from_numpy(x)}).detach(),
        rtol=1e-5,
    )


def test_initializers_are_changed_and_written_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_estimator.export.graph._BLOCK_BYTES", 1_000)
    graph = GraphBuilder()
    table, seen = np.arange(3_000, dtype=np.float32).reshape(-1, 3), []

    def double(rows: np.ndarray) -> np.ndarray:
        seen.append(len(rows))
        return rows * 2

    graph.constant(np.ones(7), hint="small")
    graph.constant(table, hint="table", change=double)
    graph.constant(table.T, np.int64, hint="turned")
    assert b"".join(graph.data(1)) == _padded((table * 2).tobytes()) + _padded(table.T.astype(np.int64).tobytes())
    assert (max(seen), sum(seen)) == (83, 1_000)
    model = graph.model(producer="", version="", data_from=13_000)
    assert [one.data_location == onnx.TensorProto.EXTERNAL for one in model.graph.initializer] == [False, False, True]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 2**16)


def test_commands_take_the_second_file(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("w,x\na,1\nb,2\n")
    batch = ["predict-batch", "--model", export, "--input", tmp_path / "rows.csv", "--output", tmp_path / "out"]
    for arguments in (["show", "--dir", export, "--all"], ["check", export], batch):
        assert main(list(map(str, arguments))) == 0, capsys.readouterr()
    out = capsys.readouterr().out
    assert " recorded predictions are reproduced" in out
    assert "2 rows predicted, 0 rejected" in out


@pytest.mark.parametrize("store", ["local", "memory"])
def test_a_registry_copies_checks_and_rolls_back_the_second_file(export: Path, tmp_path: Path, store: str) -> None:
    registry = Registry(tmp_path / "registry" if store == "local" else "memory://data-file-registry")
    registry.create_model("words")
    for version in (1, 2):
        registry.create_version("words", version, export)
        registry.set_default("words", version)
    registry.set_default("words", 1)
    assert registry.read_version("words", 1).files[DATA_FILE].bytes == (export / DATA_FILE).stat().st_size
    expected = ExportedModel.load(export).predict(RAW)["logits"]
    copy = registry.version_dir("words", 1)
    assert ExportedModel.load(copy).predict(RAW)["logits"].tolist() == expected.tolist()
    files.write_file(files.join(copy, DATA_FILE), [b"short"])
    with pytest.raises(ExportError, match="has 5 bytes, but the export was written with"):
        registry.create_version("words", 3, copy)
    assert registry.versions("words") == [1, 2]
    files.remove_tree(registry.url)


def _shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _lengthen(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 1)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("/does/not/exist")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (Path.unlink, f"{DATA_FILE} is missing, but the export was written with"),
        (_shorten, "bytes, but the export was written with"),
        (_lengthen, "bytes, but the export was written with"),
        (_link, "is a link or a special file"),
        (_link_to_nothing, "is a link or a special file"),
        (_pipe, "is a link or a special file"),
    ],
)
def test_a_second_file_that_is_not_the_one_that_was_written(
    export: Path, damage: Callable[[Path], None], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(export / DATA_FILE)
    with pytest.raises(ExportError, match=problem):
        ExportedModel.load(export)
    for command in (["show", "--dir", str(export), "--all"], ["check", str(export)]):
        assert main(command) == 2
        assert problem in capsys.readouterr().err


@pytest.mark.parametrize("outside", ["../{}", "{}"])
def test_initializers_outside_of_the_directory_are_refused(export: Path, tmp_path: Path, outside: str) -> None:
    shutil.copy(export / DATA_FILE, export.parent / "other")
    location = outside.format("other" if outside.startswith("..") else export.parent / "other")
    model = onnx.load(export / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = location if entry.key == "location" else entry.value
    (export / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ExportError, match=r"model\.onnx cannot be loaded"):
        ExportedModel.load(export)


_PREDICT = """
import re, sys
from torch_estimator.export.exported_model import ExportedModel

assert "torch" not in sys.modules
ExportedModel.load(sys.argv[1]).predict({"w": [0, 1, 4_711]})
print(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_table_of_2_4_gb(tmp_path: Path) -> None:
    """Export and load one table of 9,400,000 rows of 64 with less memory than a copy takes; check it with a command."""
    rows = 9_400_000
    try:
        words = fc.categorical_column_with_identity("w", rows)
        built = model_of([], [fc.embedding_column(words, 64, max_norm=1.0)], hidden=(4,))
        raw = {"w": np.array([0, 1, 4_711, rows - 1])}
        expected = built.predict(raw)["logits"]
        model = built.export(tmp_path)
        size = os.path.getsize(f"{model.directory}/{DATA_FILE}")
        assert size >= rows * 64 * 4
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 1.5 * size
        np.testing.assert_allclose(model.predict(raw)["logits"], expected, atol=1e-6)
        del built
        assert main(["check", model.directory]) == 0
        # Not resource.getrusage, in which a new process begins with the memory of the one that started it.
        predict = [sys.executable, "-c", _PREDICT, model.directory]
        assert int(subprocess.run(predict, check=True, stdout=subprocess.PIPE).stdout) * 1024 < size / 4
    finally:
        shutil.rmtree(tmp_path)
