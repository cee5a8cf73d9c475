"""Batches: requests run together, each gets its own answer, and what is too much or too late is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.row_graphs import BY_ROW, NOT_BY_ROW, write_graph
from torch_estimator.errors import ExportError, InvalidValueError
from torch_estimator.serving.batcher import Batcher, BatchLimits, Columns, Executed, Outputs, Result
from torch_estimator.web.errors import RequestError


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


class Doubling:
    """A model that doubles ``x``, and notes its batches.

    Attributes:
        batches: Inputs of each call.
        may_go_on: Calls wait for it.
    """

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, columns: Columns, signature: str) -> Outputs:
        assert self.may_go_on.wait(60)
        xs = list(columns["x"])
        self.batches.append(xs)
        if any(not isinstance(x, int | float) for x in xs):
            raise InvalidValueError("Input x takes numbers.")
        return {"y": np.array(xs, np.float32) * (2 if signature == "double" else 3)}


def batcher(model: Doubling, executor: ThreadPoolExecutor, *, is_fast: bool = True, **limits: Any) -> Batcher:
    chosen: dict[str, Any] = {"max_batch": 8, "max_delay_secs": 0.0, "max_queue": 100, "timeout_secs": 60.0, **limits}
    return Batcher(model, BatchLimits(**chosen), executor, fast_rows=chosen["max_batch"] if is_fast else 0)


async def together(*waiting: Coroutine[Any, Any, Result]) -> list[Any]:
    """The answers to requests that arrive together: lists of numbers, or errors."""
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    return [answer.outputs["y"].tolist() if isinstance(answer, Result) else answer for answer in answers]


def run(make: Callable[[], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
    return asyncio.run(make())


@pytest.mark.parametrize("is_fast", [True, False])
def test_requests_that_arrive_together_are_run_together(executor: ThreadPoolExecutor, is_fast: bool) -> None:
    model = Doubling()
    made = batcher(model, executor, is_fast=is_fast)
    answers = run(
        lambda: together(*(made.predict({"x": [x, x + 0.5][: x % 2 + 1]}, "double", x % 2 + 1) for x in range(6)))
    )
    assert answers == [[0], [2, 3], [4], [6, 7], [8], [10, 11]]
    assert sum(map(len, model.batches)) == 9
    assert max(map(len, model.batches)) <= 8
    assert len(model.batches) == 2


@pytest.mark.parametrize("is_fast", [True, False])
def test_what_was_answered_is_added_up_and_errors_are_not(executor: ThreadPoolExecutor, is_fast: bool) -> None:
    executed = Executed()
    model = Doubling()
    limits = BatchLimits(max_batch=8, max_delay_secs=0.01, max_queue=100, timeout_secs=60.0)
    one = Batcher(model, limits, executor, fast_rows=8 if is_fast else 0, executed=executed)

    def ask(*xs: Any) -> Any:
        return lambda: together(*(one.predict({"x": row}, "double", len(row)) for row in xs))

    run(ask([1.0], [2.0, 3.0]))
    assert (executed.executions, executed.requests, executed.instances) == (1, 2, 3)
    first = executed.compute_secs
    assert 0 < first < executed.queue_secs
    run(ask([4.0], ["wrong"]))
    # A batch that fails is run request by request.
    assert (executed.executions, executed.requests, executed.instances) == (2, 3, 4)
    run(ask(["wrong"]))
    run(ask([1.0] * 9))
    assert (executed.executions, executed.requests, executed.instances) == (3, 4, 13)
    assert executed.compute_secs > first


def test_signatures_are_not_mixed(executor: ThreadPoolExecutor) -> None:
    model = Doubling()
    made = batcher(model, executor)
    names = ["double", "double", "triple", "double"]
    assert run(lambda: together(*(made.predict({"x": [1]}, name, 1) for name in names))) == [[2], [2], [3], [2]]
    assert model.batches == [[1, 1], [1], [1]]


def test_lists_and_arrays_are_not_mixed_and_arrays_are_joined(executor: ThreadPoolExecutor) -> None:
    model = Doubling()
    made = batcher(model, executor)
    parts = [np.array([1.0]), np.array([2.0]), [3]]
    assert run(lambda: together(*(made.predict({"x": part}, "double", 1) for part in parts))) == [[2], [4], [6]]
    model.batches.clear()
    assert run(lambda: together(*(made.predict({"x": part}, "double", 1) for part in parts[:2]))) == [[2], [4]]
    assert model.batches == [[1.0, 2.0]]


def test_a_wrong_request_fails_alone(executor: ThreadPoolExecutor) -> None:
    made = batcher(Doubling(), executor)
    first, wrong, last = run(lambda: together(*(made.predict({"x": [x]}, "double", 1) for x in (1, "a", 3))))
    assert (first, last) == ([2], [6])
    assert isinstance(wrong, RequestError)
    assert (wrong.status, wrong.message) == (400, "Input x takes numbers.")


@pytest.mark.parametrize(
    ("rows", "fast_rows", "runs_in_thread"),
    [(5, 5, False), (6, 5, True), (20, 5, True), (20, 20, False), (21, 20, True)],
)
def test_what_takes_long_runs_in_a_thread(
    executor: ThreadPoolExecutor, rows: int, fast_rows: int, runs_in_thread: bool
) -> None:
    threads = set()
    model = Doubling()

    def noting(columns: Columns, signature: str) -> Outputs:
        threads.add(threading.current_thread())
        return model(columns, signature)

    limits = BatchLimits(max_batch=8, max_delay_secs=0, max_queue=10, timeout_secs=60)
    made = Batcher(noting, limits, executor, fast_rows=fast_rows)
    xs = list(range(rows))
    assert run(lambda: together(made.predict({"x": xs}, "double", rows))) == [[2.0 * x for x in xs]]
    assert (threading.main_thread() not in threads) == runs_in_thread


def test_requests_over_the_limit_of_the_queue_are_told_to_come_again(executor: ThreadPoolExecutor) -> None:
    model = Doubling()
    model.may_go_on.clear()
    made = batcher(model, executor, is_fast=False, max_batch=2, max_queue=4)

    async def overloaded() -> list[Any]:
        running = [asyncio.ensure_future(made.predict({"x": [x]}, "double", 1)) for x in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(made.predict({"x": [x]}, "double", 1)) for x in range(2, 8)]
        large = asyncio.ensure_future(made.predict({"x": [9, 9, 9]}, "double", 3))
        await asyncio.sleep(0)
        model.may_go_on.set()
        return await together(*running, *waiting, large)  # type: ignore[arg-type]

    *answers, large = run(overloaded)
    assert answers[:6] == [[0], [2], [4], [6], [8], [10]]
    for refused in (*answers[6:], large):
        assert isinstance(refused, RequestError)
        assert (refused.status, refused.retry_secs) == (429, 1)


def test_a_request_that_has_waited_for_too_long_is_not_run(executor: ThreadPoolExecutor) -> None:
    model = Doubling()
    model.may_go_on.clear()
    made = batcher(model, executor, is_fast=False, timeout_secs=0.05)

    async def late() -> list[Any]:
        first = asyncio.ensure_future(made.predict({"x": [1]}, "double", 1))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(made.predict({"x": [2]}, "double", 1))
        await asyncio.sleep(0.2)
        model.may_go_on.set()
        return await together(first, second)  # type: ignore[arg-type]

    answer, refused = run(late)
    assert answer == [2]
    assert isinstance(refused, RequestError)
    assert (refused.status, refused.message) == (504, "The model has not answered within 0.05 s.")
    assert model.batches == [[1]]


def test_a_client_that_has_gone_does_not_disturb_the_others(executor: ThreadPoolExecutor) -> None:
    model = Doubling()
    made = batcher(model, executor)

    async def leaving() -> list[Any]:
        gone = asyncio.ensure_future(made.predict({"x": [1]}, "double", 1))
        stays = asyncio.ensure_future(made.predict({"x": [2]}, "double", 1))
        asyncio.get_running_loop().call_soon(gone.cancel)
        return await together(stays)  # type: ignore[arg-type]

    assert run(leaving) == [[4]]


def test_a_delay_lets_requests_wait_for_others_until_the_batch_is_full(executor: ThreadPoolExecutor) -> None:
    model = Doubling()
    # The test would time out if a full batch waited for the end of the delay.
    made = batcher(model, executor, max_batch=4, max_delay_secs=3600.0)

    async def one_after_the_other() -> list[Any]:
        waiting = []
        for x in range(4):
            waiting.append(asyncio.ensure_future(made.predict({"x": [x]}, "double", 1)))
            await asyncio.sleep(0.01)
        return await together(*waiting)  # type: ignore[arg-type]

    assert run(one_after_the_other) == [[0], [2], [4], [6]]
    assert model.batches == [[0, 1, 2, 3]]


def test_a_model_that_fails_in_a_thread_fails_its_requests_and_no_others(executor: ThreadPoolExecutor) -> None:
    def failing(columns: Columns, signature: str) -> Outputs:
        if signature == "bad":
            raise RuntimeError("out of memory")
        return {"y": np.zeros(1, np.float32)}

    limits = BatchLimits(max_batch=8, max_delay_secs=0, max_queue=10, timeout_secs=60)
    made = Batcher(failing, limits, executor, fast_rows=0)
    bad, good = run(lambda: together(made.predict({"x": [1]}, "bad", 1), made.predict({"x": [1]}, "good", 1)))
    assert isinstance(bad, RuntimeError)
    assert good == [0]


@pytest.mark.parametrize("kind", [*NOT_BY_ROW, "row by row"])
def test_clients_never_get_rows_of_others_from_a_graph_that_does_not_answer_row_by_row(
    tmp_path: Path, executor: ThreadPoolExecutor, kind: str
) -> None:
    exported = write_graph(tmp_path, NOT_BY_ROW.get(kind, BY_ROW))
    if kind in NOT_BY_ROW:
        with pytest.raises(ExportError, match="does not answer row by row: for 3 rows, its output 'y' has the shape"):
            exported.predict({"x": [1.0, 2.0, 3.0]})
    limits = BatchLimits(max_batch=8, max_delay_secs=0.0, max_queue=100, timeout_secs=60.0)
    shared = Batcher(exported.predict, limits, executor, fast_rows=8)
    answers = run(lambda: together(*(shared.predict({"x": [value]}, "predict", 1) for value in (1.0, 2.0, 3.0))))
    # The sum of one row is the row.
    alone: list[Any] = [[1.0], [2.0], [3.0]] if kind in ("one row for all", "row by row") else ["error"] * 3
    assert ["error" if isinstance(one, Exception) else one for one in answers] == alone
