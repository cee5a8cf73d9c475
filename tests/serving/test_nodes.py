"""Several processes that serve: they come with the load, go without it, and are replaced, and no request is lost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.storms.load import Load, post
from scripts.storms.server import ServerError, ServerProcess, client_ports, is_alive, kill_node, resident_mb
from tests.export.models import model_of
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.errors import InvalidValueError
from torch_estimator.export.writer import write_export
from torch_estimator.serving.nodes import Scaling
from torch_estimator.serving.options import ServedModel, ServingOptions

INSTANCES = [{"word": "a", "x": 1.0}, {"word": "b", "x": -2.0}, {"word": "c", "x": 0.5}]

# Enough work for the server that the clients, in one process themselves, can keep two nodes busy: of such a request the
# model takes ten times as long as a client does.
HEAVY_ROWS = 200
HIDDEN = (1000, 1000)

MANY_SECS = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The option that names a small model."""
    base = tmp_path_factory.mktemp("export")
    word, x = fc.categorical_column_with_hash_bucket("word", 10), fc.numeric_column("x")
    built = model_of([word, x], [x], hidden=HIDDEN)
    receiver = serving_input.raw_features(built.transform)
    write_export(base, module=built.module, transform=built.transform, head=built.head, receiver=receiver)
    return f"--model=small={base}"


def ask(server: ServerProcess, path: str = "/v1/models/small:predict", body: Any = None) -> Any:
    """Return the answer to a request; a prediction of one instance by default."""
    data = json.dumps({"instances": INSTANCES[:1]} if body is None else body).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", data, timeout=MANY_SECS) as response:
        return json.loads(response.read())


def metric(server: ServerProcess, pattern: str) -> float:
    """Return the sum of the metrics whose lines match."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=MANY_SECS) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if re.match(pattern, line))


def wait_until(is_so: Callable[[], bool]) -> None:
    """Look again and again until something is so."""
    deadline = time.monotonic() + MANY_SECS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def refuses_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


def load_of(server: ServerProcess, **settings: Any) -> Load:
    return Load(server.port, "small", INSTANCES, **settings)


NONE_LEFT = "none is left until the next connection"


def test_the_first_connection_starts_a_node_and_silence_ends_it(model: str) -> None:
    with ServerProcess(model, "--min-nodes", "0", "--max-nodes", "2", "--idle-secs", "0.5") as server:
        assert server.nodes() == []
        # Under 20 MB here. Anything large that it imports by mistake adds more than the rest.
        assert resident_mb(server.process.pid) < 30

        first = ask(server)
        assert len(first["predictions"]) == 1
        server.wait_for_line(NONE_LEFT)
        assert server.nodes() == []

        assert ask(server) == first
        server.wait_for_line(NONE_LEFT, 2)
        assert server.end() == 0


def test_the_parent_imports_no_library(model: str) -> None:
    code = (
        "import sys; before = set(sys.modules); import torch_estimator.serving.nodes;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(printed.split()) <= {"torch_estimator", "lazy_loader"}


def test_nodes_come_under_load_and_go_one_by_one_and_no_request_fails(model: str) -> None:
    async def scenario(server: ServerProcess) -> None:
        heavy = load_of(server, connections=8, rows=HEAVY_ROWS, reconnecting=0.02)
        await asyncio.to_thread(server.wait_for_line, r"Node 2 .* is ready")
        await heavy.until_answered(50)
        light = load_of(server, connections=3, reconnecting=0.2, pause_secs=0.05)
        await heavy.stop()
        await asyncio.to_thread(server.wait_for_line, "has ended; 1 left")
        await light.until_answered(10)
        await light.stop()
        await asyncio.to_thread(server.wait_for_line, NONE_LEFT)
        assert heavy.record.failures + light.record.failures == []

    with ServerProcess(model, "--min-nodes", "0", "--max-nodes", "2", "--idle-secs", "1") as server:
        asyncio.run(scenario(server))


def test_clients_that_pause_do_not_notice_that_nodes_come_and_go(model: str) -> None:
    # The pauses are longer than the time after which a node ends. It closes the connections that are silent then, and a
    # client sends its next request on a new one, as HTTP libraries do.
    async def scenario(server: ServerProcess) -> None:
        load = load_of(server, connections=4, reconnecting=0.3, pause_secs=2.0)
        await asyncio.to_thread(server.wait_for_line, "has not been needed for 0.1 s and ends", 3)
        await load.until_answered(4)
        await load.stop()
        assert load.record.failures == []

    with ServerProcess(model, "--min-nodes", "0", "--max-nodes", "2", "--idle-secs", "0.1") as server:
        asyncio.run(scenario(server))


def test_a_killed_node_is_replaced_and_only_its_own_requests_fail(model: str) -> None:
    async def scenario(server: ServerProcess) -> None:
        load = load_of(server, connections=16, rows=HEAVY_ROWS, reconnecting=0.01)
        await load.until_answered(50)
        victim = server.nodes()[0]
        kill_node(victim, server.port, load.expect_loss)
        await asyncio.to_thread(server.wait_for_line, r"Node \d \(process \d+\) is ready", 3)
        # It gets its share of the connections, although the clients keep theirs.
        replacement = server.nodes()[-1]
        await asyncio.to_thread(wait_until, lambda: len(client_ports(replacement, server.port)) >= 5)
        await load.stop()

        assert load.record.failures == []
        assert load.record.lost <= 16
        assert victim not in server.nodes()
        assert f"process {victim}) was killed by SIGKILL; starting another now." in server.log
        # What the killed one has counted is not forgotten, and what it had in its hands no longer counts as running. A
        # request is counted after it is answered, so those in its hands may be missing on either side.
        counted = metric(server, "te_requests_total{.*predict")
        assert abs(counted - load.record.answered) <= load.record.lost
        await asyncio.to_thread(wait_until, lambda: metric(server, "te_requests_running") == 1)

    with ServerProcess(model, "--workers", "2") as server:
        asyncio.run(scenario(server))


def test_connections_are_shared_evenly(model: str) -> None:
    with ServerProcess(model, "--workers", "2") as server:
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        shares: list[int] = []

        def all_are_accepted() -> bool:
            shares[:] = [len(client_ports(node, server.port)) for node in server.nodes()]
            return sum(shares) == 20

        wait_until(all_are_accepted)
        assert min(shares) >= 5
        for connection in connections:
            connection.close()


def test_sigterm_during_load_answers_what_has_arrived(model: str) -> None:
    async def scenario(server: ServerProcess) -> None:
        load = load_of(server, connections=8, rows=20)
        await load.until_answered(50)
        load.expect_end()
        assert await asyncio.to_thread(server.end) == 0
        await load.stop()
        assert load.record.failures == []
        assert load.record.sent_again == 0

    with ServerProcess(model, "--workers", "2") as server:
        nodes = server.nodes()
        asyncio.run(scenario(server))
        assert not any(map(is_alive, nodes))


def test_a_second_signal_does_not_wait_for_requests(model: str) -> None:
    with ServerProcess(model, "--workers", "2", "--drain-secs", "1000") as server:
        nodes = server.nodes()
        request = post("/v1/models/small:predict", json.dumps({"instances": INSTANCES}).encode())
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(request[:-5])
            wait_until(lambda: any(client_ports(node, server.port) for node in nodes))
            server.process.send_signal(signal.SIGINT)
            server.wait_for_line("ends; a second signal ends it at once")
            assert server.end(signal.SIGINT) == 130
        assert not any(map(is_alive, nodes))


def test_a_request_that_is_on_its_way_is_answered_when_the_server_ends(model: str) -> None:
    with ServerProcess(model, "--min-nodes", "1", "--max-nodes", "1") as server:
        (node,) = server.nodes()
        request = post("/v1/models/small:predict", json.dumps({"instances": INSTANCES}).encode())
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.settimeout(MANY_SECS)
            client.sendall(request[:-5])
            wait_until(lambda: bool(client_ports(node, server.port)))
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: refuses_connections(server.port))
            client.sendall(request[-5:])
            with client.makefile("rb") as answer:
                head, _, body = answer.read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head
        assert len(json.loads(body)["predictions"]) == 3
        assert server.process.wait(MANY_SECS) == 0


def test_nodes_do_not_outlive_a_killed_parent(model: str) -> None:
    with ServerProcess(model, "--workers", "2") as server:
        nodes = server.nodes()
        assert len(nodes) == 2
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, nodes)))


def test_one_worker_is_one_process(model: str) -> None:
    with ServerProcess(model, "--workers", "1") as server:
        assert len(ask(server)["predictions"]) == 1
        assert server.nodes() == []
        assert server.end(signal.SIGINT) == 130


def test_a_node_that_cannot_start_again_is_tried_again(model: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    with ServerProcess(model, "--workers", "2", "--token-file", str(tokens)) as server:
        tokens.rename(tmp_path / "away")
        os.kill(server.nodes()[0], signal.SIGKILL)
        line = server.wait_for_line("has ended with status 2")
        assert f"the token file {tokens} cannot be read" in line
        assert line.endswith("starting another in 1 s.")
        (tmp_path / "away").rename(tokens)
        server.wait_for_line(r"Node \d \(process \d+\) is ready", 3)
        assert len(server.nodes()) == 2


def test_a_server_that_cannot_start_says_so_once(model: str, tmp_path: Path) -> None:
    with pytest.raises(ServerError) as raised:
        ServerProcess(model, "--workers", "2", "--token-file", str(tmp_path / "tokens"))
    printed = str(raised.value).partition("the log is:\n")[2]
    assert printed.splitlines() == [
        f"estimator: error: the token file {tmp_path}/tokens cannot be read: No such file or directory."
    ]


def test_a_directory_that_does_not_exist_is_noticed_before_the_first_request(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"estimator: error: the directory of model small, .*, does not exist\."):
        ServerProcess(f"--model=small={tmp_path}/nothing", "--min-nodes", "0")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"min_nodes": 3, "max_nodes": 2}, "min_nodes must be at most max_nodes, but got 3 and 2"),
        ({"min_nodes": -1}, "min_nodes must be at least 0"),
        ({"max_nodes": 0}, "max_nodes at least 1"),
        ({"workers": 2, "max_nodes": 3}, "workers is a fixed number of processes"),
        ({"min_nodes": 0, "grpc_port": 8500}, "no process is there to answer the first call over gRPC"),
        ({"min_nodes": 0, "idle_secs": 0.0}, "idle_secs must be positive and finite, but got 0.0"),
        ({"timeout_secs": float("1e400")}, "timeout_secs must be positive and finite, but got inf"),
        ({"max_body_mb": float("nan")}, "max_body_mb must be positive and finite, but got nan"),
        ({"max_delay_ms": float("inf")}, "max_delay_ms must be at least 0 and finite, but got inf"),
    ],
)
def test_numbers_that_contradict_each_other_or_have_no_end_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidValueError, match=problem):
        ServingOptions(models=(ServedModel(name="small", path="nowhere"),), **settings)


def test_a_steady_load_neither_starts_nor_ends_nodes() -> None:
    scaling = Scaling(least=0, most=4, idle_secs=10.0)
    scaling.restart(0.0)
    nodes = 1
    seen = []
    for look in range(1, 200):
        nodes = scaling.wanted(look / 2, nodes, busy_cores=1.5, has_requests=True, has_backlog=False)
        seen.append(nodes)
    assert seen == sorted(seen)
    assert set(seen[-150:]) == {3}


def test_nodes_that_are_not_needed_end_together_once_there_are_no_requests() -> None:
    scaling = Scaling(least=1, most=4, idle_secs=10.0)
    scaling.restart(0.0)
    assert scaling.wanted(1.0, 4, busy_cores=3.9, has_requests=True, has_backlog=False) == 4
    assert scaling.wanted(10.9, 4, busy_cores=0.0, has_requests=False, has_backlog=False) == 4
    assert scaling.wanted(11.1, 4, busy_cores=0.0, has_requests=False, has_backlog=False) == 1


def test_connections_that_nobody_accepts_start_a_node() -> None:
    scaling = Scaling(least=0, most=2, idle_secs=10.0)
    scaling.restart(0.0)
    looks = [scaling.wanted(at, 1, busy_cores=0.0, has_requests=False, has_backlog=True) for at in (0.5, 1.0)]
    assert looks == [1, 2]
