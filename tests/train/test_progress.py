"""What is seen on a terminal: bars at the bottom, log lines above them."""

from __future__ import annotations

import io
import logging
import sys

import pytest

import torch_estimator as te
from tests.line_jobs import line, points
from torch_estimator.train.progress import ProgressBar, Screen, logged_above


class Terminal(io.StringIO):
    """Remembers the lines that one would see, and how often it was written to."""

    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.lines = [""]
        self.row = self.column = self.writes = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes += 1
        rest = text
        while rest:
            for code, act in (("\x1b[A", self._up), ("\x1b[J", self._erase), ("\r", self._back), ("\n", self._down)):
                if rest.startswith(code):
                    act()
                    rest = rest.removeprefix(code)
                    break
            else:
                old = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = old[: self.column] + rest[0] + old[self.column + 1 :]
                self.column += 1
                rest = rest[1:]
        return len(text)

    def _up(self) -> None:
        self.row -= 1

    def _back(self) -> None:
        self.column = 0

    def _down(self) -> None:
        self.row, self.column = self.row + 1, 0
        self.lines += [""] * (self.row + 1 - len(self.lines))

    def _erase(self) -> None:
        self.lines[self.row :] = [self.lines[self.row][: self.column]]


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Makes stderr a terminal, for the test itself: pytest sets stderr anew after the fixtures."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    return terminal


def test_lines_stay_at_the_bottom_whatever_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    screen = Screen()
    screen.show("a", "training 1")
    screen.print("first")
    screen.show("b", "evaluating")
    screen.print("second\nthird")
    screen.show("a", "trained")
    assert terminal.lines == ["first", "second", "third", "trained", "evaluating"]
    screen.remove("a")
    assert terminal.lines == ["first", "second", "third", "evaluating"]
    screen.remove("b")
    screen.print("end")
    assert terminal.lines == ["first", "second", "third", "end", ""]
    assert terminal.writes == 8


def test_what_loggers_print_on_a_terminal_appears_above_as_they_format_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    logger, elsewhere = logging.Logger("a"), io.StringIO()
    shown, kept = logging.StreamHandler(terminal), logging.StreamHandler(elsewhere)
    shown.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    shown.setLevel(logging.INFO)
    shown.addFilter(lambda record: "secret" not in record.getMessage())
    logger.handlers = [shown, kept]
    screen = Screen()
    screen.show("bar", "bar")
    with logged_above(screen, [logger]):
        logger.info("one %d", 1)
        logger.debug("too much")
        logger.info("secret")
        logger.addHandler(added := logging.NullHandler())
    assert terminal.lines[0] == "INFO one 1"
    assert terminal.lines[-1] == "bar"
    assert "secret" not in "".join(terminal.lines)
    assert elsewhere.getvalue().startswith("one 1\ntoo much\nsecret\n")
    assert logger.handlers == [shown, kept, added]


def test_a_bar_shows_where_it_stands_how_fast_it_moves_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    now = [0.0]
    with ProgressBar("Training", total=100, initial=10, clock=lambda: now[0]) as bar:
        assert terminal.lines[-1].startswith("Training:  10%|")
        now[0] = 0.05
        assert not bar.due
        bar.move_to(15, loss="1")
        assert "10/100" in terminal.lines[-1]
        now[0] = 2.0
        assert bar.due
        bar.move_to(50, loss="0.25")
        assert "50/100 [00:02<00:02, 20.00step/s, loss=0.25]" in terminal.lines[-1]
    assert terminal.lines == [""]


def test_a_bar_without_an_end_or_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    now = [0.0]
    with ProgressBar("Evaluating", total=None, clock=lambda: now[0]) as bar:
        now[0] = 1.0
        bar.move_to(30)
        assert terminal.lines == ["Evaluating: 30step [00:01, 30.00step/s]"]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with ProgressBar("Evaluating", total=3) as bar:
        bar.move_to(2)
        assert not bar.visible and not bar.due
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


class Prints(te.Hook):
    """Keeps what the terminal shows after each step."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.seen: list[str] = []

    def after_step(self, context: te.RunContext) -> None:
        self.seen.append(self.terminal.lines[-1])


def test_a_training_on_a_terminal_leaves_its_log_and_no_bar(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    terminal = use_terminal(monkeypatch)
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    hook = Prints(terminal)
    try:
        line(tmp_path, log_step_count_steps=4).train(lambda: points().repeat(), hooks=[hook], steps=9)
    finally:
        root.handlers = before
    assert all(one.startswith("Training: ") for one in hook.seen)
    assert terminal.lines[-1] == ""
    logged = [one.split(" (")[0] for one in terminal.lines if "loss = " in one]
    assert [one.rpartition("step = ")[2] for one in logged] == ["0", "4", "8"]
    assert all(one.startswith("INFO:torch_estimator:") for one in terminal.lines[:-1])


def test_where_the_program_logs_by_itself_each_line_appears_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    terminal = use_terminal(monkeypatch)
    root = logging.getLogger()
    own = logging.StreamHandler(terminal)
    before, root.handlers = root.handlers, [own]
    try:
        line(tmp_path).train(lambda: points().repeat(), steps=2)
        assert root.handlers == [own]
    finally:
        root.handlers = before
    assert len([one for one in terminal.lines if "Saving checkpoints for 0" in one]) == 1
    assert not any("Training: " in one for one in terminal.lines)
