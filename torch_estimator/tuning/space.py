"""Parameters of a study: which values each may take, on which scale, and which exist only for values of another one.

A value is known by its text, which a trial gets as ``--NAME=TEXT``. Samplers see the values of a parameter as numbers
on its `Axis`, so that scales and spellings are the business of this file alone.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch_estimator.errors import InvalidValueError
from torch_estimator.json_text import shortened
from torch_estimator.runs.state_file import dataclass_from_json

Scale = Literal["LINEAR", "LOG", "REVERSE_LOG"]

_NAME = re.compile(r"[^\s=-][^\s=]*")
_TAKEN = "job-dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Numbers from `low` to `high`, whole ones if these are whole, on a linear or a logarithmic scale.

    The numbers of an axis that is not ordered say nothing about distances.
    """

    low: float
    high: float
    is_log: bool = False
    is_ordered: bool = True

    @property
    def size(self) -> int | None:
        """How many numbers there are; None if they are not whole."""
        return self.high - self.low + 1 if isinstance(self.low, int) and isinstance(self.high, int) else None

    def at(self, unit: float) -> float:
        """Return the number at a unit number in [0, 1], of which each number gets an equal share on the scale.

        >>> [Axis(low=1, high=4).at(unit) for unit in (0.0, 0.24, 0.25, 1.0)]
        [1, 1, 2, 4]
        """
        low, high, size = self.low, self.high, self.size
        if size is not None and not self.is_log:
            return min(low + int(unit * size), high)
        if size is not None:
            # The share of a whole number begins and ends halfway to its neighbours.
            low, high = low - 0.5, high + 0.5
        if self.is_log:
            number = math.exp(math.log(low) * (1 - unit) + math.log(high) * unit)
        else:
            number = low * (1 - unit) + high * unit
        return min(max(number if size is None else round(number), self.low), self.high)


@dataclass(frozen=True, slots=True)
class Child:
    """A conditional parameter, and the texts of its parent's values for which it exists."""

    parameter: Parameter
    values: tuple[str, ...]


@dataclass(frozen=True)
class Parameter(ABC):
    """A parameter of the program, which it takes as ``--NAME=VALUE``, and the parameters that depend on its value."""

    name: str
    children: tuple[Child, ...] = field(default=(), kw_only=True)
    type: str = field(default="", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidValueError(
                f"the name of a parameter must have no space, no '=' and no '-' in front, but got {self.name!r}."
            )
        if self.name.replace("_", "-") == _TAKEN:
            raise self._problem(f"cannot be told from the --{_TAKEN} that each trial gets; give it another name")
        children = []
        for child in self.children:
            if self.axis.size is None or not child.values:
                raise child.parameter._problem(
                    f"must depend on at least one value of {self.name!r}, which must not be a DOUBLE"
                )
            # The texts as this parameter has them: 1.50 may be 1.5 in the condition.
            texts = (self.text_at(self.number_of(text)) for text in child.values)
            children.append(Child(child.parameter, tuple(texts)))
        object.__setattr__(self, "children", tuple(children))

    @property
    @abstractmethod
    def axis(self) -> Axis:
        """Numbers of the values, for samplers."""

    @abstractmethod
    def text_at(self, number: float) -> str:
        """Return the text of the value at a number of the axis."""

    @abstractmethod
    def number_of(self, text: str) -> float:
        """Return the number of a value on the axis; raise an InvalidValueError for any other text."""

    @abstractmethod
    def value_of(self, text: str) -> float | str:
        """Return a value as a function in Python wants it."""

    def text(self, unit: float) -> str:
        """Return the text of the value at a unit number in [0, 1]."""
        return self.text_at(self.axis.at(unit))

    def grid(self) -> Iterator[str]:
        """Return the texts of all values; raise an InvalidValueError if there is no end of them."""
        low, size = self.axis.low, self.axis.size
        if size is None:
            raise self._problem("is a DOUBLE, which has no grid; make it a DISCRETE, or choose another algorithm")
        return (self.text_at(low + index) for index in range(size))

    def there(self, text: str) -> list[Parameter]:
        """Return the parameters that exist where this one has a value."""
        return [child.parameter for child in self.children if text in child.values]

    @staticmethod
    def from_json(content: Any) -> Parameter:
        """Return a parameter from the JSON of `dataclasses.asdict`; raise a ValueError for any other JSON."""
        kinds: dict[str, type[Parameter]] = {**TYPES, "BOOLEAN": Boolean}
        if not isinstance(content, dict) or content.get("type") not in kinds:
            raise ValueError(f"expected a parameter, but got {shortened(content)}")
        return dataclass_from_json(kinds[content["type"]], content)

    def _problem(self, problem: str) -> InvalidValueError:
        return InvalidValueError(f"parameter {self.name!r} {problem}.")


@dataclass(frozen=True)
class _Range(Parameter):
    min: float
    max: float
    scale: Scale = "LINEAR"

    def __post_init__(self) -> None:
        if not -math.inf < self.min <= self.max < math.inf:
            raise self._problem(f"has no values from {self.min} to {self.max}; give a minimum, and a maximum above it")
        if self.scale not in get_args(Scale):
            raise self._problem(f"must have a scale {', '.join(get_args(Scale))}, but got {self.scale!r}")
        if self.scale != "LINEAR" and self.min <= 0:
            raise self._problem(f"has a logarithmic scale, which needs a minimum above 0, but got {self.min}")
        super().__post_init__()

    @property
    def axis(self) -> Axis:
        return Axis(low=self.min, high=self.max, is_log=self.scale != "LINEAR")

    def _mirrored(self, value: float) -> float:
        # A reverse logarithmic scale is as fine at the maximum as a logarithmic one is at the minimum.
        if self.scale != "REVERSE_LOG":
            return value
        return min(max(self.min + self.max - value, self.min), self.max)

    def text_at(self, number: float) -> str:
        return repr(type(self.min)(self._mirrored(number)))

    def number_of(self, text: str) -> float:
        try:
            value = self.value_of(text)
        except ValueError:
            value = math.nan
        if not self.min <= value <= self.max:
            raise self._problem(f"must be from {self.min} to {self.max}, but got {text}")
        return self._mirrored(value)

    def value_of(self, text: str) -> float:
        return type(self.min)(text)


@dataclass(frozen=True)
class Double(_Range):
    """Any number from `min` to `max`.

    >>> [Double("rate", 0.25, 4, scale="LOG").text(unit) for unit in (0.0, 0.5, 1.0)]
    ['0.25', '1.0', '4.0']
    """

    type: str = field(default="DOUBLE", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "min", float(self.min))
        object.__setattr__(self, "max", float(self.max))
        super().__post_init__()


@dataclass(frozen=True)
class Integer(_Range):
    """Any whole number from `min` to `max`.

    >>> list(Integer("layers", 1, 3).grid())
    ['1', '2', '3']
    """

    type: str = field(default="INTEGER", kw_only=True, repr=False)
    min: int
    max: int


@dataclass(frozen=True)
class Categorical(Parameter):
    """One of several texts, which have no order.

    >>> Categorical("optimizer", ("Adam", "Ftrl")).text(0.6)
    'Ftrl'
    """

    values: tuple[str, ...]
    type: str = field(default="CATEGORICAL", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        texts = [str(text) for text in self.values]
        try:
            values = [self.value_of(text) for text in texts]
        except ValueError as error:
            raise self._problem(f"must have numbers as values, but got {', '.join(texts)}") from error
        if not texts:
            raise self._problem("has no values")
        for index, value in enumerate(values):
            if value in values[:index]:
                raise self._problem(f"has the value {texts[index]} twice")
        object.__setattr__(self, "values", tuple(self._in_order(texts)))
        super().__post_init__()

    def _in_order(self, texts: list[str]) -> list[str]:
        return texts

    @property
    def axis(self) -> Axis:
        return Axis(low=0, high=len(self.values) - 1, is_ordered=False)

    def text_at(self, number: float) -> str:
        return self.values[int(number)]

    def number_of(self, text: str) -> float:
        try:
            return [self.value_of(one) for one in self.values].index(self.value_of(text))
        except ValueError:
            raise self._problem(f"must be one of {', '.join(self.values)}, but got {text}") from None

    def value_of(self, text: str) -> float | str:
        return text


@dataclass(frozen=True)
class Discrete(Categorical):
    """One of several numbers, which samplers see in their order; each keeps its spelling.

    >>> Discrete("size", ("128", "64.0", "1e3")).values
    ('64.0', '128', '1e3')
    """

    type: str = field(default="DISCRETE", kw_only=True, repr=False)

    def _in_order(self, texts: list[str]) -> list[str]:
        return sorted(texts, key=float)

    @property
    def axis(self) -> Axis:
        return Axis(low=0, high=len(self.values) - 1)

    def value_of(self, text: str) -> float | str:
        if not math.isfinite(float(text)):
            raise ValueError(text)
        return int(text) if text.removeprefix("-").isdecimal() else float(text)


@dataclass(frozen=True)
class Boolean(Categorical):
    """True or False, which only a study in Python has.

    >>> Boolean("shuffle", ("True", "False")).value_of("False")
    False
    """

    type: str = field(default="BOOLEAN", kw_only=True, repr=False)

    def value_of(self, text: str) -> float | str:
        if text not in ("True", "False"):
            raise ValueError(text)
        return text == "True"


TYPES: dict[str, type[Parameter]] = {
    "DOUBLE": Double,
    "INTEGER": Integer,
    "CATEGORICAL": Categorical,
    "DISCRETE": Discrete,
}


@dataclass(frozen=True)
class Space:
    """The parameters of a study in their order; a conditional one comes after its parent.

    >>> space = Space((Integer("layers", 1, 2), Categorical("optimizer", ("Adam", "Ftrl"))))
    >>> space.size, next(space.points())
    (4, {'layers': '1', 'optimizer': 'Adam'})
    """

    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        if not self.parameters:
            raise InvalidValueError("there are no parameters; name at least one.")
        _names(self.parameters)

    def texts(self, choose: Callable[[str, Parameter], str]) -> dict[str, str]:
        """Return the text of each parameter that exists, as `choose` says, which also gets a key of the parameter.

        The key is the name of a parameter that always exists. Conditional ones can have the same name.
        """
        texts: dict[str, str] = {}

        def walk(parameters: Sequence[Parameter], prefix: str) -> None:
            for one in parameters:
                texts[one.name] = text = choose(prefix + one.name, one)
                for index, child in enumerate(one.children):
                    if text in child.values:
                        walk([child.parameter], f"{prefix}{one.name}.{index}.")

        walk(self.parameters, "")
        return texts

    def values(self, texts: Mapping[str, str]) -> dict[str, float | str]:
        """Return the values of a trial as Python wants them; raise an InvalidValueError if they are not of this space.

        >>> Space((Integer("layers", 1, 2), Discrete("rate", ("0.10",)))).values({"layers": "2", "rate": "0.1"})
        {'layers': 2, 'rate': 0.1}
        """
        values: dict[str, float | str] = {}

        def take(key: str, parameter: Parameter) -> str:
            if parameter.name not in texts:
                raise InvalidValueError(f"parameter {parameter.name!r} has no value.")
            text = parameter.text_at(parameter.number_of(texts[parameter.name]))
            values[parameter.name] = parameter.value_of(text)
            return text

        self.texts(take)
        for name in texts.keys() - values.keys():
            raise InvalidValueError(f"parameter {name!r} does not exist for these values.")
        return values

    @property
    def size(self) -> int:
        """Number of points of the grid; raise an InvalidValueError if a parameter has none."""
        return _size(self.parameters)

    def points(self) -> Iterator[dict[str, str]]:
        """Return the points of the grid; the last parameter changes first."""
        return _points(self.parameters)


def _conditions(parameter: Parameter) -> set[str]:
    return {text for child in parameter.children for text in child.values}


def _names(parameters: Sequence[Parameter]) -> set[str]:
    """Return the names of all parameters, also of those below; refuse a name that two have at the same time."""
    names: set[str] = set()
    for one in parameters:
        below = set().union(*(_names(one.there(text)) for text in _conditions(one)))
        for name in ({one.name} & below) | (({one.name} | below) & names):
            raise InvalidValueError(f"there are two parameters {name!r}; give them different names.")
        names |= {one.name} | below
    return names


def _size(parameters: Sequence[Parameter]) -> int:
    size = 1
    for one in parameters:
        one.grid()
        below = [_size(one.there(text)) for text in _conditions(one)]
        size *= (one.axis.size or 0) - len(below) + sum(below)
    return size


def _points(parameters: Sequence[Parameter]) -> Iterator[dict[str, str]]:
    if not parameters:
        yield {}
        return
    first, *others = parameters
    for text in first.grid():
        for below in _points(first.there(text)):
            for rest in _points(others):
                yield {first.name: text, **below, **rest}
