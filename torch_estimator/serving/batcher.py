"""Runs small requests together: one call of onnxruntime for 16 instances takes little longer than for one.

There is no timer by default. A request is queued, and the queue is run when the event loop has read everything that has
arrived. While a batch runs, the next requests arrive, so batches grow with the load.

A batch that is fast is run in the event loop itself, because handing it to a thread may cost more than running it. A
slow one runs in a thread. A request with more instances than a batch may have is run by itself, in the same way.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidValueError
from torch_estimator.web.errors import RequestError

Columns = Mapping[str, Any]
"""Inputs of a signature by name: lists or arrays with one entry per instance."""

Outputs = dict[str, npt.NDArray[Any]]
"""Outputs of a signature by name: arrays with one entry per instance."""

Run = Callable[[Columns, str], Outputs]
"""Function that returns the outputs of a signature, given its inputs and its name."""


@dataclass(frozen=True, slots=True)
class Result:
    """Answer to one request, with one entry per instance in each output.

    `is_finite` says that no number is NaN or infinite, which JSON cannot express.
    """

    outputs: Outputs
    is_finite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of a `Batcher`: how many instances are run together and may wait at most, and how long a request waits.

    A request waits `max_delay_secs` for others, and `timeout_secs` at most.
    """

    max_batch: int
    max_delay_secs: float
    max_queue: int
    timeout_secs: float


@dataclass(slots=True)
class Executed:
    """What a version has answered in this process.

    `executions` of its graph answered `requests` with `instances` altogether. The requests have waited `queue_secs` for
    it, and it has run for them `compute_secs`; a run for several requests counts for each of them. The last run ended
    at `last`, in the seconds of `time.monotonic`.
    """

    executions: int = 0
    requests: int = 0
    instances: int = 0
    queue_secs: float = 0.0
    compute_secs: float = 0.0
    last: float = 0.0

    def add_one(self, instances: int, began: float) -> None:
        """Add a request that was run by itself from `began` until now, without waiting."""
        self.last = time.monotonic()
        self.executions += 1
        self.requests += 1
        self.instances += instances
        self.compute_secs += self.last - began


class _Waiting:
    """A request that waits to be run."""

    __slots__ = ("columns", "future", "rows", "signature", "since")

    def __init__(self, columns: Columns, signature: str, rows: int, future: asyncio.Future[Result]) -> None:
        self.columns = columns
        self.signature = signature
        self.rows = rows
        self.future = future
        self.since = time.monotonic()


class Batcher:
    """Runs the requests to one version of a model, several at a time.

    `run` is called in the event loop with `fast_rows` instances at most, and else in the executor. `observe` is called
    with the number of instances of each batch, and `executed` adds up what was answered.
    """

    def __init__(
        self,
        run: Run,
        limits: BatchLimits,
        executor: Executor,
        *,
        fast_rows: int,
        observe: Callable[[int], None] = lambda rows: None,
        executed: Executed | None = None,
    ) -> None:
        self._run = run
        self._limits = limits
        self._executor = executor
        self._fast_rows = fast_rows
        self._observe = observe
        self._executed = Executed() if executed is None else executed
        self._queue: deque[_Waiting] = deque()
        self._queued_rows = 0
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._large_rows = 0

    async def predict(self, columns: Columns, signature: str, rows: int) -> Result:
        """Run one request and return its answer.

        `columns` holds all inputs of the signature, each with `rows` entries. A RequestError says that the queue is
        full, the request has waited too long, or an input is wrong.
        """
        if self._queued_rows + self._large_rows + rows > max(self._limits.max_queue, rows):
            raise RequestError(429, f"{self._queued_rows + self._large_rows} instances wait already.", retry_secs=1)
        if rows > self._limits.max_batch:
            if rows > self._fast_rows:
                return await self._run_alone(columns, signature, rows)
            self._observe(rows)
            began = time.monotonic()
            result = self._answer(columns, signature)
            self._executed.add_one(rows, began)
            return result
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._queue.append(_Waiting(columns, signature, rows, future))
        self._queued_rows += rows
        is_full = self._queued_rows >= self._limits.max_batch
        if not self._is_scheduled:
            self._is_scheduled = True
            if self._limits.max_delay_secs and not is_full:
                self._timer = loop.call_later(self._limits.max_delay_secs, self._flush)
            else:
                loop.call_soon(self._flush)
        elif self._timer is not None and is_full:
            # There is nothing to wait for any more.
            self._timer.cancel()
            self._timer = None
            loop.call_soon(self._flush)
        return await future

    async def _run_alone(self, columns: Columns, signature: str, rows: int) -> Result:
        self._large_rows += rows
        try:
            self._observe(rows)
            loop = asyncio.get_running_loop()
            began = time.monotonic()
            async with asyncio.timeout(self._limits.timeout_secs):
                result = await loop.run_in_executor(self._executor, self._answer, columns, signature)
            self._executed.add_one(rows, began)
            return result
        except TimeoutError as error:
            raise RequestError(504, self._too_late_text) from error
        finally:
            self._large_rows -= rows

    def _flush(self) -> None:
        """Run the requests at the front of the queue, up to ``max_batch`` instances of one signature."""
        self._timer = None
        batch = self._take_batch()
        if not batch:
            self._is_scheduled = False
            return
        rows = sum(one.rows for one in batch)
        self._observe(rows)
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        if rows <= self._fast_rows:
            self._finish(batch, *self._answers(batch), began)
            return
        running = loop.run_in_executor(self._executor, self._answers, batch)
        # A batch may have begun when its requests had waited for most of their time.
        timer = loop.call_later(self._limits.timeout_secs + 1.0, self._expire, batch)

        def finish(done: asyncio.Future[tuple[list[Result | Exception], int]]) -> None:
            timer.cancel()
            self._finish(batch, *_result_or_errors(done, len(batch)), began)

        running.add_done_callback(finish)

    def _finish(
        self, batch: Sequence[_Waiting], answers: Sequence[Result | Exception], executions: int, began: float
    ) -> None:
        now = time.monotonic()
        requests, instances, since = 0, 0, 0.0
        for one, answer in zip(batch, answers, strict=True):
            # A future is done already if its client has gone.
            if one.future.done():
                continue
            if isinstance(answer, Exception):
                one.future.set_exception(answer)
            else:
                one.future.set_result(answer)
                requests += 1
                instances += one.rows
                since += one.since
        if requests:
            executed = self._executed
            executed.executions += executions
            executed.requests += requests
            executed.instances += instances
            executed.queue_secs += requests * began - since
            executed.compute_secs += requests * (now - began)
            executed.last = now
        if self._queue:
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._is_scheduled = False

    def _expire(self, batch: Sequence[_Waiting]) -> None:
        """Answer the requests of a batch that has run for too long, and those that wait behind it."""
        too_late = time.monotonic() - self._limits.timeout_secs
        for one in (*batch, *(waiting for waiting in self._queue if waiting.since < too_late)):
            if not one.future.done():
                one.future.set_exception(RequestError(504, self._too_late_text))

    @property
    def _too_late_text(self) -> str:
        return f"The model has not answered within {self._limits.timeout_secs:g} s."

    def _take_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        rows = 0
        too_late = time.monotonic() - self._limits.timeout_secs
        while self._queue:
            one = self._queue[0]
            if batch and (one.signature != batch[0].signature or rows + one.rows > self._limits.max_batch):
                break
            self._queue.popleft()
            self._queued_rows -= one.rows
            if one.future.done():
                continue
            if one.since < too_late:
                one.future.set_exception(RequestError(504, self._too_late_text))
                continue
            batch.append(one)
            rows += one.rows
        return batch

    def _answers(self, batch: Sequence[_Waiting]) -> tuple[list[Result | Exception], int]:
        """Run a batch; return a result or an error for each request, and how often the model ran without an error."""
        signature = batch[0].signature
        if len(batch) > 1:
            try:
                result = self._answer(_joined([one.columns for one in batch]), signature)
            except Exception:
                # Run each request by itself, so that the one that is wrong gets the error, and the others an answer.
                pass
            else:
                return list(_divided(result, [one.rows for one in batch])), 1
        answers: list[Result | Exception] = []
        for one in batch:
            try:
                answers.append(self._answer(one.columns, signature))
            except Exception as error:
                answers.append(error)
        return answers, sum(isinstance(answer, Result) for answer in answers)

    def _answer(self, columns: Columns, signature: str) -> Result:
        try:
            outputs = self._run(columns, signature)
        except InvalidValueError as error:
            raise RequestError(400, str(error)) from error
        finite = all(_is_finite(array) for array in outputs.values() if array.dtype.kind == "f")
        return Result(outputs, finite)


def _is_finite(array: npt.NDArray[Any]) -> bool:
    # The sum of squares takes a third of the time of np.isfinite, but is infinite also if large numbers are squared.
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def _result_or_errors(
    done: asyncio.Future[tuple[list[Result | Exception], int]], count: int
) -> tuple[list[Result | Exception], int]:
    error = done.exception()
    if error is None:
        return done.result()
    return [RequestError(500, f"The model could not be run: {error}.")] * count, 0


def _joined(parts: Sequence[Columns]) -> Columns:
    """Concatenate the inputs of several requests.

    Raise a TypeError if types differ, which numpy would convert silently.
    """
    joined: dict[str, Any] = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        kinds = {value.dtype if isinstance(value, np.ndarray) else type(value) for value in values}
        if kinds == {list}:
            joined[name] = [item for value in values for item in value]
        elif len(kinds) == 1 and isinstance(values[0], np.ndarray):
            joined[name] = np.concatenate(values)
        else:
            raise TypeError(f"input {name} is given in different types")
    return joined


def _divided(result: Result, sizes: Sequence[int]) -> list[Result]:
    """Return the part of a result that belongs to each request."""
    start, parts = 0, []
    for size in sizes:
        stop = start + size
        parts.append(Result({name: array[start:stop] for name, array in result.outputs.items()}, result.is_finite))
        start = stop
    return parts
