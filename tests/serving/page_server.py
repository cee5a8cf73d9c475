"""A server with the page, in a thread of the test's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from torch_estimator.registry import Registry
from torch_estimator.serving.app import ServingApp
from torch_estimator.serving.catalog import Found
from torch_estimator.serving.options import ServingOptions, VersionPolicy
from torch_estimator.serving.service import PredictionService
from torch_estimator.serving.worker import listen


@dataclass(frozen=True)
class RegistrySource:
    """The versions of a model in a registry."""

    registry: Registry
    model: str

    def find(self) -> Found:
        info = self.registry.read_model(self.model)
        versions = {one: self.registry.version_dir(self.model, one) for one in self.registry.versions(self.model)}
        return Found(versions, info.default, info.labels)


@dataclass(frozen=True)
class PageServer:
    """A running server.

    Attributes:
        url: Its address, without a slash at the end.
        service: Its service.
    """

    url: str
    service: PredictionService


@contextmanager
def serving(
    options: ServingOptions, policy: VersionPolicy | None = None, *, mounted_at: str = ""
) -> Iterator[PageServer]:
    """Serve until the block ends; with a registry, serve all its models.

    Args:
        options: The settings.
        policy: Which versions of the registry's models are loaded.
        mounted_at: Path of an application around the server, if it is a part of one.
    """
    service = PredictionService(options)
    if options.registry is not None:
        registry = Registry(options.registry)
        for model in registry.models():
            service.catalog.add(model, RegistrySource(registry, model), policy or VersionPolicy())
    listener = listen(options)
    app: Any = ServingApp(service)
    if mounted_at:
        app = Starlette(routes=[Mount(mounted_at, app)])
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", log_config=None, lifespan="on" if not mounted_at else "off"
    )
    server = uvicorn.Server(config)
    service.start()
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield PageServer(f"http://127.0.0.1:{listener.getsockname()[1]}", service)
    finally:
        server.should_exit = True
        thread.join()
        service.close()
        listener.close()
