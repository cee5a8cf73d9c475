"""Kill the processes of each test, also if it failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launch.launched import LAUNCHED


@pytest.fixture(autouse=True)
def _clean_up() -> Iterator[None]:
    yield
    while LAUNCHED:
        LAUNCHED.pop().clean_up()
