"""What checkpoints keep of hooks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch_estimator.errors import InvalidTypeError
from torch_estimator.hooks.hook import Hook
from torch_estimator.json_text import parse_json

States = dict[str, list[dict[str, Any] | None]]


def hook_states(hooks: Sequence[Hook]) -> States:
    """The states of those that have one: by class, in the order of the hooks.

    Raises:
        InvalidTypeError: A state is not JSON.
    """
    states: States = {}
    for hook in hooks:
        states.setdefault(_kind(hook), []).append(_checked(hook, hook.state()))
    return {kind: several for kind, several in states.items() if any(state is not None for state in several)}


def restore_hooks(hooks: Sequence[Hook], states: Mapping[str, Sequence[dict[str, Any] | None]]) -> None:
    """Gives hooks the states that `hook_states` returned; those that are new start without."""
    waiting = {kind: iter(several) for kind, several in states.items()}
    for hook in hooks:
        state = next(waiting.get(_kind(hook), iter(())), None)
        if state is not None:
            hook.restore(state)


def _kind(hook: Hook) -> str:
    return type(hook).__qualname__


def _checked(hook: Hook, state: dict[str, Any] | None) -> dict[str, Any] | None:
    if state is None:
        return None
    try:
        # As it will be read back: equal states must be equal, and the hook may go on changing its own.
        copied = parse_json(json.dumps(state))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTypeError(f"state() of {_kind(hook)} must return what JSON can hold: {error}.") from error
    if not isinstance(copied, dict):
        raise InvalidTypeError(f"state() of {_kind(hook)} must return a dict or None, but returned {state!r}.")
    return copied
