"""The public names: all there, and none costs anything before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import torch_estimator as te


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def test_importing_it_imports_nothing_heavy() -> None:
    heavy = [
        "torch",
        "pyarrow",
        "numpy",
        "pandas",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "tensorboard",
        "safetensors",
        "fsspec",
        "tqdm",
    ]
    program = f"import sys, torch_estimator; print([name for name in {heavy} if name in sys.modules])"
    assert run(program) == "[]\n"


@pytest.mark.parametrize("name", te.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(te, name) is getattr(te, name) is not None


def test_names_resolve_in_a_fresh_process_in_any_order() -> None:
    program = "import torch_estimator as te\nfor name in reversed(te.__all__): getattr(te, name)\nprint('all')"
    assert run(program) == "all\n"


def test_the_errors_are_there_before_anything_else_is_used() -> None:
    program = "import torch_estimator as te\nwith te.errors.exit_on_user_error(): print(te.errors.UserError.__name__)"
    assert run(program) == "UserError\n"


def test_the_names_are_sorted_and_listed() -> None:
    assert te.__all__ == sorted(te.__all__)
    assert len(set(te.__all__)) == len(te.__all__)
    assert set(te.__all__) <= set(dir(te))
    assert te.__version__


def test_star_import_brings_them() -> None:
    program = "from torch_estimator import *\nprint(train_and_evaluate.__name__, ModeKeys.TRAIN, TrainSpec.__name__)"
    assert run(program) == "train_and_evaluate train TrainSpec\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No torch_estimator attribute nothing"):
        te.nothing  # noqa: B018


def test_mode_keys_have_tf_estimators_values() -> None:
    assert [str(mode) for mode in te.ModeKeys] == ["train", "eval", "infer"]
