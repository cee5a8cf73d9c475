"""Events come in the order of their times; what is busy lets the next one wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.simulation.clock import Clock, Station, Thread, enough_cores


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


def test_a_station_serves_as_many_at_a_time_as_it_has_places() -> None:
    clock, ends = Clock(), dict[str, float]()
    station = Station(clock, 2)
    for name in "abc":
        station.serve(1.0, noting(clock, name, ends))

    clock.run_until(lambda: False)

    assert ends == {"a": 1.0, "b": 1.0, "c": 2.0}
    assert station.busy_secs == 3.0


def test_a_crowded_station_is_slower() -> None:
    clock, ends = Clock(), dict[str, float]()
    station = Station(clock, 2, crowding=1.5)
    for name in "ab":
        station.serve(1.0, noting(clock, name, ends))

    clock.run_until(lambda: False)

    assert ends == {"a": 1.0, "b": 1.5}


@pytest.mark.parametrize(("cores", "ends_at"), [(1, [1.0, 3.0, 2.0]), (2, [1.0, 2.0, 1.0])])
def test_a_thread_does_one_thing_at_a_time_on_a_core(cores: int, ends_at: list[float]) -> None:
    clock, ends = Clock(), dict[str, float]()
    station = Station(clock, cores)
    one, other = Thread(station), Thread(station)
    one.do(1.0, noting(clock, "a", ends))
    one.do(1.0, noting(clock, "b", ends))
    other.do(1.0, noting(clock, "c", ends))

    clock.run_until(lambda: False)

    assert [ends[name] for name in "abc"] == ends_at
    assert one.busy_secs == 2.0


def test_threads_of_a_large_machine_never_wait() -> None:
    clock, ends = Clock(), dict[str, float]()
    cores = enough_cores(clock)
    for name in map(str, range(100)):
        Thread(cores).do(1.0, noting(clock, name, ends))

    clock.run_until(lambda: False)

    assert set(ends.values()) == {1.0}


def test_threads_take_turns() -> None:
    clock, ends = Clock(), dict[str, float]()
    cores = Station(clock, turn=0.25)
    long, short = Thread(cores), Thread(cores)
    long.do(1.0, noting(clock, "long", ends))
    short.do(0.25, noting(clock, "short", ends))

    clock.run_until(lambda: False)

    assert ends == {"long": 1.25, "short": 0.5}
    assert long.busy_secs == 1.0
