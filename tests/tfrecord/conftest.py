from __future__ import annotations

from collections.abc import Iterator

import pytest

from torch_estimator.tfrecord import in_python
from torch_estimator.tfrecord.engine import engine

# It needs TensorFlow.
collect_ignore = ["make_golden.py"]


@pytest.fixture(params=["C", "Python"], autouse=True)
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run every test with the parser in C, and as on a machine without a C compiler."""
    if request.param == "Python":
        monkeypatch.setenv("CC", "no-such-compiler")
    engine.cache_clear()
    assert (engine() is in_python) == (request.param == "Python")
    yield
    engine.cache_clear()
