"""A server with the page, in a thread of the test's process."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.serving.echo_export import write_echo
from torch_estimator.registry import Registry
from torch_estimator.serving.app import ServingApp
from torch_estimator.serving.catalog import RegistrySource
from torch_estimator.serving.options import ServingOptions, VersionPolicy
from torch_estimator.serving.service import PredictionService
from torch_estimator.web.connection import listen


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
    listener = listen(options.host, options.port)
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


def write_registry(base: Path, *, description: str = "") -> Registry:
    """Write a registry with the versions 1, 2 and 3 of a model ``echo``, of which 2 is the default."""
    export = write_echo(base / "export")
    # The outputs of the recorded instances are made up, so do without them while the export is checked.
    (export / "assets.extra").rename(base / "extra")
    registry = Registry(base / "registry")
    registry.create_model("echo", description=f"Says {description}")
    registry.create_version("echo", 1, export, description=f"First {description}")
    for number in ("2", "3"):
        shutil.copytree(base / "registry" / "echo" / "1", base / "registry" / "echo" / number)
        manifest = base / "registry" / "echo" / number / "manifest.json"
        content = {**json.loads(manifest.read_text()), "version": int(number), "metrics": {"eval": {"auc": 0.875}}}
        manifest.write_text(json.dumps(content))
    for number in ("1", "2", "3"):
        shutil.copytree(base / "extra", base / "registry" / "echo" / number / "assets.extra")
    registry.set_default("echo", 2)
    registry.update("echo", 3, labels=["canary"])
    return registry
