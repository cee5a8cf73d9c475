"""Serve a fake Kubernetes until stdin is closed, or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from scripts.fake_kubernetes.jobs import Controllers
from scripts.fake_kubernetes.kubelet import Kubelet
from scripts.fake_kubernetes.server import Server
from scripts.fake_kubernetes.store import Store


class _Uvicorn(uvicorn.Server):
    """A server that leaves signals to `_serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(folder: Path, has_jobsets: bool, backoff_secs: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    store = Store()
    controllers = Controllers(store, backoff_secs)
    kubelet = Kubelet(store, folder / "pods")
    server = Server(store, kubelet, has_jobsets)
    ends, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ends.set)

    def read() -> None:
        sys.stdin.read()
        # The loop may be closed already.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(ends.set)

    threading.Thread(target=read, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        context = {"cluster": "fake", "user": "tester", "namespace": "default"}
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": url}}],
            "users": [{"name": "tester", "user": {"token": server.token}}],
            "contexts": [{"name": "fake", "context": context}],
            "current-context": "fake",
        }
        (folder / "kubeconfig").write_text(json.dumps(kubeconfig))
        http = _Uvicorn(uvicorn.Config(server, log_level="critical", lifespan="off", access_log=False))
        tasks = [asyncio.create_task(one) for one in (http.serve([listener]), controllers.run(), ends.wait())]
        print(f"listens at {url}", flush=True)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await kubelet.end()
        http.should_exit = http.force_exit = True
        await tasks[0]
        for task in tasks[1:]:
            task.cancel()
        for task in done:
            task.result()


parser = argparse.ArgumentParser(prog="python -m scripts.fake_kubernetes", description=__doc__)
parser.add_argument("--folder", type=Path, required=True, help="for the kubeconfig, and for what pods have on disk")
parser.add_argument("--jobset", action="store_true", help="have the JobSet API")
parser.add_argument("--backoff-secs", type=float, default=0.1, help="before the first replacement (default: 0.1)")
options = parser.parse_args()
asyncio.run(_serve(options.folder.resolve(), options.jobset, options.backoff_secs))
