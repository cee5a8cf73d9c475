"""Fingerprints: what changes a computation changes them, what does not leaves them, in every process."""

from __future__ import annotations

import copy
import gc
import importlib.util
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.engine import fingerprint_models as models
from tests.engine.fingerprint_models import Color, Everything, Settings, of_everything
from torch_estimator.engine.fingerprint import Fingerprint, environment_digest, fingerprint, torch_flags
from torch_estimator.engine.fingerprint.libraries import _roots, library_of_file, library_of_module
from torch_estimator.engine.model import Model
from torch_estimator.engine.schedules import Schedules
from torch_estimator.engine.step import TrainStep
from torch_estimator.mode_keys import ModeKeys

ROOT = Path(__file__).resolve().parents[2]
MOVING = ("lr", "initial_lr")

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


def a_method_of_torch(roots: Roots, patch: Patch) -> None:
    patch.setattr(nn.Linear, "forward", lambda self, x: x)


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


def the_step_of_an_optimizer(roots: Roots, patch: Patch) -> None:
    patch.setattr(te.optim.Adagrad, "update", staticmethod(lambda param, grad, state, group: None))


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
        a_method_of_torch,
        a_function_of_torch,
        a_decorated_function,
        the_class,
        a_nested_list,
        the_order_of_a_dict,
        an_element_of_an_array,
        an_element_of_an_array_of_objects,
        drawing_from_a_generator,
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
        the_step_of_an_optimizer,
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
def test_what_changes_the_computation_changes_the_digest(change: Change, monkeypatch: Patch) -> None:
    roots = of_everything()
    before = taken(roots)
    assert taken(roots) == before
    change(roots, monkeypatch)
    assert taken(roots).digest != before.digest


def taken(roots: Roots) -> Fingerprint:
    return fingerprint(roots, leave_out=(*MOVING, "betas"))


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
def test_what_does_not_change_the_computation_leaves_the_digest(change: Change, monkeypatch: Patch) -> None:
    roots = of_everything()
    before = taken(roots)
    change(roots, monkeypatch)
    assert taken(roots) == before


def test_a_model_made_again_has_the_same_digest_and_the_same_order_of_tensors() -> None:
    one, other = taken(of_everything()), taken(of_everything())
    assert one == other
    assert one.portable
    assert one.obstacle == ""
    assert [path for path, _ in one.tensors] == [path for path, _ in other.tensors]
    assert [tensor.shape for _, tensor in one.tensors] == [tensor.shape for _, tensor in other.tensors]


def test_two_processes_have_the_same_digests(tmp_path: Path) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.engine.fingerprint_models"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]
    one, other = (json.loads(process.communicate(timeout=300)[0]) for process in running)
    assert one == other
    assert [one[name]["obstacle"] for name in models.MODELS] == ["", ""]


def test_every_tensor_is_there_once_with_its_path() -> None:
    roots = of_everything()
    tensors = taken(roots).tensors
    by_path = dict(tensors)
    assert len({id(tensor) for _, tensor in tensors}) == len(tensors)
    module = roots["module"]
    assert by_path["module.inner.0.weight"] is module.inner[0].weight
    assert by_path["module.inner.1.running_mean"] is module.inner[1].running_mean
    assert by_path["module.normed.parametrizations.weight.original0"].shape == (4, 1)
    assert (
        by_path["optimizers[1].state[0]['accumulator']"]
        is roots["optimizers"][1].state[module.out.weight]["accumulator"]
    )
    reached = {id(tensor) for _, tensor in tensors}
    assert {id(tensor) for tensor in (*module.parameters(), *module.buffers())} <= reached
    assert id(models.OFFSETS) in reached


SOURCE = """
import torch
TABLE = {"a": 1.0}
def helper(x):
    # A comment.
    return x * TABLE["a"]
class Model(torch.nn.Module):
    def forward(self, x):
        return helper(x) + %s
"""


def made_of(source: str, name: str, file: str = "model.py") -> Any:
    module = types.ModuleType(name)
    exec(compile(source, file, "exec"), vars(module))
    return module.Model()


def test_lines_and_files_do_not_count_but_code_does() -> None:
    one = fingerprint(made_of(SOURCE % "1.0", "one"))
    assert fingerprint(made_of("\n\n\n" + SOURCE % "1.0", "two", "other/model.py")) == one
    assert fingerprint(made_of(SOURCE % "2.0", "one")) != one
    assert fingerprint(made_of(SOURCE % "1", "one")) != one
    assert fingerprint(made_of((SOURCE % "1.0").replace('"a": 1.0', '"a": 2.0'), "one")) != one


@pytest.mark.parametrize(
    "body",
    [
        "return x * config.SCALE",
        "return x * config.inner.SCALE",
        "return x * getattr(config, 'SCALE')",
        "from made_config import SCALE; return x * SCALE",
        "return [part * config.SCALE for part in x]",
    ],
)
def test_what_code_reads_of_other_modules_counts(body: str, monkeypatch: Patch) -> None:
    config = types.ModuleType("made_config")
    vars(config).update(SCALE=1.0, OTHER=1.0, inner=config)
    monkeypatch.setitem(sys.modules, "made_config", config)
    scope: dict[str, Any] = {"config": config, "__name__": "made"}
    exec(f"def loss(x):\n    {body}", scope)
    before = fingerprint(scope["loss"])
    vars(config)["OTHER"] = 2.0
    assert fingerprint(scope["loss"]) == before
    vars(config)["SCALE"] = 2.0
    assert fingerprint(scope["loss"]) != before


@pytest.mark.parametrize(
    "body",
    ["return x * flags.FLAGS.scale", "from installed import FLAGS; return x * FLAGS.scale", "return x * FLAGS.scale"],
)
def test_objects_of_libraries_count_with_what_they_hold(body: str, tmp_path: Path, monkeypatch: Patch) -> None:
    package = tmp_path / "site-packages" / "installed.py"
    package.parent.mkdir()
    package.write_text("class Flags:\n    pass\nFLAGS = Flags()\nFLAGS.scale = 1.0\n")
    monkeypatch.syspath_prepend(str(package.parent))
    library_of_file.cache_clear()
    _roots.cache_clear()
    spec = importlib.util.spec_from_file_location("installed", package)
    assert spec is not None and spec.loader is not None
    installed = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "installed", installed)
    spec.loader.exec_module(installed)
    assert library_of_module("installed") == "installed"
    scope: dict[str, Any] = {"flags": installed, "FLAGS": installed.FLAGS, "__name__": "made"}
    exec(f"def loss(x):\n    {body}", scope)
    before = fingerprint(scope["loss"])
    assert before.portable
    assert fingerprint(scope["loss"]) == before
    installed.FLAGS.scale = 2.0
    assert fingerprint(scope["loss"]) != before


def test_what_others_draw_from_generators_of_all_does_not_count() -> None:
    module = Everything()
    before = fingerprint(module)
    models.draw(), models.rand(), torch.rand(())
    assert fingerprint(module) == before


def test_aliases_are_told_from_copies() -> None:
    one, other = torch.zeros(2), torch.zeros(2)
    assert fingerprint([one, one]) != fingerprint([one, other])
    assert fingerprint([one, other]) == fingerprint([other, one])
    memory = torch.zeros(4)
    assert fingerprint([memory[:2], memory[:2]]) != fingerprint([one, other])
    assert fingerprint([memory[:2], memory[2:]]) != fingerprint([memory[:2], memory[:2]])


def test_cycles_and_long_chains_end() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert fingerprint(ring) == fingerprint(ring)
    chain: list[Any] = []
    for _ in range(5000):
        chain = [chain]
    assert fingerprint(chain).portable
    assert fingerprint([chain]) != fingerprint(chain)


def test_values_that_look_alike_are_told_apart() -> None:
    values = [1, 1.0, True, "1", b"1", (1,), [1], {1}, {1: None}, None, "None", np.int64(1), np.array(1), 1j, ()]
    digests = [fingerprint(value).digest for value in values]
    assert len(set(digests)) == len(values)
    texts = [["a", "b"], ["a\0b"], ["a', 'b"], [["a"], "b"], ["a", ["b"]], [["a", "b"]], ["+"], ["@0"], ["\n"]]
    assert len({fingerprint(text).digest for text in texts}) == len(texts)
    arrays = [np.zeros(4), np.zeros((2, 2)), np.zeros(4, np.float32), np.zeros(8, np.float32), np.zeros(4, np.int64)]
    assert len({fingerprint(array).digest for array in arrays}) == len(arrays)


class Held(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.encoder = nn.Identity()
        self.encoder.lookup = {"by": [held]}


def test_what_only_its_identity_tells_is_named_with_its_path(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        module = Held(file)
        found = fingerprint(module)
        assert not found.portable
        assert found.obstacle == "module.encoder.lookup['by'][0]: an object of type _io.TextIOWrapper"
        assert fingerprint(module) == found
        with (tmp_path / "log").open("w") as other:
            assert fingerprint(Held(other)) != found


def counted() -> Iterator[int]:
    yield from range(3)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (counted(), "an object of type generator"),
        (sys._getframe(), "an object of type frame"),
        (memoryview(b"x"), "an object of type memoryview"),
    ],
)
def test_other_things_without_a_known_state_are_named(value: Any, words: str) -> None:
    found = fingerprint({"model": Held(value)})
    assert not found.portable
    assert found.obstacle.startswith("model.encoder.lookup['by'][0]")
    assert words in found.obstacle


def test_while_a_fingerprint_lives_nothing_takes_the_place_of_what_it_told_by_identity() -> None:
    module = Held(memoryview(b"x"))
    found = fingerprint(module)
    kept = weakref.ref(module.encoder.lookup["by"][0])
    module.encoder.lookup["by"][0] = None
    gc.collect()
    assert kept() is not None
    assert not found.portable


class Stubborn:
    def __reduce_ex__(self, protocol: object) -> Any:
        raise RuntimeError("no")


class StubbornNumber(Stubborn, complex):
    pass


class StubbornError(Stubborn, Exception):
    pass


def test_what_does_not_let_itself_be_looked_at_is_told_by_identity() -> None:
    assert fingerprint(Stubborn()).portable
    assert fingerprint(StubbornNumber(1)).portable
    assert fingerprint([StubbornError()]).obstacle.endswith("fingerprint.StubbornError")


def test_locks_and_loggers_have_no_bearing() -> None:
    one, other = (Held([threading.Lock(), threading.RLock(), threading.Event(), models]) for _ in range(2))
    assert fingerprint(one).portable
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(Held(logging.getLogger("a"))) == fingerprint(Held(logging.getLogger("a")))


def test_attributes_that_a_class_leaves_out_do_not_count() -> None:
    class Counting(nn.Module):
        not_in_fingerprint = ("calls",)
        calls = 0

    class CountingToo(Counting):
        pass

    module = CountingToo()
    module.calls = 1
    before = fingerprint(module)
    module.calls = 2
    assert fingerprint(module) == before
    module.other = 2
    assert fingerprint(module) != before


ROWS = 24


def rows(classes: int) -> te.data.Dataset:
    random = np.random.default_rng(0)
    features = {
        "city": random.choice(["Oslo", "Rome", "Lima"], ROWS).astype(object),
        "job": random.choice(["a", "b", "c"], ROWS).astype(object),
        "age": random.uniform(0, 3, ROWS).astype(np.float32),
    }
    return te.data.Dataset.from_arrays(features, random.integers(0, classes, ROWS)).repeat().batch(8)


def digests_of_training(estimator: te.Estimator, dataset: te.data.Dataset) -> list[Fingerprint]:
    """Before the first of some steps, and after each."""
    model = Model(estimator._model_fn(mode=ModeKeys.TRAIN))
    optimizers, schedules = model.make_optimizers()
    step = TrainStep(model.module, model.loss, optimizers, schedules=schedules)

    def now() -> Fingerprint:
        return fingerprint(model.module, model.loss, optimizers, leave_out=MOVING)

    found = [now()]
    with closing(model.batches(dataset)) as batches:
        for batch in itertools.islice(batches, 4):
            tensors = model.to_tensors(batch)
            step(tensors.features, tensors.labels, tensors.weights)
            found.append(now())
    assert found[-1].portable, found[-1].obstacle
    return found


WIDE, DEEP = models.columns()
HIDDEN = {"feature_columns": DEEP, "hidden_units": [4, 3]}
BOTH = {"linear_feature_columns": WIDE, "dnn_feature_columns": DEEP, "dnn_hidden_units": [4]}
HEAD = te.MultiClassHead(3)
CANNED: dict[str, Callable[..., te.Estimator]] = {
    "linear classifier": partial(te.LinearClassifier, feature_columns=WIDE),
    "linear regressor": partial(te.LinearRegressor, feature_columns=WIDE, optimizer="Adagrad"),
    "linear estimator": partial(te.LinearEstimator, head=HEAD, feature_columns=WIDE),
    "dnn classifier": partial(te.DNNClassifier, **HIDDEN, dropout=0.3, batch_norm=True),
    "dnn with torch's Adam": partial(te.DNNRegressor, **HIDDEN, optimizer=partial(torch.optim.Adam, lr=0.1)),
    "dnn estimator": partial(te.DNNEstimator, head=HEAD, **HIDDEN, activation_fn=nn.PReLU()),
    "both, classifier": partial(te.DNNLinearCombinedClassifier, **BOTH, dnn_dropout=0.1, batch_norm=True),
    "both, regressor": partial(te.DNNLinearCombinedRegressor, **BOTH),
    "both, estimator": partial(te.DNNLinearCombinedEstimator, head=HEAD, **BOTH),
    "baseline classifier": te.BaselineClassifier,
    "baseline regressor": te.BaselineRegressor,
    "baseline estimator": partial(te.BaselineEstimator, head=HEAD),
}


@pytest.mark.parametrize("make", CANNED.values(), ids=CANNED.keys())
def test_training_a_canned_model_does_not_change_its_digest(make: Callable[..., te.Estimator], tmp_path: Path) -> None:
    classes = 3 if getattr(make, "keywords", {}).get("head") else 2
    found = digests_of_training(make(model_dir=str(tmp_path)), rows(classes))
    # Optimizers of torch make their state in their first step.
    made = 1 if isinstance(getattr(make, "keywords", {}).get("optimizer"), partial) else 0
    assert found[made:] == found[-1:] * (5 - made)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adam": partial(torch.optim.Adam, lr=0.1),
    "AdamW, one after the other": partial(torch.optim.AdamW, lr=0.1, foreach=False),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.1, centered=True),
    "NAdam": partial(torch.optim.NAdam, lr=0.1),
    "Adagrad of ours": partial(te.optim.Adagrad, lr=0.1),
    "Ftrl of ours": partial(te.optim.Ftrl, lr=0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_steps_do_not_change_the_digest_of_an_own_module(make: Callable[[Any], Any]) -> None:
    module = Everything()
    optimizer = make(module.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = TrainStep(module, loss_of, [optimizer], schedules=Schedules([schedule]))
    digests = []
    for _ in range(4):
        step(torch.randn(6, 3), torch.randn(6, 1), None)
        digests.append(fingerprint(module, loss_of, optimizer, leave_out=MOVING))
    assert digests == digests[:1] * 4
    assert digests[0].portable, digests[0].obstacle


def loss_of(module: nn.Module, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
    return models.mean_squared(module(features), labels)


def test_a_module_that_counts_its_own_steps_in_python_changes_with_every_step() -> None:
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x) / self.calls

    module = Counting(3, 1)
    step = TrainStep(module, loss_of, [te.optim.Adagrad(module.parameters(), lr=0.1)])
    before = fingerprint(module)
    step(torch.randn(6, 3), torch.randn(6, 1), None)
    assert fingerprint(module) != before


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("name", ["stateful", "classifier", "subclassed"])
def test_training_a_keras_model_does_not_change_its_digest(name: str, tmp_path: Path) -> None:
    pytest.importorskip("keras")
    from tests.keras import models as keras_models

    shape = (8, 8, 1) if name == "classifier" else (3,)
    features = np.random.default_rng(0).normal(size=(ROWS, *shape)).astype(np.float32)
    labels = np.zeros(ROWS, np.int64) if name == "classifier" else features[:, :1]
    estimator = te.model_to_estimator(getattr(keras_models, name)(), model_dir=str(tmp_path))
    found = digests_of_training(estimator, te.data.Dataset.from_arrays(features, labels).repeat().batch(8))
    # Keras makes its compiled loss in the first step.
    assert found[1:] == found[-1:] * 4


def test_the_environment_is_that_of_the_users_sources_too(tmp_path: Path, monkeypatch: Patch) -> None:
    file = tmp_path / "made_module.py"
    file.write_text("SCALE = 1")
    os.utime(file, (1e9, 1e9))
    before = environment_digest(2)
    module = types.ModuleType("made_module")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "made_module", module)
    with_module = environment_digest(2)
    assert with_module != before
    assert environment_digest(2) == with_module
    file.write_text("SCALE = 2")
    os.utime(file, (1e9, 1e9 + 1))
    other_source = environment_digest(2)
    assert other_source not in (before, with_module)
    # As if it were written while the program runs: what was imported may be something else.
    os.utime(file)
    assert environment_digest(2) not in (before, with_module, other_source)


def test_the_environment_is_that_of_threads_and_settings(monkeypatch: Patch) -> None:
    before = environment_digest(2)
    assert environment_digest(1) != before
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert environment_digest(2) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.backends.mkldnn.set_flags(False),
        lambda: torch.set_autocast_enabled("cpu", True),
    ],
    ids=["dtype", "deterministic", "precision", "mkldnn", "autocast"],
)
def test_torchs_own_settings_are_flags(change: Callable[[], object]) -> None:
    before, environment = torch_flags(), environment_digest(2)
    try:
        change()
        assert torch_flags() != before
        assert environment_digest(2) != environment
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.set_flags(True)
        torch.set_autocast_enabled("cpu", False)
    assert torch_flags() == before
