"""Where the reference numbers and real data of the tests lie."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from torch_estimator.compile import step_compiler
from torch_estimator.compile.precompiled_headers import PrecompiledHeaders

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_configure() -> None:
    """Import the compiler once for each process of a parallel run.

    A compilation runs in a fork of the test process. Each fork would import the compiler again, which takes 4 seconds.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        importlib.import_module("torch._inductor.compile_fx")


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    """Reads a reference file by name, for instance ``golden("hash.json")`` or ``golden("hash")``."""
    named = os.environ.get("TE_GOLDEN_DIR")
    folder = Path(named or SHARED / "golden")
    if named and not folder.is_dir():
        pytest.fail(f"TE_GOLDEN_DIR names {named}, but there is no such folder")
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} of reference numbers; set TE_GOLDEN_DIR to where it is")

    def read(name: str) -> Any:
        return json.loads((folder / f"{name.removesuffix('.json')}.json").read_text())

    return read


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data: ``census/``, ``babyweight/``, ``mnist/``."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} of real data beside the checkout")
    return folder


@pytest.fixture(scope="session")
def headers_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of headers that are precompiled for all tests, also of other processes of a parallel run."""
    directory = tmp_path_factory.getbasetemp()
    return (directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory) / "cache"


@pytest.fixture(autouse=True)
def _no_compiled_steps_of_others(
    tmp_path_factory: pytest.TempPathFactory, headers_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compiled yet: what one test leaves must not decide how the next one trains."""
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    # Headers cost seconds, and are the same for each step.
    monkeypatch.setattr(step_compiler, "PrecompiledHeaders", partial(PrecompiledHeaders, directory=headers_directory))


@pytest.fixture(autouse=True)
def _what_is_to_be_compiled_is(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Training goes on in Python where a step cannot be compiled, and a test would not notice."""
    yield
    if "runs_in_python" not in request.keywords:
        refused = [
            record.getMessage() for record in caplog.get_records("call") if "is not compiled, because" in record.msg
        ]
        assert not refused


@pytest.fixture
def compilations(caplog: pytest.LogCaptureFixture) -> Callable[[], list[int]]:
    """Tells the batch sizes that have been compiled for since it was asked last."""
    caplog.set_level(logging.INFO, "torch_estimator")

    def told() -> list[int]:
        found = (re.fullmatch(r"Compiled the training step for batches of (\d+)\.", one) for one in caplog.messages)
        sizes = [int(one[1]) for one in found if one]
        caplog.clear()
        return sizes

    return told
