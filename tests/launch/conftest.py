"""No test leaves processes, also where it fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launch.launched import LAUNCHED


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    while LAUNCHED:
        LAUNCHED.pop().clean_up()
