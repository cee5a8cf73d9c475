"""Parameter servers: one worker computes what a process alone computes, several share the work, the dead come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cluster_jobs import Cluster, Ended
from tests.jobs import checkpoint_steps
from torch_estimator.engine.checkpoint import load_checkpoint

PROGRAM = """
import logging, os, sys, time
import numpy as np
import pyarrow
import torch
import torch_estimator as te
from torch_estimator import feature_column as fc

model_dir, batch, max_steps, *rest = sys.argv[1:]
settings = dict(one.split("=") for one in rest)
logging.basicConfig(level=logging.INFO, format="%(message)s")
config = te.RunConfig(
    random_seed=1,
    save_checkpoints_steps=int(settings.get("save", 1000)),
    compile=settings.get("compile") == "True",
    session_creation_timeout_secs=float(settings.get("wait", 100)),
    experimental_max_worker_delay_secs=0,
    train_distribute=te.distribute.ParameterServerStrategy(pipeline=True) if "pipeline" in settings else None,
)
rows = int(settings.get("rows", 960))


def input_fn(input_context):
    rng = np.random.default_rng(0)
    color = rng.choice([f"color {number}" for number in range(50)], rows)
    size = rng.normal(size=rows).astype(np.float32)
    tags = [[int(tag) for tag in rng.integers(0, 20, 1 + row // 40)] for row in range(rows)]
    labels = (size + np.char.str_len(color) > 7.5).astype(np.int64)
    features = {"color": color, "size": size, "shape": rng.choice(["round", "square"], rows)}
    if "lists" in settings:
        features["tags"] = pyarrow.array(tags)
    data = te.data.Dataset.from_arrays(features, labels)
    data = data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if "repeat" in settings:
        data = data.repeat()
    return data.batch(int(batch))


class Acts(te.Hook):
    def after_step(self, context):
        time.sleep(float(settings.get("slow", 0)))
        step = settings.get(config.task_type)
        if step is not None and context.global_step >= int(step):
            if settings["does"] == "stops":
                context.request_stop()
            if settings["does"] == "dies":
                os.kill(os.getpid(), 9)


def optimizer(name):
    if name == "torch":
        return lambda params: torch.optim.Adam(params, lr=0.01)
    if name == "decayed":
        return lambda params: torch.optim.lr_scheduler.ExponentialLR(te.optim.Adagrad(lr=0.1)(params), 0.97)
    if name == "clipped":
        return te.optim.clip_gradients_by_norm(te.optim.Adagrad(lr=0.1), 0.05)
    return name


color = fc.categorical_column_with_hash_bucket("color", 100)
linear = [color, fc.crossed_column(["color", "shape"], 1000)]
if "lists" in settings:
    linear.append(fc.categorical_column_with_identity("tags", 20, multivalent=True))
estimator = te.DNNLinearCombinedClassifier(
    model_dir=model_dir.replace("{}", config.task_type),
    linear_feature_columns=linear,
    linear_optimizer=optimizer(settings.get("linear", "Ftrl")),
    dnn_feature_columns=[fc.embedding_column(color, 4), fc.numeric_column("size")],
    dnn_optimizer=optimizer(settings.get("dnn", "Adagrad")),
    dnn_hidden_units=[16, 8],
    config=config,
)
with te.errors.exit_on_user_error():
    te.train_and_evaluate(
        estimator,
        te.TrainSpec(input_fn, max_steps=None if max_steps == "None" else int(max_steps), hooks=[Acts()]),
        te.EvalSpec(input_fn, steps=1, start_delay_secs=0, throttle_secs=0),
    )
"""


def variables(model_dir: Path) -> dict[str, np.ndarray]:
    newest = max(checkpoint_steps(model_dir))
    checkpoint = load_checkpoint(str(model_dir / f"model.ckpt-{newest}"))
    return {name: tensor.numpy() for name, tensor in {**checkpoint.variables, **checkpoint.slots}.items()}


def assert_close(one: Path, other: Path) -> None:
    ours, theirs = variables(one), variables(other)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=2e-5, atol=1e-5, err_msg=name)


def run(model_dir: Path, *arguments: object, workers: int = 0, servers: int = 1) -> list[Ended]:
    """Runs a job that succeeds; its chief comes first."""
    results = Cluster(PROGRAM, workers, servers).run(model_dir, *arguments)
    for result in results:
        assert result.status == 0, result.told
    return results


def alone(model_dir: Path, *arguments: object) -> None:
    run(model_dir, *arguments, servers=0)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("linear=SGD", "dnn=Adam"),
        ("linear=AdamW", "dnn=RMSProp"),
        ("linear=torch", "dnn=decayed"),
        ("linear=clipped", "dnn=clipped"),
        ("lists=1",),
    ],
    ids=lambda settings: " ".join(settings) or "defaults",
)
def test_one_worker_computes_what_a_process_alone_does(tmp_path: Path, settings: tuple[str, ...]) -> None:
    run(tmp_path / "served", 32, 100, "repeat=1", *settings, servers=2)
    alone(tmp_path / "alone", 32, 100, "repeat=1", *settings)
    assert checkpoint_steps(tmp_path / "served") == [0, 100]
    assert_close(tmp_path / "served", tmp_path / "alone")
