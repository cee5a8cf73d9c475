"""Fixtures of tests of strategies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.strategies import contract


@pytest.fixture(scope="session")
def contract_jobs(
    golden: Callable[[str], Any], shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, contract.Job]:
    """The programs of the contract, trained in one process; see `contract.check_strategy`."""
    reference = {"census": golden("wide_deep_classifier_census"), "births": golden("dnn_regressor_babyweight")}
    return {
        name: contract.job(name, one, shared_data, tmp_path_factory.mktemp(name)) for name, one in reference.items()
    }
