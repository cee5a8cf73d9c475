"""Commands end with one sentence for a user's error, and with a traceback for a bug."""

from __future__ import annotations

import pytest

from torch_estimator.errors import InvalidValueError, RowError, exit_on_user_error


def test_a_user_error_ends_with_its_sentence_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited, exit_on_user_error():
        raise InvalidValueError("steps must be positive, but got 0.")
    assert exited.value.code == 2
    assert capsys.readouterr().err == "error: steps must be positive, but got 0.\n"


def test_a_file_that_cannot_be_used_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited, exit_on_user_error():
        open("/nowhere/at/all")  # noqa: SIM115  # it is not opened
    assert exited.value.code == 2
    assert capsys.readouterr().err == "error: /nowhere/at/all: No such file or directory.\n"


def test_bugs_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError), exit_on_user_error():
        print(1 / 0)


def test_without_an_error_nothing_happens() -> None:
    with exit_on_user_error():
        pass


def test_a_row_error_says_where_the_row_is_in_its_batch() -> None:
    assert str(RowError("'x' is not a number", row=3, column="age")) == (
        "column 'age', row 3 of the batch: 'x' is not a number"
    )


def test_ctrl_c_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited, exit_on_user_error():
        raise KeyboardInterrupt
    assert exited.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
