"""A change of the computation changes its cache key; other changes do not."""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.compile import key_models as models
from tests.compile.key_models import Color, Everything, Settings, key_of, of_everything

Roots = dict[str, Any]
Patch = pytest.MonkeyPatch
Change = Callable[[Roots, Patch], object]


def named(*changes: Change) -> dict[str, Change]:
    return {change.__name__.strip("_"): change for change in changes}


def set_attribute(path: str, value: Any) -> Change:
    *holders, name = path.split(".")

    def change(roots: Roots, patch: Patch) -> None:
        holder: Any = roots["module"]
        for one in holders:
            holder = getattr(holder, one)
        setattr(holder, name, value)

    return change


def add_hook(register: str) -> Change:
    return lambda roots, patch: getattr(roots["module"].inner[0], register)(lambda *given: None)


def set_in_group(key: str, value: Any, optimizer: int = 0) -> Change:
    return lambda roots, patch: roots["optimizers"][optimizer].param_groups[0].update({key: value})


def a_global(roots: Roots, patch: Patch) -> None:
    patch.setattr(models, "SCALE", 2.5)


def a_list_in_a_global(roots: Roots, patch: Patch) -> None:
    patch.setitem(models.TABLE["a"][2], "b", 4)


def the_variable_of_a_closure(roots: Roots, patch: Patch) -> None:
    roots["module"].activation = models.power(3)


def the_code_of_a_lambda(roots: Roots, patch: Patch) -> None:
    exponent = 2
    roots["module"].activation = lambda x: x * exponent


def a_method_of_the_object(roots: Roots, patch: Patch) -> None:
    roots["module"].forward = types.MethodType(lambda self, x: self.out(self.inner(x)), roots["module"])


def a_method_of_the_class(roots: Roots, patch: Patch) -> None:
    patch.setattr(Everything, "scaled", lambda self, x: x)


def an_attribute_of_the_class(roots: Roots, patch: Patch) -> None:
    patch.setattr(Everything, "limit", 4.0)


def the_default_of_a_function(roots: Roots, patch: Patch) -> None:
    patch.setattr(models.mean_squared, "__defaults__", (1,))


def an_attribute_of_a_function(roots: Roots, patch: Patch) -> None:
    patch.setattr(models.mean_squared, "weight", 3.0, raising=False)


def a_function_of_torch(roots: Roots, patch: Patch) -> None:
    patch.setattr(torch, "tanh", lambda x: x)


def a_decorated_function(roots: Roots, patch: Patch) -> None:
    patch.setattr(models, "squashed", models.doubled(torch.sin))


def the_class(roots: Roots, patch: Patch) -> None:
    class Everything(models.Everything):
        pass

    roots["module"].__class__ = Everything


def a_nested_list(roots: Roots, patch: Patch) -> None:
    roots["module"].nested[1][1][1]["deep"] = (4, 6)


def the_order_of_a_dict(roots: Roots, patch: Patch) -> None:
    roots["module"].many["j"] = roots["module"].many.pop("k")


def an_element_of_an_array(roots: Roots, patch: Patch) -> None:
    roots["module"].array[1, 1] = 9


def an_element_of_an_array_of_objects(roots: Roots, patch: Patch) -> None:
    roots["module"].objects[1] = "y"


def drawing_from_a_generator(roots: Roots, patch: Patch) -> None:
    roots["module"].generator.random()


def taking_from_an_iterator(roots: Roots, patch: Patch) -> None:
    next(roots["module"].counter)


def a_knot_in_a_set(roots: Roots, patch: Patch) -> None:
    next(iter(roots["module"].knots)).name = "four"


def a_submodule_more(roots: Roots, patch: Patch) -> None:
    roots["module"].inner.append(nn.ReLU())


def another_submodule(roots: Roots, patch: Patch) -> None:
    roots["module"].inner[2] = nn.Tanh()


def tying(roots: Roots, patch: Patch) -> None:
    roots["module"].tied = copy.deepcopy(roots["module"].out)


def the_memory_of_a_view(roots: Roots, patch: Patch) -> None:
    roots["module"].view = torch.zeros(1)


def the_parameter_behind_a_name(roots: Roots, patch: Patch) -> None:
    roots["module"].normed.bias = nn.Parameter(torch.zeros(4, dtype=torch.float64))


def a_frozen_parameter(roots: Roots, patch: Patch) -> None:
    roots["module"].out.weight.requires_grad_(False)


def the_strides_of_a_parameter(roots: Roots, patch: Patch) -> None:
    weight = roots["module"].recurrent.weight_ih_l0
    weight.data = weight.data.t().contiguous().t()


def a_buffer_more(roots: Roots, patch: Patch) -> None:
    roots["module"].register_buffer("more", torch.zeros(1))


def a_parametrization_less(roots: Roots, patch: Patch) -> None:
    nn.utils.parametrize.remove_parametrizations(roots["module"].normed, "weight")


def a_hook_of_all_modules(roots: Roots, patch: Patch) -> None:
    hooks = nn.modules.module._global_forward_hooks
    patch.setitem(hooks, -1, print)


def a_hook_of_a_parameter(roots: Roots, patch: Patch) -> None:
    roots["module"].out.weight.register_hook(lambda gradient: gradient * 2)


def a_hook_after_accumulating(roots: Roots, patch: Patch) -> None:
    roots["module"].out.weight.register_post_accumulate_grad_hook(print)


def a_hook_that_takes_keywords(roots: Roots, patch: Patch) -> None:
    module = roots["module"].out
    number = next(iter(module._forward_pre_hooks))
    del module._forward_pre_hooks_with_kwargs[number]


def a_hook_of_an_optimizer(roots: Roots, patch: Patch) -> None:
    roots["optimizers"][0].register_step_pre_hook(print)


def the_parameters_of_an_optimizer(roots: Roots, patch: Patch) -> None:
    roots["optimizers"][1].param_groups[0]["params"].reverse()


def a_group_more(roots: Roots, patch: Patch) -> None:
    roots["optimizers"][0].add_param_group({"params": list(roots["module"].recurrent.named_parameters())})


def a_slot_of_an_optimizer(roots: Roots, patch: Patch) -> None:
    for slots in roots["optimizers"][1].state.values():
        slots["accumulator"] = slots["accumulator"].double()


def the_clipping_of_an_optimizer(roots: Roots, patch: Patch) -> None:
    from torch_estimator.optim.clipping import clippings_of

    for clipping in clippings_of(roots["optimizers"]):
        clipping._clip_norm = 3.0


def another_loss(roots: Roots, patch: Patch) -> None:
    roots["loss"] = lambda outputs, labels: (outputs - labels).abs().mean()


def mixed_precision(roots: Roots, patch: Patch) -> None:
    roots["mixed_precision"] = False


CHANGES: dict[str, Change] = {
    **named(
        a_global,
        a_list_in_a_global,
        the_variable_of_a_closure,
        the_code_of_a_lambda,
        a_method_of_the_object,
        a_method_of_the_class,
        an_attribute_of_the_class,
        the_default_of_a_function,
        an_attribute_of_a_function,
        a_function_of_torch,
        a_decorated_function,
        the_class,
        a_nested_list,
        the_order_of_a_dict,
        an_element_of_an_array,
        an_element_of_an_array_of_objects,
        drawing_from_a_generator,
        taking_from_an_iterator,
        a_knot_in_a_set,
        a_submodule_more,
        another_submodule,
        tying,
        the_memory_of_a_view,
        the_parameter_behind_a_name,
        a_frozen_parameter,
        the_strides_of_a_parameter,
        a_buffer_more,
        a_parametrization_less,
        a_hook_of_all_modules,
        a_hook_of_a_parameter,
        a_hook_after_accumulating,
        a_hook_that_takes_keywords,
        a_hook_of_an_optimizer,
        the_parameters_of_an_optimizer,
        a_group_more,
        a_slot_of_an_optimizer,
        the_clipping_of_an_optimizer,
        another_loss,
        mixed_precision,
    ),
    "an attribute": set_attribute("temperature", 0.5),
    "a new attribute": set_attribute("more", None),
    "the type of a number": set_attribute("inner.3.p", np.float64(0.25)),
    "an integer in the place of a float": set_attribute("limit", 3),
    "a bool in the place of an integer": set_attribute("out.out_features", True),
    "a dataclass": set_attribute("settings", Settings(sizes=(3, 5))),
    "a member of an enum": set_attribute("settings", Settings(color=Color.RED)),
    "a named tuple": set_attribute("span", models.Span(1, 3)),
    "a set": set_attribute("words", {"spam"}),
    "a set of members": set_attribute("colors", {Color.RED}),
    "a frozen set": set_attribute("frozen", frozenset({("x", 1)})),
    "a list in the place of a tuple": set_attribute("span", [1, 2]),
    "a partial": set_attribute("partial", partial(torch.clamp, max=3.0)),
    "a path": set_attribute("path", Path("a/c")),
    "a scalar": set_attribute("number", np.float32(1.25)),
    "the type of a scalar": set_attribute("number", np.float64(1.5)),
    "a range": set_attribute("rows", range(4)),
    "a slice": set_attribute("cut", slice(1, None, 2)),
    "a queue": set_attribute("queue", models.deque([1, 2], maxlen=5)),
    "an arrow array": set_attribute("arrow", models.pa.array(["x", "y", "z"])),
    "a date": set_attribute("day", models.date(2020, 1, 3)),
    "a fraction": set_attribute("fraction", models.Fraction(2, 3)),
    "a seed": set_attribute("random", models.random.Random(5)),
    "a pattern": set_attribute("pattern", models.re.compile("a+b", models.re.IGNORECASE)),
    "a slot": set_attribute("slotted.right", 2),
    "a weak reference": lambda roots, patch: setattr(roots["module"], "reference", weakref.ref(roots["module"].inner)),
    "a dtype": set_attribute("dtype", torch.float64),
    "a device": set_attribute("device", torch.device("meta")),
    "long bytes": set_attribute("raw", b"x" * 999 + b"y"),
    "the mode": lambda roots, patch: roots["module"].eval(),
    "the mode of one part": lambda roots, patch: roots["module"].inner[1].eval(),
    "a probability of dropout": set_attribute("inner.3.p", 0.5),
    "a momentum of batch norm": set_attribute("inner.1.momentum", 0.3),
    "the type of the module": lambda roots, patch: roots["module"].double(),
    "a forward hook": add_hook("register_forward_hook"),
    "a forward hook before": add_hook("register_forward_pre_hook"),
    "a backward hook": add_hook("register_full_backward_hook"),
    "a backward hook before": add_hook("register_full_backward_pre_hook"),
    "a setting of torch's optimizer": set_in_group("weight_decay", 0.3),
    "the second of two betas": set_in_group("betas", (0.9, 0.99)),
    "a flag of torch's optimizer": set_in_group("amsgrad", True),
    "a setting of our optimizer": set_in_group("initial_accumulator_value", 0.2, optimizer=1),
    "a learning rate that is a tensor": set_in_group("lr", torch.tensor(0.1)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_the_computation_changes_the_digest(change: Change, monkeypatch: Patch) -> None:
    roots = of_everything()
    before = key_of(roots)
    change(roots, monkeypatch)
    assert key_of(roots).digest != before.digest


def a_hook_that_comes_and_goes(roots: Roots, patch: Patch) -> None:
    roots["module"].inner.register_forward_hook(print).remove()


def an_attribute_that_is_put_back(roots: Roots, patch: Patch) -> None:
    module = roots["module"]
    settings = module.settings
    del module.settings
    module.settings = settings


def gradients(roots: Roots, patch: Patch) -> None:
    roots["module"](torch.randn(5, 3)).sum().backward()
    assert roots["module"].out.weight.grad is not None


def all_numbers(roots: Roots, patch: Patch) -> None:
    with torch.no_grad():
        for tensor in (*roots["module"].parameters(), *roots["module"].buffers()):
            tensor.fill_(0.5) if tensor.is_floating_point() else tensor.fill_(1)


def a_schedule(roots: Roots, patch: Patch) -> None:
    for optimizer in roots["optimizers"]:
        assert optimizer.param_groups[0]["lr"] == 0.1
        optimizer.param_groups[0]["lr"] = 0.05


def the_first_beta(roots: Roots, patch: Patch) -> None:
    roots["optimizers"][0].param_groups[0]["betas"] = (0.8, 0.999)


def an_unrelated_global(roots: Roots, patch: Patch) -> None:
    patch.setattr(models, "MODELS", {})


def hooks_of_state_dicts(roots: Roots, patch: Patch) -> None:
    roots["module"].register_state_dict_post_hook(lambda *given: None)
    roots["optimizers"][0].register_state_dict_pre_hook(print)


NO_CHANGES = named(
    a_hook_that_comes_and_goes,
    an_attribute_that_is_put_back,
    gradients,
    all_numbers,
    a_schedule,
    the_first_beta,
    an_unrelated_global,
    hooks_of_state_dicts,
)


@pytest.mark.parametrize("change", NO_CHANGES.values(), ids=NO_CHANGES.keys())
def test_other_changes_leave_the_digest(change: Change, monkeypatch: Patch) -> None:
    roots = of_everything()
    before = key_of(roots)
    change(roots, monkeypatch)
    assert key_of(roots) == before
