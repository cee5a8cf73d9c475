"""A fake Kubernetes API server whose pods are processes of this machine, for tests and storms.

It has the resources that a job needs, in one namespace, with the semantics and the words of Kubernetes 1.33. From the
outside in: `server` speaks HTTP, `objects` says what is valid, `store` keeps the objects and their changes, `jobs` has
the controllers of Job and JobSet, and `kubelet` runs the pods. A test orders faults by `Fake.control`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Fake:
    """A fake Kubernetes that runs."""

    kubeconfig: Path
    url: str

    def control(self, **faults: object) -> None:
        """Set faults; those that `store.FAULTS` names last until they are set again, or all of them by `reset=True`.

        `cut=True` breaks all open streams once, `compact=True` forgets what a watch could still be told, and
        `out_of_memory=POD` kills a pod as the kernel would.
        """
        self._request("/fake", json.dumps(faults).encode())

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return all pods by name."""
        return {pod["metadata"]["name"]: pod for pod in self._request("/fake/pods")}

    def pid(self, pod: str) -> int:
        """Return the process of a pod that runs."""
        return int(self.pods()[pod]["status"]["containerStatuses"][0]["containerID"].removeprefix("process://"))

    def _request(self, path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(self.url + path, body) as answer:
            return json.load(answer)


@contextlib.contextmanager
def fake_kubernetes(folder: Path, *options: str) -> Iterator[Fake]:
    """Run a fake Kubernetes in a process of its own, which ends with its stdin."""
    command = [sys.executable, "-m", __name__, "--folder", str(folder), *options]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listens at ").strip()
        if not url:
            raise RuntimeError("The fake Kubernetes did not start; its message is above.")
        yield Fake(folder / "kubeconfig", url)
