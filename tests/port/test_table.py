"""The table of `estimator port`: names exist here, and arguments mean what they mean in TensorFlow."""

from __future__ import annotations

import dataclasses
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
from torch_estimator.port.table import (
    ACTIVATIONS,
    ADVICE,
    ATTRIBUTES,
    BY_GENERATION,
    METHODS,
    ONLY_1,
    ONLY_2,
    RENAMED,
    Renamed,
)

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


def parameters(value: Any) -> dict[str, Any]:
    """Return the default by parameter, in their order."""
    if value is te.RunConfig:
        return {one.name: one.default for one in dataclasses.fields(value) if not one.name.startswith("_")}
    found = inspect.signature(value).parameters
    return {name: one.default for name, one in found.items() if name != "self"}


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
        # TensorFlow may have more parameters after these.
        assert list(theirs)[: len(order)] == order[: len(theirs)]
    else:
        positions = len(theirs) if rule.positions is None else rule.positions
        same = [rule.names.get(one, one) for one in list(theirs)[:positions]]
        assert same == list(ours)[: len(same)], f"positions of {name} mean something else"


# Defaults that are spelled otherwise here, and mean the same.
SPELLED_OTHERWISE = {
    ("te.RunConfig", "save_checkpoints_steps"),
    ("te.RunConfig", "save_checkpoints_secs"),
    ("te.RunConfig", "log_step_count_steps"),
    ("te.WarmStartSettings", "var_name_to_vocab_info"),
    ("te.WarmStartSettings", "var_name_to_prev_var_name"),
    ("te.optim.Ftrl", "beta"),
    ("te.BestExporter", "event_file_pattern"),
    # te.optim has no default in the signature; see the test below.
    *((f"te.optim.{name}", "learning_rate") for name in ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD")),
}


NOT_LEFT_OUT = ("required", "object")


@pytest.mark.parametrize(("generation", "name"), CALLED)
def test_an_argument_that_is_left_out_has_tensorflows_default(generation: str, name: str) -> None:
    rule = RENAMED[name]
    ours = parameters(resolve(rule.target, generation))
    for one, default in TENSORFLOW[generation][name].items():
        here = rule.names.get(one, one)
        if one in {*rule.removed, *rule.by_hand} or default in NOT_LEFT_OUT or (rule.target, here) in SPELLED_OTHERWISE:
            continue
        value = eval(rule.added[here]) if here in rule.added else ours[here]
        if here == "loss_reduction":
            value, default = te.LossReduction.of(value), te.LossReduction.of(default)
        assert ("required" if value is inspect.Parameter.empty else value) == default, f"{here} of {name}"


@pytest.mark.parametrize(
    ("generation", "name"), [one for one in CALLED if RENAMED[one[1]].target.startswith("te.optim.")]
)
def test_an_optimizer_has_tensorflows_learning_rate(generation: str, name: str) -> None:
    rule = RENAMED[name]
    rate = TENSORFLOW[generation][name]["learning_rate"]
    make = resolve(rule.target, generation)
    if rate == "required":
        with pytest.raises(te.UserError):
            make()
    else:
        assert make(**{one: eval(code) for one, code in rule.added.items()}).defaults["lr"] == rate


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


def test_names_that_tell_the_generation_are_in_one_only() -> None:
    there = set(TENSORFLOW["in_tf_2"])
    assert [name for name in ONLY_1 if name in there] == []
    assert [name for name in ONLY_2 if name not in there] == []


def test_rules_do_not_contradict_themselves() -> None:
    for name, rule in RENAMED.items():
        assert isinstance(rule, Renamed)
        assert not {*rule.removed} & {*rule.by_hand}, name
        assert not (rule.order and rule.positions is not None), name
