"""Stop signals, sent to the process of the tests itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from torch_estimator.stop_signals import on_stop_signals

BOTH = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def _as_python_starts() -> Iterator[None]:
    """Set Python's default handlers, even if the tests run with SIGINT ignored."""
    before = {number: signal.getsignal(number) for number in BOTH}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_signal_calls_stop_and_the_previous_handlers_return() -> None:
    came: list[int] = []
    with on_stop_signals(came.append, until="it goes on"):
        for number in BOTH:
            signal.raise_signal(number)
    assert came == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_the_second_ctrl_c_raises_and_each_sigterm_calls_stop() -> None:
    came: list[int] = []
    with pytest.raises(KeyboardInterrupt), on_stop_signals(came.append, until="it goes on"):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        came.append(0)
    assert came == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.parametrize("number", BOTH)
def test_a_users_handler_and_an_ignored_signal_stay(number: signal.Signals) -> None:
    came: list[int] = []
    own: list[int] = []
    signal.signal(number, lambda number, frame: own.append(number))
    with on_stop_signals(came.append, until="it goes on"):
        signal.raise_signal(number)
    signal.raise_signal(number)
    assert (own, came) == ([number, number], [])
    signal.signal(number, signal.SIG_IGN)
    with on_stop_signals(came.append, until="it goes on"):
        signal.raise_signal(number)
    assert came == []
    assert signal.getsignal(number) == signal.SIG_IGN


@pytest.mark.parametrize("number", BOTH)
def test_a_handler_that_is_set_in_the_body_stays(number: signal.Signals) -> None:
    def own(number: int, frame: object) -> None:
        pass

    with on_stop_signals(lambda number: None, until="it goes on"):
        signal.signal(number, own)
    assert signal.getsignal(number) == own


def test_in_another_thread_nothing_is_handled() -> None:
    found: list[object] = []

    def handlers() -> None:
        with on_stop_signals(found.append, until="it goes on"):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=handlers)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
