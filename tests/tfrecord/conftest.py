from __future__ import annotations

import pytest

from torch_estimator.data.sources import record_ranges
from torch_estimator.tfrecord import in_python, parser
from torch_estimator.tfrecord.engine import engine

# It needs TensorFlow.
collect_ignore = ["make_golden.py"]


@pytest.fixture(params=["C", "Python"])
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the parser in C, and as on a machine without a C compiler."""
    in_c = engine()
    assert in_c is not in_python
    if request.param == "Python":
        for module in (parser, record_ranges):
            monkeypatch.setattr(module, "engine", lambda: in_python)
