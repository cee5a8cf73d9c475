"""Events come in the order of their times; what is busy lets the next one wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.simulation import Machine
from benchmarks.simulation.clock import Clock, Cores, Line, Thread, threads_of


def noting(clock: Clock, name: str, ends: dict[str, float]) -> Callable[[], None]:
    def note() -> None:
        ends[name] = clock.now

    return note


def test_events_come_in_the_order_of_their_times() -> None:
    clock, come = Clock(), list[str]()
    for secs, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        clock.after(secs, lambda name=name: come.append(name))

    clock.run_until(lambda: len(come) == 2)

    assert (come, clock.now) == (["first", "second"], 1.0)


def test_a_line_does_one_thing_after_the_other() -> None:
    clock, ends = Clock(), dict[str, float]()
    line = Line(clock)
    line.do(1.0, noting(clock, "a", ends))
    assert line.take(2.0) == 1.0
    line.do(1.0, noting(clock, "b", ends))

    clock.run_until(lambda: "a" in ends)
    assert line.busy_secs == 1.0
    clock.run_until(lambda: False)

    assert ends == {"a": 1.0, "b": 4.0}
    assert line.busy_secs == 4.0


@pytest.mark.parametrize(("cores", "ends_at"), [(1, [1.0, 3.0, 2.0]), (2, [1.0, 2.0, 1.0])])
def test_a_thread_does_one_thing_at_a_time_on_a_core(cores: int, ends_at: list[float]) -> None:
    clock, ends = Clock(), dict[str, float]()
    station = Cores(clock, Machine(cores=cores), turn=1.0)
    one, other = Thread(station), Thread(station)
    one.do(1.0, noting(clock, "a", ends))
    one.do(1.0, noting(clock, "b", ends))
    other.do(1.0, noting(clock, "c", ends))

    clock.run_until(lambda: False)

    assert [ends[name] for name in "abc"] == ends_at
    assert one.busy_secs == 2.0


def test_threads_take_turns() -> None:
    clock, ends = Clock(), dict[str, float]()
    cores = Cores(clock, Machine(cores=1), turn=0.25)
    Thread(cores).do(1.0, noting(clock, "long", ends))
    Thread(cores).do(0.25, noting(clock, "short", ends))

    clock.run_until(lambda: False)

    assert ends == {"long": 1.25, "short": 0.5}


def test_who_has_run_least_goes_first() -> None:
    clock, ends = Clock(), dict[str, float]()
    cores = Cores(clock, Machine(cores=1), turn=10.0)
    much, little, busy = Thread(cores), Thread(cores), Thread(cores)
    much.do(2.0, noting(clock, "before", ends))
    clock.run_until(lambda: "before" in ends)
    busy.do(1.0, noting(clock, "busy", ends))
    much.do(0.5, noting(clock, "much", ends))
    little.do(0.5, noting(clock, "little", ends))

    clock.run_until(lambda: False)

    assert ends == {"before": 2.0, "busy": 3.0, "little": 3.5, "much": 4.0}


def test_a_thread_that_wakes_up_takes_an_idle_core_and_else_waits_for_its_own() -> None:
    clock, ends = Clock(), dict[str, float]()
    cores = Cores(clock, Machine(cores=2), turn=10.0)
    zero, one, third = Thread(cores), Thread(cores), Thread(cores)
    zero.do(3.0, noting(clock, "on 0", ends))
    one.do(1.0, noting(clock, "on 1", ends))
    assert third.core == 0
    third.do(1.0, noting(clock, "waits for 0", ends))

    clock.run_until(lambda: False)

    # Core 1 was idle since 1.
    assert ends == {"on 1": 1.0, "on 0": 3.0, "waits for 0": 4.0}
    zero.do(1.0, noting(clock, "on 0", ends))
    third.do(1.0, noting(clock, "on the other", ends))
    clock.run_until(lambda: False)
    assert (third.core, ends["on the other"], ends["on 0"]) == (1, 5.0, 5.0)


def test_who_is_woken_waits_until_its_core_is_awake_and_who_goes_on_does_not() -> None:
    clock, ends = Clock(), dict[str, float]()
    cores = Cores(clock, Machine(cores=2, wake=0.25), turn=10.0)
    one, other = Thread(cores), Thread(cores)
    one.do(1.0, lambda: [other.do(1.0, noting(clock, "other", ends)), one.do(1.0, noting(clock, "one", ends))])

    clock.run_until(lambda: False)

    # The other one could not take the core of who woke it, which still ran there.
    assert ends == {"one": 2.25, "other": 2.5}
    assert (one.core, other.core) == (0, 1)


def test_who_is_woken_by_one_that_goes_to_sleep_takes_its_core() -> None:
    clock, ends = Clock(), dict[str, float]()
    cores = Cores(clock, Machine(cores=2), turn=10.0)
    waker, busy, woken = Thread(cores), Thread(cores), Thread(cores)
    woken.core = busy.core
    busy.do(5.0, noting(clock, "busy", ends))
    waker.do(1.0, lambda: woken.do(1.0, noting(clock, "woken", ends)))

    clock.run_until(lambda: False)

    assert ends == {"woken": 2.0, "busy": 5.0}
    assert woken.core == waker.core != busy.core


@pytest.mark.parametrize(
    ("short", "begins_at"),
    [
        # Its core is still awake.
        (0.25, 3.0),
        # It has gone to sleep, and so has its core.
        (1.0, 3.5),
    ],
)
def test_who_waits_without_sleep_goes_on_at_once_unless_others_have_had_its_core_for_long(
    short: float, begins_at: float
) -> None:
    clock, ends = Clock(), dict[str, float]()
    cores = Cores(clock, Machine(cores=1, wake=0.5), turn=10.0, patience=0.5)
    awake, other = Thread(cores), Thread(cores)
    awake.stays_awake = True
    awake.do(0.5, noting(clock, "before", ends))
    clock.after(1.5, lambda: other.do(short, noting(clock, "other", ends)))
    clock.after(3.0, lambda: awake.do(1.0, noting(clock, "after", ends)))

    clock.run_until(lambda: False)

    assert ends == {"before": 1.0, "other": 1.5 + short, "after": begins_at + 1.0}


def test_threads_of_large_machines_never_wait_for_each_other() -> None:
    clock, ends = Clock(), dict[str, float]()
    thread = threads_of(clock, None)
    for name in map(str, range(100)):
        thread().do(1.0, noting(clock, name, ends))

    clock.run_until(lambda: False)

    assert set(ends.values()) == {1.0}
