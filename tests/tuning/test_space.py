"""Parameters: values on their scales, spellings, conditions, grids, and mistakes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.trials import tried
from tests.tuning.spaces import choices, finite_spaces, ranges
from torch_estimator.errors import InvalidValueError
from torch_estimator.runs.state_file import from_json
from torch_estimator.tuning.space import Axis, Categorical, Child, Discrete, Double, Integer, Parameter, Space


@tried(300)
@given(st.one_of(ranges(), choices()), st.floats(0, 1))
def test_each_unit_number_leads_to_a_value_whose_text_reads_back_exactly(parameter: Parameter, unit: float) -> None:
    text = parameter.text(unit)
    assert parameter.text_at(parameter.number_of(text)) == text
    value = parameter.value_of(text)
    if isinstance(parameter, Double | Integer):
        assert parameter.min <= value <= parameter.max
        assert ("." in text or "e" in text) is isinstance(parameter, Double)
    else:
        assert text in parameter.grid()


@tried(100)
@given(ranges(), st.floats(0, 1), st.floats(0, 1))
def test_unit_numbers_keep_their_order(parameter: Parameter, first: float, second: float) -> None:
    lower, higher = sorted((first, second))
    assert parameter.axis.at(lower) <= parameter.axis.at(higher)


@tried(100)
@given(ranges())
def test_the_ends_of_a_range_are_reached(parameter: Parameter) -> None:
    axis, exact = parameter.axis, 0 if isinstance(parameter, Integer) else 1e-12
    assert [axis.at(0.0), axis.at(1.0)] == pytest.approx([axis.low, axis.high], rel=exact, abs=0)


def test_the_middle_of_a_scale_is_what_the_scale_says() -> None:
    middles = [Double("x", 1, 100, scale=scale).text(0.5) for scale in ("LINEAR", "LOG", "REVERSE_LOG")]
    assert [float(text) for text in middles] == pytest.approx([50.5, 10, 91])


@tried(50)
@given(st.integers(1, 40), st.integers(-5, 5))
def test_whole_numbers_have_equal_shares_on_a_linear_scale(size: int, low: int) -> None:
    axis = Axis(low=low, high=low + size - 1)
    shares = Counter(axis.at((index + 0.5) / (size * 10)) for index in range(size * 10))
    assert shares == dict.fromkeys(range(low, low + size), 10)


def test_whole_numbers_of_a_logarithmic_scale_have_shares_like_their_logarithms() -> None:
    axis = Axis(low=1, high=4, is_log=True)
    shares = Counter(axis.at((index + 0.5) / 10000) for index in range(10000))
    bounds = [math.log(number + 0.5) for number in range(5)]
    for number in range(1, 5):
        share = (bounds[number] - bounds[number - 1]) / (bounds[4] - bounds[0])
        assert shares[number] / 10000 == pytest.approx(share, abs=2e-4)


def test_values_keep_their_spelling_and_numbers_their_order() -> None:
    assert Categorical("x", ("yes", "1.50", "64 32")).values == ("yes", "1.50", "64 32")
    discrete = Discrete("x", ("1e-1", "0.0010", "1.50"))
    assert list(discrete.grid()) == ["0.0010", "1e-1", "1.50"]
    assert discrete.text_at(discrete.number_of("1.5")) == "1.50"
    assert [discrete.value_of(text) for text in ("1.50", "-3")] == [1.5, -3]
    assert Integer("x", 3, 3).text(0.5) == "3"


def every_point(parameters: Sequence[Parameter]) -> list[dict[str, str]]:
    """All points of a grid, as a definition: each parameter's values with all points of what exists there."""
    each = [
        [{one.name: text, **below} for text in one.grid() for below in every_point(one.there(text))]
        for one in parameters
    ]
    return [{name: text for part in parts for name, text in part.items()} for parts in product(*each)]


@tried(60)
@given(finite_spaces())
def test_the_grid_has_each_combination_once_with_what_exists_there(space: Space) -> None:
    points = list(space.points())
    assert points == every_point(space.parameters)
    assert space.size == len(points)


@tried(60)
@given(st.one_of(finite_spaces(), ranges().map(lambda one: Space((one,)))))
def test_a_space_is_json_and_comes_back(space: Space) -> None:
    assert from_json(Space, json.loads(json.dumps(dataclasses.asdict(space)))) == space


def test_a_conditional_parameter_exists_for_given_values_at_any_depth() -> None:
    below = Child(Double("nesterov", 0, 1), ("0.5",))
    momentum = Child(Discrete("momentum", ("0.50", "0.9"), children=(below,)), ("sgd", "rms"))
    space = Space((Categorical("optimizer", ("sgd", "rms", "adam"), children=(momentum,)),))
    assert space.texts(lambda key, one: one.text(0.0)) == {"optimizer": "sgd", "momentum": "0.50", "nesterov": "0.0"}
    assert list(space.texts(lambda key, one: one.text(0.5))) == ["optimizer", "momentum"]
    assert list(space.texts(lambda key, one: one.text(0.9))) == ["optimizer"]
    assert space.values({"optimizer": "rms", "momentum": ".5", "nesterov": "0.25"}) == {
        "optimizer": "rms",
        "momentum": 0.5,
        "nesterov": 0.25,
    }


def test_parameters_of_one_name_must_not_exist_together() -> None:
    def space(first: tuple[str, ...], second: tuple[str, ...]) -> Space:
        children = Child(Double("rate", 0, 1), first), Child(Double("rate", 2, 3), second)
        return Space((Categorical("kind", ("a", "b", "c"), children=children),))

    keys = set()
    for chosen in ("a", "b"):

        def choose(key: str, parameter: Parameter, chosen: str = chosen) -> str:
            keys.add(key)
            return chosen if key == "kind" else parameter.text(0.5)

        assert set(space(("a",), ("b", "c")).texts(choose)) == {"kind", "rate"}
    # Samplers tell them apart by their keys.
    assert len(keys) == 3
    with pytest.raises(InvalidValueError, match="there are two parameters 'rate'; give them different names"):
        space(("a", "b"), ("b",))
    with pytest.raises(InvalidValueError, match="two parameters 'kind'"):
        Space((Categorical("kind", ("a",), children=(Child(Integer("kind", 1, 2), ("a",)),)),))
    with pytest.raises(InvalidValueError, match="two parameters 'x'"):
        Space((Integer("x", 1, 2), Double("x", 1, 2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Double("x", 1, 0.5), "parameter 'x' has no values from 1.0 to 0.5; give a minimum, and a "
         "maximum above it."),
        (lambda: Double("x", 0, math.inf), "parameter 'x' has no values from 0.0 to inf; give a minimum, "
         "and a maximum above it."),
        (lambda: Integer("x", 0, 5, scale="LOG"), "parameter 'x' has a logarithmic scale, which needs a minimum above "
         "0, but got 0."),
        (lambda: Double("x", -1, 5, scale="REVERSE_LOG"), "parameter 'x' has a logarithmic scale, which needs a "
         "minimum above 0, but got -1.0."),
        (lambda: Categorical("x", ()), "parameter 'x' has no values."),
        (lambda: Categorical("x", ("a", "b", "a")), "parameter 'x' has the value a twice."),
        (lambda: Discrete("x", ("1.5", "2", "1.50")), "parameter 'x' has the value 1.50 twice."),
        (lambda: Discrete("x", ("1", "two")), "parameter 'x' must have numbers as values, but got 1, two."),
        (lambda: Discrete("x", ("1", "nan")), "parameter 'x' must have numbers as values, but got 1, nan."),
        (lambda: Double("a b", 0, 1), "the name of a parameter must have no space, no '=' and no '-' in front, but got "
         "'a b'."),
        (lambda: Double("x", 0, 1).grid(), "parameter 'x' is a DOUBLE, which has no grid; make it a DISCRETE, or "
         "choose another algorithm."),
        (lambda: Double("x", 0, 1, children=(Child(Double("y", 0, 1), ("0.5",)),)), "parameter 'y' must "
         "depend on at least one value of 'x', which must not be a DOUBLE."),
        (lambda: Integer("x", 0, 1, children=(Child(Double("y", 0, 1), ("2",)),)), "parameter 'x' must be from 0 to "
         "1, but got 2."),
        (lambda: Integer("x", 0, 1, children=(Child(Double("y", 0, 1), ()),)), "parameter 'y' must depend on "
         "at least one value of 'x', which must not be a DOUBLE."),
        (lambda: Space(()), "there are no parameters; name at least one."),
        (lambda: Space((Integer("x", 0, 1),)).values({}), "parameter 'x' has no value."),
        (lambda: Space((Integer("x", 0, 1),)).values({"x": "1.0"}), "parameter 'x' must be from 0 to 1, but got 1.0."),
        (lambda: Space((Integer("x", 0, 1),)).values({"x": "1", "y": "1"}), "parameter 'y' does not exist for these "
         "values."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(make: object, message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        make()
    assert str(caught.value) == message
