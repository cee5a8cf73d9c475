"""The store in which processes find each other, where something else writes into it."""

from __future__ import annotations

import datetime
import queue
import socket
import threading
import time

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented

from tests.cluster_jobs import free_port
from torch_estimator.cluster.task import Task
from torch_estimator.distributed.group import Group
from torch_estimator.errors import ClusterError

FIRST = "torch-estimator 1/"


def client(port: int) -> TCPStore:
    while True:
        try:
            socket.create_connection(("localhost", port), timeout=1).close()
            break
        except OSError:
            time.sleep(0.05)
    return TCPStore("localhost", port, timeout=datetime.timedelta(seconds=30), wait_for_workers=False)


def task(kind: str, port: int) -> Task:
    cluster = {"chief": (f"localhost:{port}",), "worker": (f"localhost:{port + 1}",)}
    return Task(type=kind, cluster=cluster, rendezvous=f"localhost:{port}")


@pytest.mark.parametrize("members", ["0 1 7 abc", "0", "0 1"])
def test_members_that_the_chief_has_not_written_are_an_error_of_the_chief(members: str) -> None:
    port, outcomes = free_port(), queue.SimpleQueue[ClusterError]()

    def chief() -> None:
        with pytest.raises(ClusterError) as caught:
            Group(task("chief", port), "gloo", wait_secs=60, silence_secs=60)
        outcomes.put(caught.value)

    thread = threading.Thread(target=chief)
    thread.start()
    client(port).set(FIRST + "members", members)
    error = outcomes.get(timeout=50)
    thread.join()
    assert str(error) == (
        f"chief 0 has found {members!r} at localhost:{port} as the ranks of the members, which its chief has not "
        "written; see whether another program uses that address."
    )
    assert error.exit_status == 2


@pytest.mark.parametrize("members", [b"0 1 7 abc", b"", b"1", b"0 1 1", b"0 1 2", b"0 -1", b"\xff"])
def test_senseless_members_are_an_error_of_a_worker(members: bytes) -> None:
    port = free_port()
    store = TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    store.add("torch-estimator generation", 1)
    store.set(FIRST + "members", members)
    store.set(FIRST + "rank 0 is here", "life train ")
    with pytest.raises(ClusterError, match=r"^worker 0 has found '.*' at localhost:\d+ as the ranks of"):
        Group(task("worker", port), "gloo", wait_secs=60, silence_secs=60)
