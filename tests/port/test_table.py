"""The table of `estimator port`: names exist here, and arguments mean what they mean in TensorFlow."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import re
from typing import Any

import pytest
import torch

import torch_estimator as te
from tests.docs.pages import ROOT
from tests.port.tensorflow_signatures import REFERENCE
from torch_estimator.port.table import ACTIVATIONS, ADVICE, ATTRIBUTES, BY_GENERATION, METHODS, RENAMED, Renamed

TENSORFLOW = json.loads(REFERENCE.read_text(encoding="utf-8"))
# A class to derive from, functions of Python's logging, and names that stand for a class or a module.
NOT_CALLED = ("te.CheckpointSaverListener", "logging.", "te.data.Dataset", '"')
CALLED = [
    (generation, name)
    for generation in ("v1", "v2")
    for name in TENSORFLOW[generation]
    if not RENAMED[name].target.startswith(NOT_CALLED)
]


def resolve(target: str, generation: str) -> Any:
    """Return the object that a target of the table names."""
    code = target.replace(BY_GENERATION, "te" if generation == "v1" else "te.v2")
    return eval(code, {"te": te, "torch": torch, "logging": logging})


def parameters(value: Any) -> list[str]:
    if value is te.RunConfig:
        return [name for name in te.RunConfig.__dataclass_fields__ if not name.startswith("_")]
    return [name for name in inspect.signature(value).parameters if name != "self"]


@pytest.mark.parametrize("name", RENAMED)
def test_every_target_exists(name: str) -> None:
    for generation in ("v1", "v2"):
        assert resolve(RENAMED[name].target, generation) is not None


def test_every_activation_and_attribute_exists() -> None:
    for code in ACTIVATIONS.values():
        torch.testing.assert_close(resolve(code, "v1")(torch.zeros(2)).shape, torch.Size([2]))
    for name, attributes in ATTRIBUTES.items():
        for attribute in attributes:
            assert hasattr(resolve(RENAMED[name].target, "v1"), attribute)


@pytest.mark.parametrize(("generation", "name"), CALLED)
def test_each_argument_of_tensorflow_is_kept_renamed_removed_or_left_to_the_user(generation: str, name: str) -> None:
    rule = RENAMED[name]
    ours = parameters(resolve(rule.target, generation))
    theirs = TENSORFLOW[generation][name]
    special = {*rule.removed, *rule.by_hand}
    for one in theirs:
        assert one in special or rule.names.get(one, one) in ours, f"{name} has an argument {one}"
    if rule.order:
        order = rule.order.split()
        # A later version may have more parameters after these.
        assert [one for one in theirs if one not in _only_by_name(name)][: len(order)] == order[: len(theirs)]
    else:
        positions = len(theirs) if rule.positions is None else rule.positions
        same = [rule.names.get(one, one) for one in theirs[:positions]]
        assert same == ours[: len(same)], f"positions of {name} mean something else"


def _only_by_name(name: str) -> set[str]:
    """Return parameters that TF 2.15 lists between those of earlier versions, which nobody gives by position."""
    return {"amsgrad"} if name.endswith("Adam") and "amsgrad" not in RENAMED[name].order else set()


@pytest.mark.parametrize("name", [name for name, rule in RENAMED.items() if rule.added])
def test_added_arguments_are_keras_defaults(name: str) -> None:
    rule = RENAMED[name]
    optimizer = resolve(rule.target, "v2")(**{one: eval(code) for one, code in rule.added.items()})
    rates = {"Adagrad": 0.001, "Adam": 0.001, "Ftrl": 0.001, "SGD": 0.01}
    assert optimizer.defaults["lr"] == rates[name.rpartition(".")[2]]


def test_advice_names_what_exists() -> None:
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    roots = {"te": te, "fc": te.feature_column, "Dataset": te.data.Dataset}
    for text in (*ADVICE.values(), *METHODS.values()):
        for page in re.findall(r"docs/[\w/]+\.md", text):
            assert page in pages
        for code in re.findall(r"(?<![\w.])(?:te|fc|Dataset)(?:\.\w+)+", text):
            first, *rest = code.split(".")
            functools.reduce(getattr, rest, roots[first])


def test_headings_that_advice_names_exist() -> None:
    for text in {*ADVICE.values(), *(rule.note for rule in RENAMED.values())}:
        for page, heading in re.findall(r"(docs/[\w/]+\.md), ([A-Z][\w ,`-]+)$", text):
            headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
            plain = [one.replace("`", "") for one in headings]
            assert any(one.startswith(heading) for one in plain), f"{page} has no heading {heading}"


def test_rules_do_not_contradict_themselves() -> None:
    for name, rule in RENAMED.items():
        assert isinstance(rule, Renamed)
        assert not {*rule.removed} & {*rule.by_hand}, name
        assert not (rule.order and rule.positions is not None), name
