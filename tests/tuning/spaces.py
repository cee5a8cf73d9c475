"""Random spaces for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from torch_estimator.tuning.space import Categorical, Child, Discrete, Double, Integer, Parameter, Space

SCALES = st.sampled_from(["LINEAR", "LOG", "REVERSE_LOG"])


@st.composite
def ranges(draw: st.DrawFn) -> Parameter:
    """A Double or an Integer on any scale."""
    scale = draw(SCALES)
    if draw(st.booleans()):
        low, high = sorted(draw(st.tuples(*[st.integers(-50 if scale == "LINEAR" else 1, 1 << 60)] * 2)))
        return Integer("x", low, high, scale=scale)
    least = -1e300 if scale == "LINEAR" else 1e-300
    first, second = sorted(draw(st.tuples(*[st.floats(least, 1e300)] * 2)))
    return Double("x", first, second, scale=scale)


@st.composite
def choices(draw: st.DrawFn) -> Parameter:
    """A Categorical or a Discrete."""
    if draw(st.booleans()):
        return Categorical("x", tuple(draw(st.lists(st.text(max_size=5), min_size=1, max_size=6, unique=True))))
    numbers = draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6, unique=True))
    return Discrete("x", tuple(map(repr, numbers)))


@st.composite
def finite(draw: st.DrawFn, name: str = "x", depth: int = 2) -> Parameter:
    """A parameter with a small grid and conditional parameters, whose names differ."""
    kind = draw(st.sampled_from(["integer", "categorical", "discrete"]))
    size = draw(st.integers(1, 3 if depth == 2 else 2))
    parameter: Parameter = {
        "integer": Integer(name, 5, 4 + size),
        "categorical": Categorical(name, tuple("abc"[:size])),
        "discrete": Discrete(name, ("0.10", "1.50", "2")[:size]),
    }[kind]
    grid = list(parameter.grid())
    children = []
    for index in range(draw(st.integers(0, depth))):
        values = draw(st.lists(st.sampled_from(grid), min_size=1, unique=True))
        children.append(Child(draw(finite(f"{name}{index}", depth - 1)), tuple(values)))
    return type(parameter)(**{**vars(parameter), "children": tuple(children)})


@st.composite
def finite_spaces(draw: st.DrawFn) -> Space:
    return Space(tuple(draw(finite(name)) for name in "xy"[: draw(st.integers(1, 2))]))
