"""A console in a thread of the test's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from torch_estimator.console.app import make_app
from torch_estimator.console.sources import Sources
from torch_estimator.web.connection import listen


@contextmanager
def console(jobs: Path | None, logdir: Path | None = None, registry: str | None = None) -> Iterator[str]:
    """Show directories until the block ends; its value is the console's address, without a slash at the end."""
    sources = Sources(*(None if one is None else str(one) for one in (jobs, logdir, registry)))
    app = make_app(sources, host="127.0.0.1")
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
