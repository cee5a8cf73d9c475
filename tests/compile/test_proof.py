"""A compiled step is used only after it has computed what Python computes, and is compared again before checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.line_jobs import assert_same_variables, variables
from torch_estimator import feature_column as fc
from torch_estimator.code_cache import CodeCache
from torch_estimator.compile import compiled_runner
from torch_estimator.compile.compiled_step import CompiledStep

REFUSED = "The training step is not compiled, because "


@pytest.fixture(autouse=True)
def _one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "proven steps"))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare compiled steps before every checkpoint, not only every ten seconds."""
    monkeypatch.setattr(compiled_runner, "CHECK_EVERY_SECS", 0.0)


class Scaled(nn.Module):
    """A module that multiplies by a number from a file, which no cache key contains."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.file = str(file)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(1) * float(Path(self.file).read_text())


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[:, 0]


def rows(count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    return x, x.sum(1)


def data() -> te.data.Dataset:
    return te.data.Dataset.from_arrays(*rows()).batch(16).repeat()


def estimator(model_dir: Path, module: nn.Module, compile: Any, **settings: Any) -> te.Estimator:
    return te.Estimator.from_module(
        module,
        loss=nn.MSELoss(),
        optimizer=settings.pop("optimizer", "SGD"),
        model_dir=str(model_dir),
        config=te.RunConfig(random_seed=5, compile=compile, **settings),
    )


@pytest.mark.runs_in_python
def test_a_number_from_a_file_that_changes_between_trainings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    file = tmp_path / "scale.txt"
    for number, scale in enumerate((1.0, 3.0, 3.0, 1.0)):
        file.write_text(str(scale))
        caplog.clear()
        compiled = estimator(tmp_path / f"compiled {number}", Scaled(file), True).train(data, steps=60)
        python = estimator(tmp_path / f"python {number}", Scaled(file), False).train(data, steps=60)
        np.testing.assert_allclose(variables(compiled)["weight"], variables(python)["weight"], rtol=1e-5)
        anew = [one for one in caplog.messages if "is dropped, because it changes module.weight otherwise" in one]
        assert len(anew) == (number in (1, 3))
        assert len([one for one in caplog.messages if one.startswith("Compiled ")]) == (number in (0, 1, 3))
        assert REFUSED not in caplog.text


class Change(te.Hook):
    """Writes another number into a file once more than 20 steps are done."""

    every_n_steps = 5

    def __init__(self, file: Path) -> None:
        self.file = file

    def after_step(self, context: te.RunContext) -> None:
        if context.global_step > 20:
            self.file.write_text("3.0")


class Hidden(Scaled):
    """Scales by the number only where the weights are no longer zeros, or after some steps."""

    def __init__(self, file: Path, first_step: int) -> None:
        super().__init__(file)
        self.first_step = first_step
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        factor = float(Path(self.file).read_text())
        self.count += 1  # type: ignore[operator]
        shown = torch.where(self.count > self.first_step, factor * self.weight.sum(), 0.0)  # type: ignore[operator]
        return (x * self.weight).sum(1) * (1 + shown)


@pytest.mark.runs_in_python
def test_a_number_that_zero_weights_hide_at_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    file = tmp_path / "factor.txt"
    for factor in (0.0, 0.1):
        file.write_text(str(factor))
        compiled = estimator(tmp_path / f"compiled {factor}", Hidden(file, 0), True).train(data, steps=60)
        python = estimator(tmp_path / f"python {factor}", Hidden(file, 0), False).train(data, steps=60)
        np.testing.assert_allclose(variables(compiled)["weight"], variables(python)["weight"], rtol=1e-4)
    assert "is dropped, because" in caplog.text


@pytest.mark.runs_in_python
def test_a_number_that_only_later_steps_read_ends_the_training(tmp_path: Path) -> None:
    file = tmp_path / "factor.txt"
    file.write_text("0.0")
    estimator(tmp_path / "before", Hidden(file, 8), True).train(data, steps=60)
    file.write_text("0.1")
    job = estimator(tmp_path / "model", Hidden(file, 8), True)
    with pytest.raises(te.errors.CompiledStepError, match="Start again to go on in Python") as raised:
        job.train(data, max_steps=60)
    # A launcher starts it again.
    assert raised.value.exit_status == 1
    again = estimator(tmp_path / "model", Hidden(file, 8), True).train(data, max_steps=60)
    python = estimator(tmp_path / "python", Hidden(file, 8), False).train(data, max_steps=60)
    np.testing.assert_allclose(variables(again)["weight"], variables(python)["weight"], rtol=1e-4)


@pytest.mark.runs_in_python
def test_a_number_that_changes_in_the_middle_ends_the_training_before_a_checkpoint(
    tmp_path: Path, always: None
) -> None:
    file = tmp_path / "scale.txt"
    file.write_text("1.0")

    job = estimator(tmp_path / "model", Scaled(file), True, save_checkpoints_steps=10)
    with pytest.raises(te.errors.CompiledStepError, match=r"^Global step 30 is not saved, .*Python.*model\.ckpt-20\.$"):
        job.train(data, steps=60, hooks=[Change(file)])
    again = estimator(tmp_path / "model", Scaled(file), True, save_checkpoints_steps=10).train(data, max_steps=200)
    np.testing.assert_allclose(variables(again)["weight"], 1 / 3, rtol=1e-3)


@pytest.mark.runs_in_python
@pytest.mark.parametrize("save_steps", [1000, 60])
def test_a_number_that_changes_at_the_end_is_noticed_at_the_last_checkpoint(tmp_path: Path, save_steps: int) -> None:
    file = tmp_path / "scale.txt"
    file.write_text("1.0")

    job = estimator(tmp_path / "model", Scaled(file), True, save_checkpoints_steps=save_steps)
    with pytest.raises(te.errors.CompiledStepError, match=r"Start again to go on in Python from .*model\.ckpt-0\.$"):
        job.train(data, max_steps=60, hooks=[Change(file)])
    assert te.latest_checkpoint(str(tmp_path / "model")) == str(tmp_path / "model" / "model.ckpt-0")


@pytest.mark.runs_in_python
def test_a_training_goes_back_to_the_last_checkpoint_before_which_steps_were_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "scale.txt"
    file.write_text("1.0")
    checks = []
    check = compiled_runner.CompiledRunner.check

    def at_some(self: Any, *, always: bool = False) -> Any:
        # Compared at the checkpoints of the steps 20 and 80, and nowhere between.
        checks.append(len(checks))
        return check(self, always=len(checks) in (3, 9))

    monkeypatch.setattr(compiled_runner, "CHECK_EVERY_SECS", 3600.0)
    monkeypatch.setattr(compiled_runner, "_SHARE_OF_CHECKS", 1e-6)
    monkeypatch.setattr(compiled_runner.CompiledRunner, "check", at_some)

    settings = {"save_checkpoints_steps": 10, "keep_checkpoint_max": 2}
    job = estimator(tmp_path / "model", Scaled(file), True, **settings)
    with pytest.raises(te.errors.CompiledStepError, match=r"^Global step 80 is not saved, .*from .*model\.ckpt-20\.$"):
        job.train(data, max_steps=100, hooks=[Change(file)])
    again = estimator(tmp_path / "model", Scaled(file), True, **settings).train(data, max_steps=200)
    np.testing.assert_allclose(variables(again)["weight"], 1 / 3, rtol=1e-3)


class Decayed(te.optim.Adam):
    """Adam with a weight decay that it reads from a file."""

    file = ""

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: Any, group: Any) -> None:
        te.optim.Adam.update(param, grad, state, group)
        param.mul_(1 - group["lr"] * float(Path(Decayed.file).read_text()))


@pytest.mark.runs_in_python
def test_an_element_whose_sign_is_rounding_hides_no_difference_in_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    file = tmp_path / "decay.txt"
    monkeypatch.setattr(Decayed, "file", str(file))
    x, y = rows()
    x = np.concatenate([x, np.zeros((len(x), 1), np.float32)], axis=1)

    def unused() -> te.data.Dataset:
        return te.data.Dataset.from_arrays(x, y[:, None]).batch(16).repeat()

    ends = []
    for decay, compile in ((0.0, True), (1.0, True), (1.0, False)):
        file.write_text(str(decay))
        torch.manual_seed(0)
        job = estimator(tmp_path / f"{decay} {compile}", nn.Linear(4, 1), compile, optimizer=Decayed(lr=0.001))
        ends.append(variables(job.train(unused, steps=100))["weight"])
    np.testing.assert_allclose(ends[1], ends[2], rtol=1e-3, atol=1e-5)
    assert "is dropped, because" in caplog.text


def off_by(change: Callable[[list[Tensor], np.ndarray], None]) -> Callable[..., Any]:
    """Return `CompiledStep.take` with a fault: `change` gets the tensors of the step and the losses."""
    take = CompiledStep.take

    def faulty(self: CompiledStep, *arguments: Any) -> tuple[np.ndarray, bool]:
        before = [tensor.detach().clone() for tensor in self._state]
        losses, failed = take(self, *arguments)
        with torch.no_grad():
            change([(now, then) for now, then in zip(self._state, before, strict=True)], losses)  # type: ignore[misc]
        return losses, failed

    return faulty


def scale_changes(kind: type, factor: float) -> Any:
    def change(pairs: Any, losses: Any) -> None:
        for now, then in pairs:
            if now.numel() >= 16:
                now.copy_(then + factor * (now - then))

    return change


def lose_one_element(pairs: Any, losses: Any) -> None:
    now, then = max(pairs, key=lambda pair: float((pair[0] - pair[1]).abs().max()) if pair[0].numel() >= 16 else -1.0)
    at = (now - then).abs().flatten().argmax()
    now.view(-1)[at] = then.view(-1)[at]


def other_loss(pairs: Any, losses: np.ndarray) -> None:
    losses *= 1.001


def extra_draw(pairs: Any, losses: Any) -> None:
    torch.rand(1)


FAULTS = {
    "an update one percent too large": scale_changes(Tensor, 1.01),
    "a lost update": scale_changes(Tensor, 0.0),
    "one lost element": lose_one_element,
    "another loss": other_loss,
    "an extra random number": extra_draw,
}


@pytest.mark.runs_in_python
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adagrad"])
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_refused_by_the_first_batch(
    name: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    right = estimator(tmp_path / "python", Network(), False, optimizer=optimizer).train(data, steps=20)
    caplog.clear()
    monkeypatch.setattr(CodeCache, "refuse", lambda *_: None)
    monkeypatch.setattr(CompiledStep, "take", off_by(FAULTS[name]))
    torch.manual_seed(0)
    wrong = estimator(tmp_path / "compiled", Network(), True, optimizer=optimizer).train(data, steps=20)
    assert [one.message.startswith(REFUSED) for one in caplog.records if one.levelno >= logging.WARNING] == [True]
    assert_same_variables(wrong, right)


def wide_and_deep(model_dir: Path, compile: Any) -> te.Estimator:
    words = fc.categorical_column_with_vocabulary_list("v", ["a", "b", "c", "d"])
    hashed = fc.categorical_column_with_hash_bucket("w", 1000)
    return te.DNNLinearCombinedClassifier(
        linear_feature_columns=[words, hashed],
        dnn_feature_columns=[fc.embedding_column(hashed, 8), fc.numeric_column("x")],
        dnn_hidden_units=[8],
        model_dir=str(model_dir),
        config=te.RunConfig(random_seed=5, compile=compile),
    )


def words() -> te.data.Dataset:
    rng = np.random.default_rng(0)
    w = rng.choice(["a", "b", "c", "d"], 64)
    return (
        te.data.Dataset.from_arrays({"w": w, "v": w, "x": rng.normal(size=64)}, (w == "a").astype(np.int64))
        .batch(16)
        .repeat()
    )


def lose_a_row(pairs: Any, losses: Any) -> None:
    for now, then in pairs:
        if now.dim() == 2 and len(now) > 900 and not torch.equal(now, then):
            row = (now - then).abs().sum(1).argmax()
            now[row] = then[row]


@pytest.mark.runs_in_python
@pytest.mark.parametrize("fault", [None, lose_a_row])
def test_rows_of_tables_are_compared(
    fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = wide_and_deep(tmp_path / "python", False).train(words, steps=20)
    if fault is not None:
        monkeypatch.setattr(CodeCache, "refuse", lambda *_: None)
        monkeypatch.setattr(CompiledStep, "take", off_by(fault))
    caplog.clear()
    other = wide_and_deep(tmp_path / "compiled", True).train(words, steps=20)
    refusals = [one.message for one in caplog.records if one.message.startswith(REFUSED)]
    assert len(refusals) == (fault is not None)
    for key, value in variables(right).items():
        np.testing.assert_allclose(variables(other)[key], value, rtol=1e-5, atol=1e-6)


def test_a_bias_before_a_batch_norm_is_within_rounding(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its gradient is nothing but rounding, which Adam enlarges to whole steps."""
    module = nn.Sequential(nn.Linear(3, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    estimator(tmp_path / "model", module, True, optimizer="Adam").train(data, steps=20)
    assert not [one.message for one in caplog.records if one.message.startswith(REFUSED)]


def test_a_comparison_before_a_checkpoint_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(name: str) -> te.Estimator:
        torch.manual_seed(0)
        job = estimator(tmp_path / name, Network(), True, optimizer="Adam", save_checkpoints_steps=5)
        return job.train(data, steps=20)

    rarely = trained("rarely")
    monkeypatch.setattr(compiled_runner, "CHECK_EVERY_SECS", 0.0)
    assert_same_variables(rarely, trained("always"))
