"""An evaluation shared by forked processes has the metrics of one process, and names a process that has failed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.distribute import MirroredStrategy, MultiWorkerMirroredStrategy

ROWS = 103


def input_fn() -> te.data.Dataset:
    rng = np.random.default_rng(0)
    color = rng.choice(["red", "green", "blue"], ROWS)
    size = rng.normal(size=ROWS).astype(np.float32)
    features = {"color": color, "size": size, "weight": rng.uniform(0.5, 2.0, ROWS)}
    return te.data.Dataset.from_arrays(features, (size + (color == "red") > 0.3).astype(np.int64)).batch(8)


def classifier(model_dir: Path, replicas: int) -> te.Estimator:
    color = fc.categorical_column_with_vocabulary_list("color", ["red", "green", "blue"])
    estimator: te.Estimator = te.DNNLinearCombinedClassifier(
        model_dir=str(model_dir),
        linear_feature_columns=[color],
        dnn_feature_columns=[fc.embedding_column(color, 4), fc.numeric_column("size")],
        dnn_hidden_units=[8],
        weight_column="weight",
        config=te.RunConfig(random_seed=1, compile=False, eval_distribute=MirroredStrategy(replicas=replicas)),
    )
    return te.add_metrics(estimator, of_rows)


def of_rows(labels: Tensor, predictions: Mapping[str, Any], features: Mapping[str, Any]) -> dict[str, Any]:
    reds = torch.from_numpy(np.asarray(features["color"]) == "red")
    likely = predictions["logistic"].flatten()
    return {"median": likely.median(), "reds": likely[reds].mean(), "rows": len(labels)}


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("steps", [None, 7])
def test_metrics_are_those_of_one_process(tmp_path: Path, replicas: int, steps: int | None) -> None:
    alone = classifier(tmp_path, 1).train(input_fn, steps=5)
    wanted = alone.evaluate(input_fn, steps=steps, name="alone")
    assert wanted["rows"] == (ROWS if steps is None else steps * 8)
    threads = torch.get_num_threads()
    shared = classifier(tmp_path, replicas).evaluate(input_fn, steps=steps, name="shared")
    assert torch.get_num_threads() == threads
    assert shared == pytest.approx(wanted, rel=1e-6)
    assert shared["global_step"] == 5
    assert len(list((tmp_path / "eval_shared").glob("events.*"))) == 1


class Noted(te.Hook):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_step(self, context: te.RunContext) -> None:
        self.losses.append(context.loss)
        if len(self.losses) == 3:
            context.request_stop()


def module(forward: type[nn.Module], model_dir: Path) -> te.Estimator:
    return te.Estimator.from_module(
        forward(),
        loss=lambda outputs, labels: nn.functional.mse_loss(outputs["of"], labels),
        predictions=lambda outputs: {"mean": outputs["of"]},
        metrics={"largest": lambda labels, predictions: predictions["mean"].max()},
        model_dir=str(model_dir),
        config=te.RunConfig(eval_distribute=MirroredStrategy(replicas=2)),
    )


STARTED = os.getpid()


class Sums(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"of": x.sum(1)}


class Fails(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        if os.getpid() != STARTED:
            raise KeyError("something of the user's")
        return {"of": x.sum(1)}


class Dies(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        if os.getpid() != STARTED:
            os.kill(os.getpid(), 9)
        return {"of": x.sum(1)}


class CannotBeSent(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"of": x.sum(1), "how": lambda: "sum"}


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    return ((torch.full((2, 3), float(number)), torch.zeros(2)) for number in range(9))


def test_hooks_see_the_batches_of_the_first_process_and_stop_all(tmp_path: Path) -> None:
    hook = Noted()
    results = module(Sums, tmp_path).evaluate(batches, hooks=[hook])
    assert hook.losses == [0.0, 36.0, 144.0]
    assert results["largest"] == 12.0


@pytest.mark.parametrize(
    ("forward", "kind", "told"),
    [
        (Fails, te.errors.ClusterError, "replica 1 has failed; its traceback is above. KeyError: "),
        (Dies, te.errors.ClusterError, "replica 1 was ended by SIGKILL; start again"),
        (CannotBeSent, te.errors.InvalidTypeError, "eval_distribute needs a module whose outputs can be sent "),
    ],
)
def test_a_failed_process_is_named(tmp_path: Path, forward: type[nn.Module], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=f"^{told}"):
        module(forward, tmp_path).evaluate(batches)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        of = self.scale * x.sum(1)
        return {"of": of, "process": torch.full_like(of, os.getpid())}


def test_the_evaluator_of_a_cluster_shares_its_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(**settings: Any) -> te.Estimator:
        return te.Estimator.from_module(
            Counts(),
            loss=lambda outputs, labels: nn.functional.mse_loss(outputs["of"], labels),
            predictions=lambda outputs: outputs,
            metrics={"processes": lambda labels, predictions: predictions["process"].unique().numel()},
            optimizer=te.optim.SGD(lr=1e-4),
            model_dir=str(tmp_path),
            config=te.RunConfig(compile=False, **settings),
        )

    alone = build().train(batches, max_steps=9).evaluate(batches)
    assert alone["processes"] == 1
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}}))
    metrics, _ = te.train_and_evaluate(
        build(eval_distribute=MirroredStrategy(replicas=2)),
        te.TrainSpec(batches, max_steps=9),
        te.EvalSpec(batches, steps=None, start_delay_secs=0),
    )
    assert metrics.pop("processes") == 2
    assert metrics == pytest.approx({name: value for name, value in alone.items() if name != "processes"}, rel=1e-6)


def test_other_strategies_evaluate_as_before_or_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = module(Sums, tmp_path)
    shared = estimator.evaluate(batches)
    config = estimator.config.replace(eval_distribute=MultiWorkerMirroredStrategy())
    alone = te.Estimator(estimator.job.builder.model_fn, config=config)
    assert alone.evaluate(batches) == alone.evaluate(batches) == shared
    # There is no other process, so there is nothing to warn of.
    assert not [one for one in caplog.messages if "eval_distribute" in one]
    with pytest.raises(TypeError, match=r"^eval_distribute must be a MirroredStrategy or a MultiWorkerMirroredStr"):
        te.RunConfig(eval_distribute=te.distribute.ParameterServerStrategy())  # type: ignore[arg-type]
