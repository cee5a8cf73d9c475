"""Sides in turn, and what is made of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.protocol import SideError, alternate, at_least, at_most, conclude, table


def reporting(name: str, values: list[float], order: list[str]) -> Callable[[], dict[str, Any]]:
    left: Iterator[float] = iter(values)

    def run() -> dict[str, Any]:
        order.append(name)
        return {"peer": name.title(), "version": "1", "steps_per_s": next(left), "auc": None}

    return run


def test_sides_run_in_turn() -> None:
    order: list[str] = []

    alternate({"a": reporting("a", [1, 2], order), "b": reporting("b", [3, 4], order)}, rounds=2)

    assert order == ["a", "b", "a", "b"]


def test_the_ratio_is_the_median_of_ratios_within_rounds() -> None:
    measured = alternate(
        {"ours": reporting("ours", [100, 10, 90], []), "theirs": reporting("theirs", [10, 2, 30], [])}, rounds=3
    )

    assert measured.ratio("steps_per_s", over="ours", under="theirs") == 5
    assert measured.median("ours", "steps_per_s") == 90
    assert measured.median("ours", "auc") is None
    assert measured.ratio("steps_per_s", over="ours", under="nobody") is None
    assert measured.versions() == {"Ours": "1", "Theirs": "1"}


def test_a_side_that_fails_is_left_out_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> dict[str, Any]:
        raise SideError("no wheel")

    measured = alternate({"broken": broken, "ours": reporting("ours", [1, 2], [])}, rounds=2)

    assert measured.values("ours", "steps_per_s") == [1, 2]
    assert measured.failures == {"broken": "no wheel"}
    assert capsys.readouterr().err.count("broken is left out: no wheel") == 1


def test_a_verdict_says_what_was_promised_and_whether_it_holds() -> None:
    assert str(at_least("steps/s over TF", 8, 9.31)) == "steps/s over TF: at least 8: 9.31, holds"
    assert str(at_least("steps/s over TF", 8, 7.99)) == "steps/s over TF: at least 8: 7.99, DOES NOT HOLD"
    assert str(at_most("loss", 0.3114, 0.3115, digits=4)) == "loss: at most 0.3114: 0.3115, DOES NOT HOLD"
    assert at_most("loss", 0.3114, 0.3114).holds


@pytest.mark.parametrize(
    ("value", "failed", "quick", "status"),
    [(9, (), False, 0), (7, (), False, 1), (None, (), False, 0), (9, ("jax",), False, 1), (7, (), True, 0)],
)
def test_the_exit_status_tells_a_broken_promise_and_a_side_that_failed(
    value: float | None, failed: tuple[str, ...], quick: bool, status: int
) -> None:
    assert conclude([at_least("ratio", 8, value)], failed=failed, quick=quick) == status


def test_a_quick_run_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    conclude([at_least("ratio", 8, 7.0)], quick=True)

    assert capsys.readouterr().out.splitlines() == ["A quick run, too short to judge by:", "ratio: at least 8: 7.00"]


def test_columns_are_aligned() -> None:
    lines = table(["peer", "steps/s"], [["ours", 7421.3], ["hand-written", None]]).splitlines()

    assert lines == ["peer          steps/s", "ours            7,421", "hand-written        -"]
