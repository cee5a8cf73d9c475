"""Kill the processes of each test, also if it failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launch.launched import LAUNCHED
from torch_estimator.log import LOG_FORMAT


@pytest.fixture(autouse=True)
def _clean_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Without times, so that whole lines can be compared.
    monkeypatch.setenv(LOG_FORMAT, "plain")
    yield
    while LAUNCHED:
        LAUNCHED.pop().clean_up()
