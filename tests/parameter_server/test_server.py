"""A server answers what it is asked, applies each push once, and ends with the training."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import zmq

from tests.cluster_jobs import free_port
from tests.parameter_server.road import Road
from torch_estimator.errors import RESTART_ME, ClusterError, NanLossDuringTrainingError
from torch_estimator.parameter_server.client import Links
from torch_estimator.parameter_server.messages import (
    PULLS,
    PUSHES,
    STOPS,
    Header,
    Kind,
    Push,
    pack_exchange,
    pack_json,
    unpack_arrays,
    unpack_parameters,
)
from torch_estimator.parameter_server.plan import DensePlan, GroupPlan, ServerPlan, TablePlan
from torch_estimator.parameter_server.presence import Lives, Presence
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
    "positions": {},
}


def pushing(header: Header, gradient: float = 1.0) -> dict[int, list[bytes]]:
    """What brings the first server gradients that are all the same."""
    push = Push(
        np.array([0.5, 0.25]),
        np.ones(2, np.uint8),
        np.full(5, gradient, np.float32),
        [(np.array([1, 3]), np.full((2, 1), gradient, np.float32))],
    )
    return {0: [pack_exchange(header, push, [np.empty(0, np.int64)])]}


class Served:
    """A server, and somebody who asks it."""

    def __init__(self, address: str, links: Links, thread: threading.Thread) -> None:
        self.address, self.links, self._thread = address, links, thread

    def start(self, **content: Any) -> None:
        given = {**GIVEN, "step": 5, **content}
        self.links.start(0, given, ARRAYS)

    def push(self, header: Header, gradient: float = 1.0) -> Kind:
        ((answer, _),) = self.links.ask(pushing(header, gradient)).values()
        return answer.kind

    def pull(self, *rows: int) -> tuple[Header, np.ndarray, np.ndarray]:
        header, wanted = self.links.header(Kind.EXCHANGE, PULLS), [np.array(rows, np.int64)]
        ((answer, frames),) = self.links.ask({0: [pack_exchange(header, None, wanted)]}).values()
        dense, (of_table,) = unpack_parameters(frames[0], PLAN, wanted)
        return answer, dense, of_table[:, 0]

    def whereabouts(self) -> Any:
        return self.links.tell_all(Kind.STATUS)[0][1]

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
    links = Links("chief 0", 0, [address], wait_secs=60)
    with closing(links):
        yield Served(address, links, thread)
    if thread.is_alive():
        with closing(Links("chief 0", 0, [address], wait_secs=60)) as last:
            last.tell_all(Kind.END)
    thread.join(timeout=15)


def test_gradients_are_applied_with_the_settings_that_come_with_them(served: Served) -> None:
    served.start()
    assert served.push(served.links.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
    answer, dense, rows = served.pull(3, 0)
    assert answer.step == 6
    np.testing.assert_array_equal(dense, np.float32([-0.5, -0.5, -0.25, -0.25, -0.25]))
    np.testing.assert_array_equal(rows, np.float32([2.5, 0]))


def test_pushes_under_way_at_once_are_applied_once_each_though_their_answers_are_lost(served: Served) -> None:
    served.start()
    with closing(Road(served.address)) as road, closing(Links("worker 0", 1, [road.address], wait_secs=60)) as links:
        links.tell_all(Kind.HELLO)
        road.loses_answers = True
        headers = [links.header(Kind.EXCHANGE, PUSHES) for _ in range(2)]
        questions = [pushing(header) for header in headers]
        for question in questions:
            links.send(question)
        while served.pull()[0].step < 7:
            time.sleep(0.01)
        road.loses_answers = False
        road.cut()
        answers = [links.collect(question)[0][0] for question in questions]
        assert [answer.number for answer in answers] == [header.number for header in headers]
        assert [answer.kind for answer in answers] == [Kind.OK, Kind.OK]
        # As where the first one was lost with its connection, and the second one was not.
        third, fourth = (links.header(Kind.EXCHANGE, PUSHES) for _ in range(2))
        again = Served(served.address, links, threading.Thread())
        for header in (fourth, third, fourth, third):
            assert again.push(header) is Kind.OK
    answer, dense, _ = served.pull()
    assert (answer.step, dense[0]) == (9, -2.0)


def changed(**parts: Any) -> Push:
    """A push with large gradients, and other parts."""
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
            changed(numbers=np.array([0.5, np.nan])),
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
    served.push(served.links.header(Kind.EXCHANGE, PUSHES))
    before, dense, rows = served.pull(0, 1, 2, 3)
    with pytest.raises(error, match="^" + re.escape(sentence)):
        served.links.ask({0: [pack_exchange(served.links.header(Kind.EXCHANGE, PUSHES, 5), push, [rows[:0]])]})
    after, dense_after, rows_after = served.pull(0, 1, 2, 3)
    assert after.step == before.step
    np.testing.assert_array_equal(dense_after, dense)
    np.testing.assert_array_equal(rows_after, rows)


def test_large_gradients_are_applied_and_those_of_absent_parameters_do_not_matter(served: Served) -> None:
    served.start()
    push = changed(present=np.array([1, 0], np.uint8), dense=np.array([3e38, 3e38] + 3 * [np.nan], np.float32))
    served.links.ask({0: [pack_exchange(served.links.header(Kind.EXCHANGE, PUSHES), push, [np.empty(0, np.int64)])]})
    np.testing.assert_array_equal(served.pull()[1], np.float32([-1.5e38, -1.5e38, 0, 0, 0]))


def test_a_push_that_comes_again_is_applied_once(served: Served) -> None:
    served.start()
    header = served.links.header(Kind.EXCHANGE, PUSHES)
    served.links.tell_all(Kind.HELLO)
    assert served.push(header) is Kind.OK
    assert served.push(header) is Kind.OK
    answer, dense, _ = served.pull()
    assert (answer.step, dense[0]) == (6, -0.5)
    with closing(Links("chief 0", 0, [served.address], wait_secs=60)) as links:
        links.tell_all(Kind.HELLO)
        # Who only asks replaces nobody.
        served.pull()
        again = Served(served.address, links, threading.Thread())
        header = links.header(Kind.EXCHANGE, PUSHES)._replace(number=header.number)
        assert again.push(header) is Kind.OK
        assert again.push(header) is Kind.OK
    with pytest.raises(ClusterError) as refused:
        served.pull()
    assert str(refused.value) == (
        "ps 0 refuses chief 0: Another process has come as chief 0 since; see whether two have the same TF_CONFIG."
    )
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as links:
        assert Served(served.address, links, threading.Thread()).pull()[0].step == 7
        links.tell_all(Kind.LEAVE)


def test_nobody_waits_for_one_whose_connection_has_ended(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.start(max_staleness=0)
    served.pull()
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as links:
        Served(served.address, links, threading.Thread()).pull()
        ahead = threading.Thread(target=served.push, args=(served.links.header(Kind.EXCHANGE, PUSHES),))
        ahead.start()
        ahead.join(timeout=1.5)
        assert ahead.is_alive()
    ahead.join(timeout=10)
    assert not ahead.is_alive()
    assert "The connection to worker 0 has ended; nobody waits for its steps." in caplog.text
    for _ in range(3):
        served.push(served.links.header(Kind.EXCHANGE, PUSHES))
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as links:
        Served(served.address, links, threading.Thread()).pull()
        # It begins where the slowest is, so that nobody has to wait until it has taken as many steps.
        served.pull()


def test_one_that_is_killed_while_it_is_kept_waiting_is_gone_and_its_question_with_it(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served.start(max_staleness=0)
    served.pull()
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as links:
        Served(served.address, links, threading.Thread()).pull()
        links.tell_all(Kind.HELLO)
        header = links.header(Kind.EXCHANGE, PUSHES)
        rows = [(np.array([1]), np.ones((1, 1), np.float32))]
        push = Push(np.zeros(2), np.ones(2, np.uint8), np.ones(5, np.float32), rows)
        links.send({0: [pack_exchange(header, push, [np.empty(0, np.int64)])]})
        time.sleep(0.5)
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as links:
        time.sleep(1.5)
        links.tell_all(Kind.HELLO)
        time.sleep(1.5)
        served.whereabouts()
    assert caplog.text.count("The connection to worker 0 has ended; nobody waits for its steps.") == 1
    assert caplog.text.count("worker 0 is back.") == 1
    assert "Another process" not in caplog.text


def test_one_that_has_to_go_stays_for_those_who_are_connected_and_no_longer() -> None:
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
    with closing(Links("worker 0", 1, [address], wait_secs=60)) as refused:
        refused.tell_all(Kind.HELLO)
        with closing(Links("chief 0", 0, [address], wait_secs=60)) as links:
            chief = Served(address, links, thread)
            chief.start()
            refused.tell_all(Kind.STATUS)
            server.go()
            chief.pull()
            thread.join(timeout=1.5)
            assert thread.is_alive()
    # Neither of them has said that it leaves.
    assert chief.has_ended()
    assert ended == [143]


@pytest.mark.parametrize(
    ("last_step", "waits_for"),
    [(None, "those who train to come back"), (5, "the chief to save that and to end it")],
)
def test_one_whose_trainers_are_all_gone_says_so_and_does_not_wait_for_ever(
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
    with closing(Links("chief 0", 0, [address], wait_secs=60)) as links:
        chief = Served(address, links, thread)
        chief.start(last_step=last_step)
        chief.whereabouts()
        # However long it says nothing, it is there.
        ahead[0] += 100
        time.sleep(1.5)
        assert thread.is_alive()
    # Whoever has lost its connection has another one soon, and says nothing before its next step.
    with closing(Links("chief 0", 0, [address], wait_secs=60)):
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
    assert told.startswith(f"ps 0 waited 40 s (session_creation_timeout_secs) for {waits_for}, and nobody has, from")


def test_who_is_ahead_waits_for_the_slowest_until_that_goes_on_or_leaves(served: Served) -> None:
    served.start(max_staleness=1)
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as links:
        slow = Served(served.address, links, threading.Thread())
        slow.pull()
        served.pull()
        assert served.push(served.links.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
        ahead = threading.Thread(target=served.push, args=(served.links.header(Kind.EXCHANGE, PUSHES),))
        ahead.start()
        while slow.pull()[0].step < 7:
            assert ahead.is_alive()
        # What it brought is applied, but the next step has to wait.
        ahead.join(timeout=0.2)
        assert ahead.is_alive()
        assert slow.push(links.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
        ahead.join(timeout=10)
        assert not ahead.is_alive()
        again = threading.Thread(target=served.push, args=(served.links.header(Kind.EXCHANGE, PUSHES),))
        again.start()
        again.join(timeout=0.2)
        assert again.is_alive()
        links.tell_all(Kind.LEAVE)
        again.join(timeout=10)
        assert not again.is_alive()


def test_a_question_that_is_held_back_is_answered_where_the_chief_gives_the_parameters_again(served: Served) -> None:
    served.start(max_staleness=0)
    served.pull()
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as links:
        worker, answers = Served(served.address, links, threading.Thread()), list[Kind]()
        worker.pull()
        held = threading.Thread(target=lambda: answers.append(worker.push(links.header(Kind.EXCHANGE, PUSHES))))
        held.start()
        held.join(timeout=1)
        assert held.is_alive()
        served.start(max_staleness=0)
        held.join(timeout=10)
        assert answers == [Kind.OK]
        time.sleep(1.5)
        assert served.whereabouts()["active"] == [0, 1]


def test_a_question_that_is_held_back_is_refused_where_its_sender_trains_no_more(served: Served) -> None:
    served.start(names=["chief 0", "worker 0", "worker 1"], max_staleness=0, silence_secs=30)
    served.pull()
    with closing(Links("worker 1", 2, [served.address], wait_secs=60)) as links:
        worker, refused = Served(served.address, links, threading.Thread()), list[str]()
        worker.pull()

        def push() -> None:
            with pytest.raises(ClusterError) as error:
                worker.push(links.header(Kind.EXCHANGE, PUSHES))
            refused.append(str(error.value))

        held = threading.Thread(target=push)
        held.start()
        held.join(timeout=1)
        assert held.is_alive()
        served.start(names=["chief 0"], silence_secs=0.5)
        held.join(timeout=10)
        assert "serves chief 0, and has heard of a process that would be number 3" in refused[0]
    # It looks for those who are silent or gone meanwhile.
    for _ in range(4):
        time.sleep(0.6)
        assert served.pull()[0].kind is Kind.OK


def test_an_error_of_its_look_after_the_workers_is_logged_and_ends_nothing(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.start()

    def fail(presence: Presence) -> set[int]:
        raise KeyError(7)

    monkeypatch.setattr(Presence, "look_for_silence", fail)
    for _ in range(3):
        time.sleep(0.6)
        assert served.pull()[0].kind is Kind.OK
    assert caplog.text.count("ps 0 cannot look after its workers (KeyError), and goes on without.") == 1


def test_state_comes_back_as_it_is(served: Served) -> None:
    served.start()
    served.push(served.links.header(Kind.EXCHANGE, PUSHES))
    ((header, _, arrays),) = served.links.state()
    served.push(served.links.header(Kind.EXCHANGE, PUSHES))
    expected = served.links.state()[0][2]
    served.links.start(0, {**GIVEN, "step": header.step}, arrays)
    served.push(served.links.header(Kind.EXCHANGE, PUSHES))
    ((_, _, again),) = served.links.state()
    assert again.keys() == expected.keys() == {*ARRAYS, "dense/1/momentum_buffer"}
    for name, one in expected.items():
        np.testing.assert_array_equal(again[name], one, err_msg=name)


# More than the buffers of a connection hold.
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


def test_what_is_read_while_others_push_is_of_one_moment(served: Served) -> None:
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
    served.links.start(0, {**GIVEN, "plan": LARGE.as_json(), "step": 5}, given)
    rows = np.arange(2**16)
    push = Push(np.array([0.1]), np.ones(2, np.uint8), np.ones(2**21, np.float32), [(rows, table + 1)] * 2)

    def pushed() -> dict[str, np.ndarray]:
        header = served.links.header(Kind.EXCHANGE, PUSHES)
        served.links.ask({0: [pack_exchange(header, push, [rows[:0]] * 2)]})
        return served.links.state()[0][2]

    pushed()
    expected = served.links.state()[0][2]
    with closing(Road(served.address)) as road, closing(Links("worker 0", 1, [road.address], wait_secs=60)) as links:
        links.tell_all(Kind.HELLO)
        state = {0: [links.header(Kind.STATE).pack()]}
        pull = {0: [pack_exchange(links.header(Kind.EXCHANGE, PULLS), None, [rows] * 2)]}
        road.lets_answers_through.clear()
        links.send(state)
        links.send(pull)
        links.send({0: pack_json(links.header(Kind.DEPOSIT), {"row": 7})})
        while "1" not in served.links.state()[0][1]["positions"]:
            # Questions of one connection are answered in their order.
            pass
        pushed()
        pushed()
        later = pushed()
        road.lets_answers_through.set()
        header, frames = links.collect(state)[0]
        arrays = unpack_arrays(frames)[1]
        pulled, (message,) = links.collect(pull)[0]
        dense, tables = unpack_parameters(message, LARGE, [rows] * 2)
    assert header.step == pulled.step == 6
    assert arrays.keys() == given.keys()
    for name, one in expected.items():
        assert not np.array_equal(one, later[name])
        np.testing.assert_array_equal(arrays[name], one, err_msg=name)
    np.testing.assert_array_equal(dense, np.concatenate([expected["dense/0/value"], expected["dense/1/value"]]))
    for index, one in enumerate(tables):
        np.testing.assert_array_equal(one, expected[f"table/{index}/value"])


def test_positions_of_inputs_are_kept_for_who_comes_back(served: Served) -> None:
    served.start(positions={"0": {"row": 7}, "1": {"row": 3}})
    told = served.links.tell_all(Kind.HELLO)[0][1]
    assert (told["job"], told["position"], told["since"]) == ("one", {"row": 7}, 0)
    served.links.deposit({"row": 9})
    served.push(served.links.header(Kind.EXCHANGE, PUSHES))
    told = served.links.tell_all(Kind.HELLO)[0][1]
    assert (told["position"], told["since"]) == ({"row": 9}, 1)
    positions = served.links.state()[0][1]["positions"]
    assert positions == {"0": {"row": 9, "since": 1}, "1": {"row": 3, "since": 0}}
    served.start(positions=positions, lost=20)
    told = served.links.tell_all(Kind.HELLO)[0][1]
    assert (told["since"], told["at_most"]) == (21, True)
    served.links.deposit({"row": 10})
    told = served.links.tell_all(Kind.HELLO)[0][1]
    assert (told["position"], told["since"], told["at_most"]) == ({"row": 10}, 0, False)


def test_nothing_is_applied_after_the_last_step(served: Served) -> None:
    served.start(last_step=6)
    assert served.push(served.links.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
    assert served.push(served.links.header(Kind.EXCHANGE, PUSHES)) is Kind.OVER
    assert served.links.state()[0][2]["dense/0/value"].tolist() == [-0.5, -0.5]


def test_who_leaves_may_stop_all_others(served: Served) -> None:
    served.start()
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as worker:
        worker.tell_all(Kind.HELLO)
        assert served.whereabouts() == {"active": [0, 1], "left": [], "silent": []}
        worker.tell_all(Kind.LEAVE, STOPS)
    assert served.whereabouts() == {"active": [0], "left": [1], "silent": []}
    assert served.push(served.links.header(Kind.EXCHANGE, PUSHES)) is Kind.OVER


def test_who_says_nothing_is_named_and_not_waited_for(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.start(silence_secs=1.5)
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as worker:
        worker.tell_all(Kind.HELLO)
        deadline = time.monotonic() + 20
        while served.whereabouts() != {"active": [0], "left": [], "silent": [1]}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        worker.tell_all(Kind.STATUS)
        assert served.whereabouts() == {"active": [0, 1], "left": [], "silent": []}
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("worker 0 ")]
    assert told[0].startswith("worker 0 has sent nothing for 1.5 s (silence_secs of ParameterServerStrategy): it hangs")
    assert told[1] == "worker 0 is back."


def test_it_ends_when_the_chief_says_so_and_all_know(served: Served) -> None:
    served.start()
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as worker:
        worker.tell_all(Kind.HELLO)
        served.links.tell_all(Kind.END)
        header = worker.header(Kind.EXCHANGE, PULLS)
        ((answer, _),) = worker.ask({0: [pack_exchange(header, None, [np.empty(0, np.int64)])]}).values()
        assert answer.kind is Kind.OVER
        worker.tell_all(Kind.LEAVE)
    assert served.has_ended()


def test_whoever_else_sends_something_is_refused(served: Served) -> None:
    context: zmq.Context[Any] = zmq.Context()
    door = context.socket(zmq.DEALER)
    door.setsockopt(zmq.RCVTIMEO, 5000)
    door.connect(f"tcp://{served.address}")
    told = []
    for message in (b"GET / HTTP/1.1", b"TEPS" + bytes([9, 0]) + bytes(42)):
        door.send(message)
        told.append(door.recv_multipart()[1].decode())
    context.destroy(linger=0)
    assert "no part of a torch-estimator cluster" in told[0]
    assert "another version of torch-estimator, whose messages are of version 9, not 2" in told[1]
    served.start()
    assert served.pull()[0].step == 5


def test_a_server_that_has_lost_its_parameters_tells_the_chief_how_far_the_others_were(served: Served) -> None:
    assert served.push(served.links.header(Kind.EXCHANGE, PUSHES, 17)) is Kind.EMPTY
    assert served.push(served.links.header(Kind.EXCHANGE, PUSHES, 12)) is Kind.EMPTY
    ((header, _),) = served.links.tell_all(Kind.HELLO)
    assert (header.kind, header.step) == (Kind.EMPTY, 17)


def test_who_comes_to_train_when_training_is_over_finds_nothing_and_the_chief_what_is_to_be_saved(
    served: Served,
) -> None:
    served.start(last_step=6)
    with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as worker:
        assert worker.tell_all(Kind.STATUS)[0][0].kind is Kind.OK
        assert served.push(served.links.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
        assert worker.tell_all(Kind.STATUS)[0][0].kind is Kind.EMPTY
        assert served.links.state()[0][0].step == 6
        # It waits until the other one knows.
        assert worker.tell_all(Kind.HELLO)
        ((answer, _),) = worker.ask(pushing(worker.header(Kind.EXCHANGE, PUSHES))).values()
        assert answer.kind is Kind.OVER
        served.links.tell_all(Kind.END)
        ((header, _),) = served.links.tell_all(Kind.HELLO)
        assert (header.kind, header.step) == (Kind.EMPTY, 0)
        served.start()
        # What it still brings is not for the next training.
        ((answer, _),) = worker.ask(pushing(worker.header(Kind.EXCHANGE, PUSHES, 6))).values()
        assert (answer.kind, answer.step) == (Kind.OVER, 6)
        assert served.push(served.links.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
        with closing(Links("worker 0", 1, [served.address], wait_secs=60)) as again:
            assert again.tell_all(Kind.STATUS)[0][0].kind is again.tell_all(Kind.HELLO)[0][0].kind is Kind.OK
            ((answer, _),) = again.ask(pushing(again.header(Kind.EXCHANGE, PUSHES))).values()
            assert (answer.kind, answer.step) == (Kind.OK, 7)
        served.links.tell_all(Kind.END)


def test_who_waits_for_the_chief_says_so_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    address, clock = f"localhost:{free_port()}", itertools.count(0, 50)
    with (
        closing(ParameterServer("ps 0", address, wait_secs=120, clock=lambda: next(clock))) as server,
        pytest.raises(ClusterError, match=rf"^ps 0 waited 120 s \(session_cr.*\) for the chief .* ps 0 at {address}.$"),
    ):
        server.serve()
    told = [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]
    assert told == ["ps 0 has waited 100 s for the chief to give it its parameters."]


def test_who_comes_after_the_training_ends(caplog: pytest.LogCaptureFixture) -> None:
    clock = itertools.count(0, 50)
    address = f"localhost:{free_port()}"
    with closing(ParameterServer("ps 0", address, is_over=lambda: True, clock=lambda: next(clock))) as server:
        server.serve()
    assert caplog.messages[-1] == "ps 0 ends: training is over."


def test_who_holds_parameters_waits_for_the_chief_for_ever() -> None:
    address, now = f"localhost:{free_port()}", [0.0]
    server = ParameterServer("ps 0", address, wait_secs=1, clock=lambda: now[0])
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    with closing(server), closing(Links("chief 0", 0, [address], wait_secs=60)) as links:
        one = Served(address, links, thread)
        one.start()
        now[0] = 1e6
        # It has looked around after the first.
        assert one.pull()[0].step == one.pull()[0].step == 5
        links.tell_all(Kind.END)
        assert one.has_ended()


def test_a_process_that_no_chief_comes_to_ends_with_a_sentence() -> None:
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


def test_who_is_to_serve_until_told_serves_one_training_after_another() -> None:
    address = f"localhost:{free_port()}"
    config = {"cluster": {"chief": ["chief:1"], "ps": [address]}, "task": {"type": "ps", "index": 0}}
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_estimator.parameter_server", "--until-told"],
        env={**os.environ, "TF_CONFIG": json.dumps(config)},
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(3):
        with closing(Links("chief 0", 0, [address], wait_secs=60)) as links:
            ((header, _),) = links.tell_all(Kind.HELLO)
            assert (header.kind, header.step) == (Kind.EMPTY, 0)
            links.start(0, {**GIVEN, "step": 5}, ARRAYS)
            links.tell_all(Kind.END)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == RESTART_ME
    assert told.count("ps 0 listens on") == 1
    assert told.count("ps 0 ends: training is over.") >= 1
    assert told.splitlines()[-1].endswith("ps 0 ends: SIGTERM asked for it.")


@pytest.mark.parametrize("host", ["[::1]", "localhost", "127.0.0.1"])
def test_loopback_is_reached_by_each_of_its_names(host: str) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    address = f"{host}:{free_port()}"
    server = ParameterServer("ps 0", address)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    with closing(server), closing(Links("chief 0", 0, [address], wait_secs=20)) as links:
        assert links.tell_all(Kind.HELLO)[0][0].kind is Kind.EMPTY
        links.tell_all(Kind.END)
        thread.join(timeout=20)


def test_what_is_no_address_is_named() -> None:
    with pytest.raises(ClusterError, match=r"^'-:1' of ps 0 is no address \(Invalid argument\); name a host and"):
        Links("chief 0", 0, ["-:1"], wait_secs=1)


def test_a_port_in_use_is_named(served: Served) -> None:
    with pytest.raises(ClusterError, match=rf"^ps 1 cannot listen on {served.address} \(Address already in use\); end"):
        ParameterServer("ps 1", served.address)


def test_one_that_cannot_be_reached_is_named() -> None:
    address = f"localhost:{free_port()}"
    with (
        closing(Links("worker 0", 1, [address], wait_secs=0.3)) as links,
        pytest.raises(ClusterError, match=rf"^worker 0 waited 0.3 s \(.*\) for ps 0 at {address}; see whether it runs"),
    ):
        links.tell_all(Kind.HELLO)


def test_the_next_training_s_server_waits_for_an_address_that_is_not_free_yet() -> None:
    _, port = (address := f"localhost:{free_port()}").split(":")
    occupied = socket.create_server(("127.0.0.1", int(port)))
    with pytest.raises(ClusterError, match="cannot listen on"):
        ParameterServer("ps 0", address, None)
    freed = threading.Timer(0.3, occupied.close)
    freed.start()
    with closing(ParameterServer("ps 0", address, None, over=Lives())):
        freed.join()
        with pytest.raises(OSError):
            socket.create_server(("127.0.0.1", int(port)))
