"""The digest of the environment covers threads and settings of torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torch_estimator.compile.environment import environment_digest, torch_flags

Patch = pytest.MonkeyPatch


def test_threads_and_settings_of_the_compiler_are_part_of_the_environment(monkeypatch: Patch) -> None:
    before = environment_digest(2)
    assert environment_digest(1) != before
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert environment_digest(2) != before


def test_the_directory_of_torchs_own_cache_is_not_part_of_the_environment(monkeypatch: Patch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    before = environment_digest(2)
    # Torch does this when the first optimizer of `torch.optim` takes a step.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor_user")
    assert environment_digest(2) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.backends.mkldnn.set_flags(False),
        lambda: torch.set_autocast_enabled("cpu", True),
    ],
    ids=["dtype", "deterministic", "precision", "mkldnn", "autocast"],
)
def test_flags_of_torch_are_part_of_the_environment(change: Callable[[], object]) -> None:
    before, environment = torch_flags(), environment_digest(2)
    try:
        change()
        assert torch_flags() != before
        assert environment_digest(2) != environment
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.set_flags(True)
        torch.set_autocast_enabled("cpu", False)
    assert torch_flags() == before
