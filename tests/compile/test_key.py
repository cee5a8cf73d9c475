"""Cache keys mean the same in every process, and say so if they do not."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.compile import key_models as models
from tests.compile.key_models import Everything, key_of, of_everything
from torch_estimator.compile.key import cache_key
from torch_estimator.compile.sources import _roots, package_of_file, package_of_module

ROOT = Path(__file__).resolve().parents[2]

Patch = pytest.MonkeyPatch


def test_a_model_that_is_built_again_has_the_same_digest_and_the_same_order_of_tensors() -> None:
    one, other = key_of(of_everything()), key_of(of_everything())
    assert one == other
    assert one.portable
    assert one.obstacle == ""
    assert [path for path, _ in one.tensors] == [path for path, _ in other.tensors]
    assert [tensor.shape for _, tensor in one.tensors] == [tensor.shape for _, tensor in other.tensors]


def test_two_processes_have_the_same_digests(tmp_path: Path) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.compile.key_models"],
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
    tensors = key_of(roots).tensors
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
    one = cache_key(made_of(SOURCE % "1.0", "one"))
    assert cache_key(made_of("\n\n\n" + SOURCE % "1.0", "two", "other/model.py")) == one
    assert cache_key(made_of(SOURCE % "2.0", "one")) != one
    assert cache_key(made_of(SOURCE % "1", "one")) != one
    assert cache_key(made_of((SOURCE % "1.0").replace('"a": 1.0', '"a": 2.0'), "one")) != one


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
def test_members_of_other_modules_that_code_reads_count(body: str, monkeypatch: Patch) -> None:
    config = types.ModuleType("made_config")
    vars(config).update(SCALE=1.0, OTHER=1.0, inner=config)
    monkeypatch.setitem(sys.modules, "made_config", config)
    scope: dict[str, Any] = {"config": config, "__name__": "made"}
    exec(f"def loss(x):\n    {body}", scope)
    before = cache_key(scope["loss"])
    vars(config)["OTHER"] = 2.0
    assert cache_key(scope["loss"]) == before
    vars(config)["SCALE"] = 2.0
    assert cache_key(scope["loss"]) != before


@pytest.mark.parametrize(
    "body",
    ["return x * flags.FLAGS.scale", "from installed import FLAGS; return x * FLAGS.scale", "return x * FLAGS.scale"],
)
def test_objects_of_libraries_count_with_their_attributes(body: str, tmp_path: Path, monkeypatch: Patch) -> None:
    package = tmp_path / "site-packages" / "installed.py"
    package.parent.mkdir()
    package.write_text("class Flags:\n    pass\nFLAGS = Flags()\nFLAGS.scale = 1.0\n")
    monkeypatch.syspath_prepend(str(package.parent))
    package_of_file.cache_clear()
    _roots.cache_clear()
    spec = importlib.util.spec_from_file_location("installed", package)
    assert spec is not None and spec.loader is not None
    installed = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "installed", installed)
    spec.loader.exec_module(installed)
    assert package_of_module("installed") == "installed"
    scope: dict[str, Any] = {"flags": installed, "FLAGS": installed.FLAGS, "__name__": "made"}
    exec(f"def loss(x):\n    {body}", scope)
    before = cache_key(scope["loss"])
    assert before.portable
    assert cache_key(scope["loss"]) == before
    installed.FLAGS.scale = 2.0
    assert cache_key(scope["loss"]) != before


def test_draws_from_global_random_generators_do_not_count() -> None:
    module = Everything()
    before = cache_key(module)
    models.draw(), models.rand(), torch.rand(())
    assert cache_key(module) == before


def test_aliases_differ_from_copies() -> None:
    one, other = torch.zeros(2), torch.zeros(2)
    assert cache_key([one, one]) != cache_key([one, other])
    assert cache_key([one, other]) == cache_key([other, one])
    memory = torch.zeros(4)
    assert cache_key([memory[:2], memory[:2]]) != cache_key([one, other])
    assert cache_key([memory[:2], memory[2:]]) != cache_key([memory[:2], memory[:2]])


def test_cycles_and_long_chains_end() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert cache_key(ring) == cache_key(ring)
    chain: list[Any] = []
    for _ in range(5000):
        chain = [chain]
    assert cache_key(chain).portable
    assert cache_key([chain]) != cache_key(chain)


def test_similar_values_have_different_digests() -> None:
    values = [1, 1.0, True, "1", b"1", (1,), [1], {1}, {1: None}, None, "None", np.int64(1), np.array(1), 1j, ()]
    digests = [cache_key(value).digest for value in values]
    assert len(set(digests)) == len(values)
    texts = [["a", "b"], ["a\0b"], ["a', 'b"], [["a"], "b"], ["a", ["b"]], [["a", "b"]], ["+"], ["@0"], ["\n"]]
    assert len({cache_key(text).digest for text in texts}) == len(texts)
    arrays = [np.zeros(4), np.zeros((2, 2)), np.zeros(4, np.float32), np.zeros(8, np.float32), np.zeros(4, np.int64)]
    assert len({cache_key(array).digest for array in arrays}) == len(arrays)


class Held(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.encoder = nn.Identity()
        self.encoder.lookup = {"by": [held]}


def test_an_object_known_by_its_identity_only_is_named_with_its_path(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        module = Held(file)
        found = cache_key(module)
        assert not found.portable
        assert found.obstacle == "module.encoder.lookup['by'][0]: an object of type _io.TextIOWrapper"
        assert cache_key(module) == found
        with (tmp_path / "log").open("w") as other:
            assert cache_key(Held(other)) != found


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
def test_objects_without_a_readable_state_are_named(value: Any, words: str) -> None:
    found = cache_key({"model": Held(value)})
    assert not found.portable
    assert found.obstacle.startswith("model.encoder.lookup['by'][0]")
    assert words in found.obstacle


def test_a_cache_key_keeps_objects_alive_that_are_known_by_their_identity() -> None:
    module = Held(memoryview(b"x"))
    found = cache_key(module)
    kept = weakref.ref(module.encoder.lookup["by"][0])
    module.encoder.lookup["by"][0] = None
    gc.collect()
    assert kept() is not None
    assert not found.portable


class Stubborn:
    def __reduce_ex__(self, protocol: object) -> Any:
        raise RuntimeError("no")


class StubbornError(Stubborn, Exception):
    pass


def test_an_object_that_cannot_be_inspected_counts_by_its_identity() -> None:
    assert cache_key(Stubborn()).portable
    assert cache_key([StubbornError()]).obstacle.endswith("test_key.StubbornError")


def test_locks_and_loggers_do_not_count() -> None:
    one, other = (Held([threading.Lock(), threading.RLock(), threading.Event(), models]) for _ in range(2))
    assert cache_key(one).portable
    assert cache_key(one) == cache_key(other)
    assert cache_key(Held(logging.getLogger("a"))) == cache_key(Held(logging.getLogger("a")))


def test_attributes_named_in_not_in_fingerprint_do_not_count() -> None:
    class Counting(nn.Module):
        not_in_fingerprint = ("calls",)
        calls = 0

    class CountingToo(Counting):
        pass

    module = CountingToo()
    module.calls = 1
    before = cache_key(module)
    module.calls = 2
    assert cache_key(module) == before
    module.other = 2
    assert cache_key(module) != before
