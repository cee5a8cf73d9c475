"""Where a private name of PyTorch is missing, training goes on uncompiled, and one line of log says so."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.line_jobs import line, points

# Owner of the name and the name. The test removes it where PyTorch itself does not need it for steps in Python.
OF_INDUCTOR = [
    ("torch._inductor", "aot_compile"),
    ("torch._inductor.cpp_builder", "get_cpp_compiler"),
    ("torch._inductor.scheduler", "SchedulerNode"),
    ("torch.fx.experimental.proxy_tensor", "make_fx"),
]
# Modules of this project, and the modules of PyTorch that they read private names of. PyTorch needs the names, too, so
# the test gives an empty object to this project alone.
READERS = [
    ("torch_estimator.compile.key", "torch_optimizer"),
    ("torch_estimator.compile.trace_checks", "torch_optimizer"),
    ("torch_estimator.compile.key", "nn.modules"),
]


def train(model_dir: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Train a few steps with ``compile=True``, and return why the step is not compiled."""
    estimator = line(model_dir, compile=True).train(lambda: points().repeat(), steps=5)
    assert int(estimator.get_variable_value("global_step")) == 5
    (logged,) = [one for one in caplog.messages if "ompile" in one and not one.startswith("Compiling")]
    before, after = "The training step is not compiled, because ", "; training goes on without."
    assert logged.startswith(before)
    assert logged.endswith(after)
    return logged.removeprefix(before).removesuffix(after)


@pytest.mark.runs_in_python
@pytest.mark.parametrize(("owner", "name"), OF_INDUCTOR)
def test_without_a_name_of_the_compiler(
    owner: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(importlib.import_module(owner), name)
    assert name in train(tmp_path, caplog)


@pytest.mark.runs_in_python
@pytest.mark.parametrize(("reader", "name"), READERS)
def test_without_the_names_that_a_module_reads(
    reader: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = importlib.import_module(reader)
    holder, _, _ = name.rpartition(".")
    if holder:
        monkeypatch.setattr(owner, holder, SimpleNamespace(modules=SimpleNamespace(module=SimpleNamespace())))
    else:
        monkeypatch.setattr(owner, name, SimpleNamespace())
    assert "_global_" in train(tmp_path, caplog)


@pytest.mark.parametrize("name", ["_get_mkldnn_enabled", "_get_nnpack_enabled"])
def test_a_flag_that_is_missing_counts_as_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from torch_estimator.compile.environment import torch_flags

    before = torch_flags()
    monkeypatch.delattr(torch._C, name)
    assert torch_flags() != before
