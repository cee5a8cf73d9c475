from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format  # type: ignore[import-untyped]

from torch_estimator.cli import main
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.registry import Registry

model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")


def written(directory: Path) -> Any:
    """The configuration in a directory, as Triton reads it."""
    return text_format.Parse((directory / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


@pytest.mark.parametrize("name", ["raw", "json", "csv"])
def test_tritons_configuration_names_what_the_graph_has(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shutil.copytree(exports / name, tmp_path / name)
    assert main(["manifest", "triton", "--model-dir", str(tmp_path / name), "--max-batch", "32"]) == 0
    assert capsys.readouterr().out == (
        f"Wrote {tmp_path}/{name}/config.pbtxt; start Triton with --model-repository={tmp_path}.\n"
    )
    config = written(tmp_path / name)
    assert (config.name, config.backend, config.max_batch_size) == (name, "onnxruntime", 32)
    assert config.HasField("dynamic_batching")
    # An exporter's directory has no default; Triton serves the newest export.
    assert not config.HasField("version_policy")

    session = ExportedModel.load(tmp_path / name)._session
    types = {"tensor(string)": "TYPE_STRING", "tensor(float)": "TYPE_FP32", "tensor(int64)": "TYPE_INT64"}
    types["tensor(int32)"] = "TYPE_INT32"
    for tensors, described in ((session.get_inputs(), config.input), (session.get_outputs(), config.output)):
        assert sorted(one.name for one in tensors) == sorted(one.name for one in described)
        by_name = {one.name: one for one in described}
        for tensor in tensors:
            info = by_name[tensor.name]
            assert model_config_pb2.DataType.Name(info.data_type) == types[tensor.type]
            # Triton adds the batch to the dimensions, after a reshape if there is one.
            sizes = list(info.reshape.shape) if info.HasField("reshape") else list(info.dims)
            assert len(info.dims) >= 1
            assert [one if isinstance(one, int) else -1 for one in tensor.shape[1:]] == sizes


def test_a_version_of_a_registry(exports: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.create_model("census")
    assert main(["manifest", "triton", "--model", "census", "--registry", registry.url]) == 2
    registry.create_version("census", 3, exports / "json")
    registry.create_version("census", 4, exports / "json")
    # The default is version 3, although 4 is newer.
    for given, version in (([], 3), (["--version", "v4"], 4)):
        assert main(["manifest", "triton", "--model", "census", "--registry", registry.url, *given]) == 0
        config = written(tmp_path / "registry" / "census")
        assert (config.name, list(config.version_policy.specific.versions)) == ("census", [version])
    assert registry.versions("census") == [3, 4]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give either --model-dir or --model with a registry."),
        (["--model-dir", "{}", "--model", "census"], "give either --model-dir or --model"),
        (["--model-dir", "{}/named"], "Triton reads versions from directories with a number as their name"),
        (["--model-dir", "{}", "--max-batch", "0"], "--max-batch must be 1 or more"),
        (["--model-dir", "{}", "--max-delay-ms", "nan"], "--max-delay-ms 0 to 10000, but got 64 and nan."),
    ],
)
def test_mistakes_are_one_sentence(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    shutil.copytree(exports / "raw" / "1700000000", tmp_path / "named")
    assert main(["manifest", "triton", *(argument.format(tmp_path) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert problem in captured.err
    assert captured.err.count("\n") == 1
