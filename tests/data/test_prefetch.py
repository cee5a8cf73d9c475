"""Prefetching in a thread."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from torch_estimator.data import Dataset
from torch_estimator.errors import DataError


@pytest.fixture
def workers() -> Callable[[], list[threading.Thread]]:
    """Return a function that lists the prefetching threads that the test started and that still run."""
    before = set(threading.enumerate())
    return lambda: [thread for thread in set(threading.enumerate()) - before if thread.name == "te-prefetch"]


Workers = Callable[[], list[threading.Thread]]


def endless() -> Iterator[dict[str, np.ndarray]]:
    number = 0
    while True:
        yield {"x": np.array([number])}
        number += 1


def test_batches_come_in_order() -> None:
    data = Dataset.from_iterable(lambda: ({"x": [i]} for i in range(100)))
    assert [int(batch["x"][0]) for batch in data.prefetch(3)] == list(range(100))


@pytest.mark.parametrize(("count", "kept"), [(3, 3), (-1, 2)])
def test_prefetching_reads_at_most_the_given_number_of_batches(count: int, kept: int) -> None:
    drawn = threading.Semaphore(0)
    seen = []

    def counted() -> Iterator[dict[str, list[int]]]:
        for number in range(1000):
            seen.append(number)
            drawn.release()
            yield {"x": [number]}

    with Dataset.from_iterable(counted).prefetch(count).iterator() as iterator:
        next(iterator)
        # One batch was returned, others are kept, and the thread waits with one more.
        for _ in range(kept + 2):
            assert drawn.acquire(timeout=10)
    assert len(seen) == kept + 2


def test_an_error_comes_after_the_batches_before_it_and_stays() -> None:
    def failing() -> Iterator[dict[str, list[int]]]:
        yield {"x": [0]}
        raise OSError("the disk is gone")

    with Dataset.from_iterable(failing).prefetch(3).iterator() as iterator:
        assert next(iterator).features["x"].tolist() == [0]
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone") as raised:
                next(iterator)
        # The traceback still shows where in the thread the error was raised.
        assert raised.traceback[-1].name == "failing"


def test_a_data_error_of_the_thread_is_raised_by_next(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\nbad\n")
    data = Dataset.from_csv(tmp_path / "a.csv", column_types={"x": "int64"}).batch(1).prefetch(2)
    with data.iterator() as iterator, pytest.raises(DataError, match="line 3"):
        next(iterator)


def test_closing_ends_the_thread_and_may_be_done_twice(workers: Workers) -> None:
    iterator = Dataset.from_iterable(endless).prefetch(2).iterator()
    next(iterator)
    assert len(workers()) == 1
    iterator.close()
    assert not workers()
    iterator.close()


def test_restoring_ends_the_old_thread(workers: Workers) -> None:
    with Dataset.from_iterable(endless).prefetch(2).iterator() as iterator:
        state = iterator.state()
        next(iterator)
        iterator.restore(state)
        assert next(iterator).features["x"].tolist() == [0]
        assert len(workers()) == 1


def test_an_iterator_that_is_dropped_ends_its_thread(workers: Workers) -> None:
    iterator = Dataset.from_iterable(endless).prefetch(2).iterator()
    next(iterator)
    (worker,) = workers()
    del iterator
    gc.collect()
    worker.join(timeout=10)
    assert not worker.is_alive()


@pytest.mark.parametrize("chain", ["", ".map(lambda features: features)"])
def test_an_open_iterator_does_not_keep_the_interpreter_alive(chain: str) -> None:
    program = (
        "import numpy as np\n"
        "from torch_estimator.data import Dataset\n"
        f"data = Dataset.from_arrays({{'x': np.arange(200_000)}}).shuffle(10).repeat().batch(40){chain}.prefetch(4)\n"
        "iterator = data.iterator()\n"
        "print(len(next(iterator).features['x']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "40", "")
