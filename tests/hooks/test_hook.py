"""The base of all hooks."""

from __future__ import annotations

import pytest

from torch_estimator.hooks import Hook


@pytest.mark.parametrize(
    ("theirs", "ours"), [("before_run", "before_step"), ("after_run", "after_step"), ("after_create_session", "begin")]
)
def test_a_session_hook_ported_half_does_not_stay_silent(theirs: str, ours: str) -> None:
    with pytest.raises(TypeError, match=f"Ported.{theirs} would never be called; a Hook has {ours} instead"):
        type("Ported", (Hook,), {theirs: lambda self: None})
