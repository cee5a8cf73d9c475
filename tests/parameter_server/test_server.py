"""A server replies to requests, applies each push once, and ends with the training."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
import zmq

from tests.cluster_jobs import free_port
from tests.parameter_server.relay import Relay
from torch_estimator.errors import RESTART_ME, ClusterError, NanLossDuringTrainingError
from torch_estimator.parameter_server.client import ServerClient, TrainingIsOver
from torch_estimator.parameter_server.plan import DensePlan, GroupPlan, ServerPlan, TablePlan
from torch_estimator.parameter_server.protocol import (
    PULLS,
    PUSHES,
    STOP_ALL,
    Header,
    Kind,
    Push,
    pack_arrays,
    pack_exchange,
    pack_json,
    unpack_arrays,
    unpack_parameters,
)
from torch_estimator.parameter_server.server import ParameterServer

PLAN = ServerPlan(
    dtype="float32",
    groups=(
        GroupPlan("GradientDescent", {"lr": 1.0}, ("lr",)),
        GroupPlan("torch.optim.SGD", {"lr": 1.0, "momentum": 0.5}, ("lr",)),
    ),
    dense=(DensePlan("bias", (2,), 0), DensePlan("kernel", (1, 3), 1)),
    tables=(TablePlan("wide", 4, 1, 0),),
)
ARRAYS = {
    "dense/0/value": np.zeros(2, np.float32),
    "dense/1/value": np.zeros((1, 3), np.float32),
    "table/0/value": np.arange(4, dtype=np.float32).reshape(4, 1),
}


GIVEN: dict[str, Any] = {
    "plan": PLAN.as_json(),
    "about": {"job": "one"},
    "last_step": None,
    "names": ["chief 0", "worker 0"],
    "silence_secs": None,
    "max_staleness": None,
    "cursors": {},
}


def pushing(header: Header, gradient: float = 1.0) -> dict[int, list[bytes]]:
    """Return a request to the first server that pushes equal gradients."""
    push = Push(
        np.array([0.5, 0.25]),
        np.ones(2, np.uint8),
        np.full(5, gradient, np.float32),
        [(np.array([1, 3]), np.full((2, 1), gradient, np.float32))],
    )
    return {0: [pack_exchange(header, push, [np.empty(0, np.int64)])]}


class Served:
    """A server and a client of it."""

    def __init__(self, address: str, client: ServerClient, thread: threading.Thread) -> None:
        self.address, self.client, self._thread = address, client, thread

    def start(self, **content: Any) -> None:
        given = {**GIVEN, "step": 5, **content}
        self.client.start({0: (given, ARRAYS)})

    def push(self, header: Header, gradient: float = 1.0) -> Kind:
        ((reply, _),) = self.client.request(pushing(header, gradient)).values()
        return reply.kind

    def pull(self, *rows: int) -> tuple[Header, np.ndarray, np.ndarray]:
        header, wanted = self.client.header(Kind.EXCHANGE, PULLS), [np.array(rows, np.int64)]
        ((reply, frames),) = self.client.request({0: [pack_exchange(header, None, wanted)]}).values()
        dense, (of_table,) = unpack_parameters(frames[0], PLAN, wanted)
        return reply, dense, of_table[:, 0]

    def status(self) -> Any:
        return self.client.request_all(Kind.STATUS)[0][1]

    def has_ended(self) -> bool:
        self._thread.join(timeout=5)
        return not self._thread.is_alive()


@pytest.fixture
def served() -> Iterator[Served]:
    address = f"localhost:{free_port()}"
    server = ParameterServer("ps 0", address)

    def serve() -> None:
        with closing(server):
            server.serve()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    client = ServerClient("chief 0", 0, [address], wait_secs=60)
    with closing(client):
        yield Served(address, client, thread)
    if thread.is_alive():
        with closing(ServerClient("chief 0", 0, [address], wait_secs=60)) as last, suppress(TrainingIsOver):
            # The test may have asked the server to end, which it may do before it is asked again.
            last.is_over = lambda: not thread.is_alive()
            last.request_all(Kind.END)
    thread.join(timeout=15)


def test_gradients_are_applied_with_the_settings_of_their_push(served: Served) -> None:
    served.start()
    assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
    reply, dense, rows = served.pull(3, 0)
    assert reply.step == 6
    np.testing.assert_array_equal(dense, np.float32([-0.5, -0.5, -0.25, -0.25, -0.25]))
    np.testing.assert_array_equal(rows, np.float32([2.5, 0]))


def test_two_pushes_under_way_are_applied_once_each_though_their_replies_are_lost(served: Served) -> None:
    served.start()
    with (
        closing(Relay(served.address)) as relay,
        closing(ServerClient("worker 0", 1, [relay.address], wait_secs=60)) as client,
    ):
        client.request_all(Kind.HELLO)
        relay.loses_replies = True
        headers = [client.header(Kind.EXCHANGE, PUSHES) for _ in range(2)]
        requests = [pushing(header) for header in headers]
        for request in requests:
            client.send(request)
        while served.pull()[0].step < 7:
            time.sleep(0.01)
        relay.loses_replies = False
        relay.cut()
        replies = [client.collect(request)[0][0] for request in requests]
        assert [reply.number for reply in replies] == [header.number for header in headers]
        assert [reply.kind for reply in replies] == [Kind.OK, Kind.OK]
        # As if the first push was lost with its connection, and the second one was not.
        third, fourth = (client.header(Kind.EXCHANGE, PUSHES) for _ in range(2))
        again = Served(served.address, client, threading.Thread())
        for header in (fourth, third, fourth, third):
            assert again.push(header) is Kind.OK
    reply, dense, _ = served.pull()
    assert (reply.step, dense[0]) == (9, -2.0)


def changed(**parts: Any) -> Push:
    """Return a push with large gradients and some other parts."""
    whole = Push(
        np.array([0.5, 0.25]),
        np.ones(2, np.uint8),
        np.full(5, 3e38, np.float32),
        [(np.array([1, 3]), np.ones((2, 1), np.float32))],
    )
    return whole._replace(**parts)


@pytest.mark.parametrize(
    ("push", "error", "sentence"),
    [
        (
            changed(dense=np.array([1, 1, 1, np.inf, 1], np.float32)),
            NanLossDuringTrainingError,
            "The gradient of kernel became NaN or infinite at global step 6; try a smaller learning rate or look for "
            "invalid values in the input. ps 0 has not applied it: the last checkpoint holds the state before it.",
        ),
        (
            changed(tables=[(np.array([1, 3]), np.array([[1], [np.nan]], np.float32))]),
            NanLossDuringTrainingError,
            "The gradient of wide became NaN or infinite at global step 6; ",
        ),
        (
            changed(settings=np.array([0.5, np.nan])),
            ClusterError,
            "ps 0 refuses chief 0: lr of torch.optim.SGD came as nan, but settings of optimizers must be finite; see "
            "the schedule of lr.",
        ),
    ],
    ids=["dense", "table", "setting"],
)
def test_a_push_that_is_not_finite_is_refused_as_a_whole(
    served: Served, push: Push, error: type[Exception], sentence: str
) -> None:
    served.start()
    served.push(served.client.header(Kind.EXCHANGE, PUSHES))
    before, dense, rows = served.pull(0, 1, 2, 3)
    with pytest.raises(error, match="^" + re.escape(sentence)):
        served.client.request({0: [pack_exchange(served.client.header(Kind.EXCHANGE, PUSHES, 5), push, [rows[:0]])]})
    after, dense_after, rows_after = served.pull(0, 1, 2, 3)
    assert after.step == before.step
    np.testing.assert_array_equal(dense_after, dense)
    np.testing.assert_array_equal(rows_after, rows)


def test_large_gradients_are_applied_and_those_of_absent_parameters_ignored(served: Served) -> None:
    served.start()
    push = changed(present=np.array([1, 0], np.uint8), dense=np.array([3e38, 3e38] + 3 * [np.nan], np.float32))
    served.client.request(
        {0: [pack_exchange(served.client.header(Kind.EXCHANGE, PUSHES), push, [np.empty(0, np.int64)])]}
    )
    np.testing.assert_array_equal(served.pull()[1], np.float32([-1.5e38, -1.5e38, 0, 0, 0]))


def test_a_push_that_is_sent_again_is_applied_once(served: Served) -> None:
    served.start()
    header = served.client.header(Kind.EXCHANGE, PUSHES)
    served.client.request_all(Kind.HELLO)
    assert served.push(header) is Kind.OK
    assert served.push(header) is Kind.OK
    reply, dense, _ = served.pull()
    assert (reply.step, dense[0]) == (6, -0.5)
    with closing(ServerClient("chief 0", 0, [served.address], wait_secs=60)) as client:
        client.request_all(Kind.HELLO)
        # HELLO does not replace the process before; only an exchange does.
        served.pull()
        again = Served(served.address, client, threading.Thread())
        header = client.header(Kind.EXCHANGE, PUSHES)._replace(number=header.number)
        assert again.push(header) is Kind.OK
        assert again.push(header) is Kind.OK
    with pytest.raises(ClusterError) as refused:
        served.pull()
    assert str(refused.value) == (
        "ps 0 refuses chief 0: Another process has come as chief 0 since; see whether two have the same TF_CONFIG."
    )
    with closing(ServerClient("worker 0", 1, [served.address], wait_secs=60)) as client:
        assert Served(served.address, client, threading.Thread()).pull()[0].step == 7
        client.request_all(Kind.LEAVE)


def test_a_start_that_is_sent_again_takes_nothing_back(served: Served) -> None:
    start = pack_arrays(served.client.header(Kind.START), {**GIVEN, "step": 5}, ARRAYS)
    served.client.request({0: start})
    assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
    served.client.request({0: start})
    assert served.pull()[0].step == 6
    served.start()
    assert served.pull()[0].step == 5


def test_staleness_does_not_wait_for_a_worker_that_is_disconnected(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.start(max_staleness=0)
    served.pull()
    with closing(ServerClient("worker 0", 1, [served.address], wait_secs=60)) as client:
        Served(served.address, client, threading.Thread()).pull()
        ahead = threading.Thread(target=served.push, args=(served.client.header(Kind.EXCHANGE, PUSHES),))
        ahead.start()
        ahead.join(timeout=1.5)
        assert ahead.is_alive()
    ahead.join(timeout=10)
    assert not ahead.is_alive()
    assert "The connection to worker 0 has ended; no other worker waits for it." in caplog.text
    for _ in range(3):
        served.push(served.client.header(Kind.EXCHANGE, PUSHES))
    with closing(ServerClient("worker 0", 1, [served.address], wait_secs=60)) as client:
        Served(served.address, client, threading.Thread()).pull()
        # The worker that is back starts where the slowest one is, so that none waits for it to catch up.
        served.pull()


def test_a_request_held_back_is_dropped_with_its_worker(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    served.start(max_staleness=0)
    served.pull()
    with closing(ServerClient("worker 0", 1, [served.address], wait_secs=60)) as client:
        Served(served.address, client, threading.Thread()).pull()
        client.request_all(Kind.HELLO)
        header = client.header(Kind.EXCHANGE, PUSHES)
        rows = [(np.array([1]), np.ones((1, 1), np.float32))]
        push = Push(np.zeros(2), np.ones(2, np.uint8), np.ones(5, np.float32), rows)
        client.send({0: [pack_exchange(header, push, [np.empty(0, np.int64)])]})
        time.sleep(0.5)
    with closing(ServerClient("worker 0", 1, [served.address], wait_secs=60)) as client:
        time.sleep(1.5)
        client.request_all(Kind.HELLO)
        time.sleep(1.5)
        served.status()
    assert caplog.text.count("The connection to worker 0 has ended; no other worker waits for it.") == 1
    assert caplog.text.count("worker 0 is back.") == 1
    assert "Another process" not in caplog.text


def test_a_server_that_shuts_down_stays_for_connected_workers_and_no_longer() -> None:
    address, ended = f"localhost:{free_port()}", list[object]()
    server = ParameterServer("ps 0", address)

    def serve() -> None:
        with closing(server):
            try:
                server.serve()
            except SystemExit as error:
                ended.append(error.code)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with closing(ServerClient("worker 0", 1, [address], wait_secs=60)) as refused:
        refused.request_all(Kind.HELLO)
        with closing(ServerClient("chief 0", 0, [address], wait_secs=60)) as client:
            chief = Served(address, client, thread)
            chief.start()
            refused.request_all(Kind.STATUS)
            server.shut_down()
            chief.pull()
            thread.join(timeout=1.5)
            assert thread.is_alive()
    # Neither of the two has sent LEAVE.
    assert chief.has_ended()
    assert ended == [143]


def test_a_server_ends_although_its_signal_comes_again_and_again() -> None:
    server, sent, ended = ParameterServer("ps 0", f"localhost:{free_port()}"), list[int](), threading.Event()

    def send() -> None:
        while not ended.wait(0.1) and len(sent) < 50:
            sent.append(signal.SIGTERM)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: server.shut_down())
    thread = threading.Thread(target=send)
    thread.start()
    try:
        with closing(server), pytest.raises(SystemExit):
            server.serve()
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGTERM, before)
    assert len(sent) < 50


@pytest.mark.parametrize(
    ("last_step", "waits_for"),
    [(None, "the chief or a worker to come back"), (5, "the chief to save that and to end it")],
)
def test_a_server_whose_workers_are_all_gone_logs_that_and_ends(
    last_step: int | None, waits_for: str, caplog: pytest.LogCaptureFixture
) -> None:
    address, ended, ahead = f"localhost:{free_port()}", list[str](), [0.0]
    server = ParameterServer("ps 0", address, wait_secs=40, clock=lambda: time.monotonic() + ahead[0])

    def serve() -> None:
        with closing(server):
            try:
                server.serve()
            except ClusterError as error:
                ended.append(str(error))

    def wait_for(text: str) -> None:
        deadline = time.monotonic() + 30
        while text not in caplog.text:
            assert time.monotonic() < deadline, caplog.text
            time.sleep(0.05)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with closing(ServerClient("chief 0", 0, [address], wait_secs=60)) as client:
        chief = Served(address, client, thread)
        chief.start(last_step=last_step)
        chief.status()
        # The chief is silent, but connected.
        ahead[0] += 100
        time.sleep(1.5)
        assert thread.is_alive()
    # A worker that has lost its connection makes a new one, and sends nothing before its next step.
    with closing(ServerClient("chief 0", 0, [address], wait_secs=60)):
        time.sleep(1.5)
        ahead[0] += 100
        time.sleep(1.5)
        assert thread.is_alive()
    time.sleep(1.5)
    ahead[0] += 20
    wait_for(f"ps 0 is at global step 5, and waits for {waits_for}.")
    assert thread.is_alive()
    ahead[0] += 20
    assert chief.has_ended()
    (told,) = ended
    assert told.startswith(f"ps 0 waited 40 s (session_creation_timeout_secs) for {waits_for}, and none has, from")


def test_a_worker_that_is_ahead_waits_until_the_slowest_goes_on_or_leaves(served: Served) -> None:
    served.start(max_staleness=1)
    with closing(ServerClient("worker 0", 1, [served.address], wait_secs=60)) as client:
        slow = Served(served.address, client, threading.Thread())
        slow.pull()
        served.pull()
        assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
        ahead = threading.Thread(target=served.push, args=(served.client.header(Kind.EXCHANGE, PUSHES),))
        ahead.start()
        while slow.pull()[0].step < 7:
            assert ahead.is_alive()
        # The push was applied, but its reply is held back.
        ahead.join(timeout=0.2)
        assert ahead.is_alive()
        assert (served.client.waits_for(), client.waits_for()) == (["ps 0"], [])
        assert slow.push(client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
        ahead.join(timeout=10)
        assert not ahead.is_alive()
        assert served.client.waits_for() == []
        again = threading.Thread(target=served.push, args=(served.client.header(Kind.EXCHANGE, PUSHES),))
        again.start()
        again.join(timeout=0.2)
        assert again.is_alive()
        client.request_all(Kind.LEAVE)
        again.join(timeout=10)
        assert not again.is_alive()


def test_the_state_of_a_server_can_be_restored(served: Served) -> None:
    served.start()
    served.push(served.client.header(Kind.EXCHANGE, PUSHES))
    ((header, _, arrays),) = served.client.state()
    served.push(served.client.header(Kind.EXCHANGE, PUSHES))
    expected = served.client.state()[0][2]
    served.client.start({0: ({**GIVEN, "step": header.step}, arrays)})
    served.push(served.client.header(Kind.EXCHANGE, PUSHES))
    ((_, _, again),) = served.client.state()
    assert again.keys() == expected.keys() == {*ARRAYS, "dense/1/momentum_buffer"}
    for name, one in expected.items():
        np.testing.assert_array_equal(again[name], one, err_msg=name)


# Larger than the buffers of a connection.
LARGE = ServerPlan(
    dtype="float32",
    groups=(
        GroupPlan("Adam", {"lr": 0.1, "betas": [0.9, 0.999], "epsilon": 1e-8}, ("lr",)),
        GroupPlan("GradientDescent", {"lr": 1.0}, ()),
        GroupPlan("Adagrad", {"lr": 1.0}, ()),
    ),
    dense=(DensePlan("kernel", (2**20,), 0), DensePlan("bias", (2**20,), 1)),
    tables=(TablePlan("wide", 2**16, 16, 1), TablePlan("deep", 2**16, 16, 2)),
)


def test_a_state_that_is_read_during_pushes_is_of_one_moment(served: Served) -> None:
    kernel, table = np.zeros(2**20, np.float32), np.zeros((2**16, 16), np.float32)
    given = {
        "dense/0/value": kernel,
        "dense/0/m": kernel,
        "dense/0/v": kernel,
        "dense/0/step": np.zeros((), np.float32),
        "dense/1/value": kernel,
        "table/0/value": table,
        "table/1/value": table,
        "table/1/accumulator": np.ones_like(table),
    }
    served.client.start({0: ({**GIVEN, "plan": LARGE.as_json(), "step": 5}, given)})
    rows = np.arange(2**16)
    push = Push(np.array([0.1]), np.ones(2, np.uint8), np.ones(2**21, np.float32), [(rows, table + 1)] * 2)

    def pushed() -> dict[str, np.ndarray]:
        header = served.client.header(Kind.EXCHANGE, PUSHES)
        served.client.request({0: [pack_exchange(header, push, [rows[:0]] * 2)]})
        return served.client.state()[0][2]

    pushed()
    expected = served.client.state()[0][2]
    with (
        closing(Relay(served.address)) as relay,
        closing(ServerClient("worker 0", 1, [relay.address], wait_secs=60)) as client,
    ):
        client.request_all(Kind.HELLO)
        state = {0: [client.header(Kind.STATE).pack()]}
        pull = {0: [pack_exchange(client.header(Kind.EXCHANGE, PULLS), None, [rows] * 2)]}
        relay.lets_replies_through.clear()
        client.send(state)
        client.send(pull)
        client.send({0: pack_json(client.header(Kind.CURSOR), {"row": 7})})
        while "1" not in served.client.state()[0][1]["cursors"]:
            # The requests of one connection are handled in their order.
            pass
        pushed()
        pushed()
        later = pushed()
        relay.lets_replies_through.set()
        header, frames = client.collect(state)[0]
        arrays = unpack_arrays(frames)[1]
        pulled, (message,) = client.collect(pull)[0]
        dense, tables = unpack_parameters(message, LARGE, [rows] * 2)
    assert header.step == pulled.step == 6
    assert arrays.keys() == given.keys()
    for name, one in expected.items():
        assert not np.array_equal(one, later[name])
        np.testing.assert_array_equal(arrays[name], one, err_msg=name)
    np.testing.assert_array_equal(dense, np.concatenate([expected["dense/0/value"], expected["dense/1/value"]]))
    for index, one in enumerate(tables):
        np.testing.assert_array_equal(one, expected[f"table/{index}/value"])


def test_a_server_that_stops_answering_is_named_soon_and_once(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "worker 0" in record.getMessage()]

    def answer_once_missed() -> None:
        while not told():
            time.sleep(0.01)
        relay.lets_replies_through.set()

    caplog.set_level(logging.INFO)
    served.start()
    with (
        closing(Relay(served.address)) as relay,
        closing(ServerClient("worker 0", 1, [relay.address], wait_secs=60)) as client,
    ):
        client.log_every_secs = 30
        client.request_all(Kind.HELLO)
        relay.lets_replies_through.clear()
        answering = threading.Thread(target=answer_once_missed, daemon=True)
        answering.start()
        assert Served(relay.address, client, answering).push(client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
        answering.join()
        missed, answered = told()
    assert re.fullmatch(rf"worker 0 has waited \d+ s for ps 0 at {relay.address}\.", missed)
    assert re.fullmatch(r"ps 0 has answered worker 0 after \d+ s\.", answered)


def test_input_cursors_are_kept_for_workers_that_come_back(served: Served) -> None:
    served.start(cursors={"0": {"row": 7}, "1": {"row": 3}})
    told = served.client.request_all(Kind.HELLO)[0][1]
    assert (told["job"], told["position"], told["since"]) == ("one", {"row": 7}, 0)
    served.client.report_cursor({"row": 9})
    served.push(served.client.header(Kind.EXCHANGE, PUSHES))
    told = served.client.request_all(Kind.HELLO)[0][1]
    assert (told["position"], told["since"]) == ({"row": 9}, 1)
    cursors = served.client.state()[0][1]["cursors"]
    assert cursors == {"0": {"row": 9, "since": 1}, "1": {"row": 3, "since": 0}}
    served.start(cursors=cursors)
    told = served.client.request_all(Kind.HELLO)[0][1]
    assert (told["position"], told["since"]) == ({"row": 9, "since": 1}, 1)
    served.client.report_cursor({"row": 10})
    told = served.client.request_all(Kind.HELLO)[0][1]
    assert (told["position"], told["since"]) == ({"row": 10}, 0)


def test_nothing_is_applied_after_the_last_step(served: Served) -> None:
    served.start(last_step=6)
    assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
    assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OVER
    assert served.client.state()[0][2]["dense/0/value"].tolist() == [-0.5, -0.5]


def test_a_worker_that_leaves_may_stop_all_others(served: Served) -> None:
    served.start()
    with closing(ServerClient("worker 0", 1, [served.address], wait_secs=60)) as worker:
        worker.request_all(Kind.HELLO)
        assert served.status() == {"active": [0, 1], "left": [], "silent": []}
        worker.request_all(Kind.LEAVE, STOP_ALL)
    assert served.status() == {"active": [0], "left": [1], "silent": []}
    assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OVER


def test_a_silent_worker_is_named_and_not_waited_for(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.start(silence_secs=1.5)
    with closing(ServerClient("worker 0", 1, [served.address], wait_secs=60)) as worker:
        worker.request_all(Kind.HELLO)
        deadline = time.monotonic() + 20
        while served.status() != {"active": [0], "left": [], "silent": [1]}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        worker.request_all(Kind.STATUS)
        assert served.status() == {"active": [0, 1], "left": [], "silent": []}
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("worker 0 ")]
    assert told[0].startswith("worker 0 has sent nothing for 1.5 s (silence_secs of ParameterServerStrategy): it hangs")
    assert told[1] == "worker 0 is back."


def test_a_server_ends_when_the_chief_has_ended_training_and_all_workers_know(served: Served) -> None:
    served.start()
    with closing(ServerClient("worker 0", 1, [served.address], wait_secs=60)) as worker:
        worker.request_all(Kind.HELLO)
        served.client.request_all(Kind.END)
        header = worker.header(Kind.EXCHANGE, PULLS)
        ((reply, _),) = worker.request({0: [pack_exchange(header, None, [np.empty(0, np.int64)])]}).values()
        assert reply.kind is Kind.OVER
        worker.request_all(Kind.LEAVE)
    assert served.has_ended()


def test_messages_of_other_programs_and_versions_are_refused(served: Served) -> None:
    context: zmq.Context[Any] = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.RCVTIMEO, 5000)
    stranger.connect(f"tcp://{served.address}")
    told = []
    for message in (b"GET / HTTP/1.1", b"TEPS" + bytes([9, 0]) + bytes(42)):
        stranger.send(message)
        told.append(stranger.recv_multipart()[1].decode())
    context.destroy(linger=0)
    assert "does not belong to a torch-estimator cluster" in told[0]
    assert "another version of torch-estimator, whose messages are of version 9, not 4" in told[1]
    served.start()
    assert served.pull()[0].step == 5


def test_a_server_without_parameters_applies_nothing(served: Served) -> None:
    assert served.push(served.client.header(Kind.EXCHANGE, PUSHES, 17)) is Kind.EMPTY
    ((header, _),) = served.client.request_all(Kind.HELLO)
    assert (header.kind, header.step) == (Kind.EMPTY, 0)


def test_after_the_last_step_workers_find_nothing_and_the_chief_finds_what_to_save(served: Served) -> None:
    served.start(last_step=6)
    with closing(ServerClient("worker 0", 1, [served.address], wait_secs=60)) as worker:
        assert worker.request_all(Kind.STATUS)[0][0].kind is Kind.OK
        assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
        assert worker.request_all(Kind.STATUS)[0][0].kind is Kind.EMPTY
        assert served.client.state()[0][0].step == 6
        # The server waits until the worker knows that training is over.
        assert worker.request_all(Kind.HELLO)
        ((reply, _),) = worker.request(pushing(worker.header(Kind.EXCHANGE, PUSHES))).values()
        assert reply.kind is Kind.OVER
        served.client.request_all(Kind.END)
        ((header, _),) = served.client.request_all(Kind.HELLO)
        assert (header.kind, header.step) == (Kind.EMPTY, 0)
        worker.request_all(Kind.LEAVE)
        served.client.request_all(Kind.END)
    assert served.has_ended()


def test_the_start_of_another_training_replaces_the_one_before(served: Served) -> None:
    served.client.run_id = 1
    served.start()
    with closing(ServerClient("chief 0", 0, [served.address], wait_secs=60)) as client:
        client.run_id = 2
        ((header, told),) = client.request_all(Kind.HELLO)
        assert (header.kind, header.run_id, told["job"]) == (Kind.OK, 1, "one")
        # The second chief only asks, and changes nothing.
        assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
        second = Served(served.address, client, threading.Thread())
        second.start(about={"job": "two"})
        assert second.pull()[0].step == 5
        for request in (served.pull, served.status, served.client.state):
            if request == served.status:
                # Only this one is answered: a process has to be able to ask what the server holds.
                assert request() == {"active": [0], "left": [], "silent": []}
                continue
            with pytest.raises(ClusterError) as refused:
                request()
            assert str(refused.value) == (
                "ps 0 refuses chief 0: It holds another training by now; see whether two programs have the same "
                "parameter servers, which hold one training at a time."
            )
        served.client.is_over = lambda: True
        with pytest.raises(TrainingIsOver):
            served.push(served.client.header(Kind.EXCHANGE, PUSHES))
        reply, dense, _ = second.pull()
        assert (reply.step, dense[0]) == (5, 0)
        client.request_all(Kind.END)


def test_a_new_process_replaces_the_one_before_though_its_clock_is_slow(served: Served) -> None:
    served.start()
    served.push(served.client.header(Kind.EXCHANGE, PUSHES))
    with closing(ServerClient("chief 0", 0, [served.address], wait_secs=60)) as client:
        client.incarnation = served.client.incarnation - 10**9
        again = Served(served.address, client, threading.Thread())
        told = client.request_all(Kind.HELLO)[0][1]
        assert told["incarnation"] == served.client.incarnation
        with pytest.raises(ClusterError, match="Another process has come as chief 0 since; see whether two have the"):
            again.pull()
        client.incarnation = told["incarnation"] + 1
        assert again.pull()[0].step == 6
        with pytest.raises(ClusterError, match="Another process has come as chief 0 since; see whether two have the"):
            served.pull()


def test_requests_that_are_held_back_are_dropped_with_their_training(served: Served) -> None:
    served.start(names=["chief 0", "worker 0", "worker 1"], max_staleness=0, silence_secs=1.0)
    served.pull()
    with closing(ServerClient("worker 1", 2, [served.address], wait_secs=60)) as client:
        Served(served.address, client, threading.Thread()).pull()
        client.send(pushing(client.header(Kind.EXCHANGE, PUSHES)))
        while served.pull()[0].step < 6:
            pass
        served.start()
        # Longer than the silence after which workers are looked for.
        time.sleep(2)
        assert served.status() == {"active": [0], "left": [], "silent": []}


def test_a_server_that_waits_for_the_chief_logs_that_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    address, clock = f"localhost:{free_port()}", itertools.count(0, 50)
    with (
        closing(ParameterServer("ps 0", address, wait_secs=120, clock=lambda: next(clock))) as server,
        pytest.raises(ClusterError, match=rf"^ps 0 waited 120 s \(session_cr.*\) for the chief .* ps 0 at {address}.$"),
    ):
        server.serve()
    told = [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]
    assert told == ["ps 0 has waited 100 s for the chief to give it its parameters."]


def test_a_server_that_starts_after_the_training_ends(caplog: pytest.LogCaptureFixture) -> None:
    clock = itertools.count(0, 50)
    address = f"localhost:{free_port()}"
    with closing(ParameterServer("ps 0", address, is_over=lambda: True, clock=lambda: next(clock))) as server:
        server.serve()
    assert caplog.messages[-1] == "ps 0 ends: training is over."


def test_a_server_with_parameters_waits_without_end_while_it_is_connected() -> None:
    address, now = f"localhost:{free_port()}", [0.0]
    server = ParameterServer("ps 0", address, wait_secs=1, clock=lambda: now[0])
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    with closing(server), closing(ServerClient("chief 0", 0, [address], wait_secs=60)) as client:
        one = Served(address, client, thread)
        one.start()
        now[0] = 1e6
        # The server has made its periodic check by the second reply.
        assert one.pull()[0].step == one.pull()[0].step == 5
        client.request_all(Kind.END)
        assert one.has_ended()


def test_a_process_that_no_chief_comes_to_ends_with_one_sentence() -> None:
    address = f"localhost:{free_port()}"
    config = {"cluster": {"chief": ["chief:1"], "ps": [address]}, "task": {"type": "ps", "index": 0}}
    ended = subprocess.run(
        [sys.executable, "-m", "torch_estimator.parameter_server", "--session-creation-timeout-secs", "0.1"],
        env={**os.environ, "TF_CONFIG": json.dumps(config)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("error: ps 0 waited 0.1 s (session_creation_timeout_secs) for the")
    assert "Traceback" not in ended.stderr


def test_until_sigterm_a_server_serves_one_training_after_another() -> None:
    address = f"localhost:{free_port()}"
    config = {"cluster": {"chief": ["chief:1"], "ps": [address]}, "task": {"type": "ps", "index": 0}}
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_estimator.parameter_server", "--serve-until-sigterm"],
        env={**os.environ, "TF_CONFIG": json.dumps(config)},
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(3):
        with closing(ServerClient("chief 0", 0, [address], wait_secs=60)) as client:
            ((header, _),) = client.request_all(Kind.HELLO)
            assert (header.kind, header.step) == (Kind.EMPTY, 0)
            client.start({0: ({**GIVEN, "step": 5}, ARRAYS)})
            client.request_all(Kind.END)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == RESTART_ME
    assert told.count("ps 0 listens on") == 1
    assert told.count("ps 0 ends: training is over.") >= 1
    assert told.splitlines()[-1].endswith("ps 0: shutting down on SIGTERM.")


@pytest.mark.parametrize("host", ["[::1]", "localhost", "127.0.0.1"])
def test_loopback_is_reached_by_each_of_its_names(host: str) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    address = f"{host}:{free_port()}"
    server = ParameterServer("ps 0", address)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    with closing(server), closing(ServerClient("chief 0", 0, [address], wait_secs=20)) as client:
        assert client.request_all(Kind.HELLO)[0][0].kind is Kind.EMPTY
        client.request_all(Kind.END)
        thread.join(timeout=20)


def test_an_invalid_address_is_named() -> None:
    with pytest.raises(ClusterError, match=r"^'-:1' of ps 0 is no address \(Invalid argument\); name a host and"):
        ServerClient("chief 0", 0, ["-:1"], wait_secs=1)


def test_a_port_in_use_is_named(served: Served) -> None:
    with pytest.raises(ClusterError, match=rf"^ps 1 cannot listen on {served.address} \(Address already in use\); end"):
        ParameterServer("ps 1", served.address)


def test_a_server_that_cannot_be_reached_is_named() -> None:
    address = f"localhost:{free_port()}"
    with (
        closing(ServerClient("worker 0", 1, [address], wait_secs=0.3)) as client,
        pytest.raises(ClusterError, match=rf"^worker 0 waited 0.3 s \(.*\) for ps 0 at {address}; see whether it runs"),
    ):
        client.request_all(Kind.HELLO)
