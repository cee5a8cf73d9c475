"""Processes of a mesh receive all messages, of any size and dtype, and notice when another process is gone."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]  # documented

from torch_estimator.distributed.mesh import ADDRESS_KEY, AllGatherMesh


@contextlib.contextmanager
def meshes(size: int, store: Store | None = None) -> Iterator[list[AllGatherMesh]]:
    store = store or HashStore()
    with ThreadPoolExecutor(size) as pool:
        made = list(pool.map(lambda rank: AllGatherMesh(store, rank, range(size), ("localhost", 1), 20), range(size)))
    try:
        yield made
    finally:
        for mesh in made:
            mesh.close()


def gathered(made: list[AllGatherMesh], sent: list[Tensor]) -> list[Tensor]:
    received = [torch.zeros(len(sent), len(sent[0]), dtype=sent[0].dtype) for _ in sent]
    with ThreadPoolExecutor(len(made)) as pool:
        for done in [pool.submit(mesh.all_gather, *both, 60) for mesh, *both in zip(made, sent, received, strict=True)]:
            done.result(timeout=60)
    return received


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("numbers", [0, 1, 1000, 3_000_000])
def test_all_processes_receive_all_tensors(size: int, numbers: int) -> None:
    with meshes(size) as made:
        for _ in range(2):
            sent = [torch.randn(numbers) for _ in range(size)]
            for received in gathered(made, sent):
                assert torch.equal(received, torch.stack(sent))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float64])
def test_other_dtypes_are_exchanged(dtype: torch.dtype) -> None:
    with meshes(2) as made:
        for received in gathered(made, [torch.full((3,), rank + 1, dtype=dtype) for rank in range(2)]):
            assert received.tolist() == [[1, 1, 1], [2, 2, 2]]


def test_a_waiting_process_notices_that_another_one_is_gone() -> None:
    with meshes(3) as made:
        made[1].close()
        with pytest.raises(OSError, match=r"closed|reset|pipe"):
            made[0].all_gather(torch.ones(4), torch.empty(3, 4), 60)


def test_waiting_for_a_silent_process_times_out() -> None:
    with meshes(2) as made, pytest.raises(OSError, match=r"no message for 0\.1 s"):
        made[0].all_gather(torch.ones(4), torch.empty(2, 4), 0.1)


def test_connections_without_the_token_are_refused() -> None:
    store = HashStore()

    def intrude() -> None:
        _, _, port = store.get(ADDRESS_KEY.format(0)).decode().partition(" ")
        for greeting in (b"", b"who am I", bytes(36)):
            with socket.create_connection(("localhost", int(port))) as connection:
                connection.sendall(greeting)

    stranger = threading.Thread(target=intrude)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(AllGatherMesh, store, 0, range(2), ("localhost", 1), 20)
        stranger.start()
        stranger.join()
        second = AllGatherMesh(store, 1, range(2), ("localhost", 1), 20)
        made = [first.result(timeout=20), second]
    assert gathered(made, [torch.zeros(1), torch.ones(1)])[0].tolist() == [[0.0], [1.0]]
    for mesh in made:
        mesh.close()


def test_waiting_for_a_connection_times_out() -> None:
    with pytest.raises(OSError, match="timed out"):
        AllGatherMesh(HashStore(), 0, range(2), ("localhost", 1), 0.2)


def test_connections_are_closed_after_half_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with meshes(2) as made:
        monkeypatch.setattr(made[0], "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made[0].all_gather(torch.ones(30_000_000), torch.empty(2, 30_000_000), 60)
        with pytest.raises(OSError, match=r"closed|reset|pipe"):
            made[1].all_gather(torch.ones(30_000_000), torch.empty(2, 30_000_000), 60)


def test_alive_peers_are_known_after_sending_has_ended() -> None:
    with meshes(3) as made:
        made[0].shut_down_sending()
        assert made[0].alive_peers() == {1, 2}
        with pytest.raises(OSError, match=r"closed|reset|pipe"):
            made[1].all_gather(torch.ones(4), torch.empty(3, 4), 60)
        made[1].close()
        assert made[0].alive_peers() == {2}
