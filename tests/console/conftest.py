"""Jobs on disk, and a visitor of the console that shows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.console.corpus import Corpus
from tests.in_process import InProcess
from torch_estimator.console.app import Context, make_app
from torch_estimator.console.sources import Sources


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path, time.time())


Visit = Callable[..., httpx.Client]


@pytest.fixture
def visit() -> Iterator[Visit]:
    """Opens a console that shows directories; its background thread runs only where it is asked for."""
    started: list[Context] = []

    def visit(
        jobs: Any = None,
        *,
        logdir: Any = None,
        registry: Any = None,
        server: str | None = None,
        in_background: bool = False,
        **options: Any,
    ) -> httpx.Client:
        given = (None if one is None else str(one) for one in (jobs, logdir, registry, server))
        sources = Sources(*given)
        app = make_app(sources, host="127.0.0.1", **options)
        if in_background:
            started.append(app.state.context)
            started[-1].index.start()
        return httpx.Client(transport=InProcess(app), base_url="http://127.0.0.1:8600")

    yield visit
    for context in started:
        context.index.close()
