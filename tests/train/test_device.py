"""The device that a process computes on, by `RunConfig.device`, its cluster and the GPUs of the machine."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import torch_estimator as te
from torch_estimator.cluster import Task, task_from_environment
from torch_estimator.errors import InvalidValueError
from torch_estimator.train.device import device_of

PARAMETER_SERVERS = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
ON_TWO_HOSTS = {"chief": ["a:1"], "worker": ["b:1", "a:2", "b:2", "[::1]:1"]}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs. Nothing is computed on them."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def config(task: Task | None = None, device: str = "auto") -> te.RunConfig:
    return te.RunConfig(device=device, _task=task or Task())


def tf_config(cluster: Any, type: str, index: int) -> Task:
    return task_from_environment(
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": type, "index": index}})}
    )


def test_without_a_gpu_a_process_computes_on_the_cpu() -> None:
    assert device_of(config()) == "cpu"


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("given", "device"), [("auto", "cuda"), ("cpu", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda:1")]
)
def test_one_process_takes_the_device_that_it_is_given(given: str, device: str) -> None:
    assert device_of(config(device=given)) == device


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("given", ["cuda:2", "cuda:10"])
def test_a_gpu_that_is_not_there_is_an_error(given: str) -> None:
    with pytest.raises(InvalidValueError, match=rf'device="{given}"\) names a GPU that is not there: .* sees 2 GPUs'):
        device_of(config(device=given))


def test_a_training_on_a_gpu_that_is_not_there_is_an_error() -> None:
    job = te.BaselineRegressor(config=te.RunConfig(device="cuda"))
    with pytest.raises(
        InvalidValueError, match=r'device="cuda"\) names a GPU .* sees 0 GPUs here; give "auto" or "cpu"\.'
    ):
        job.train(lambda: ({"x": [1.0]}, [1.0]), steps=1)


@pytest.mark.parametrize("given", ["gpu:0", "cuda:", "cuda:-1", "CPU", None, 0])
def test_other_names_of_devices_are_errors(given: Any) -> None:
    with pytest.raises(InvalidValueError, match='device must be "auto", "cpu" or a GPU such as "cuda:0", but got'):
        te.RunConfig(device=given)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("type", "index", "device"),
    [
        ("chief", 0, "cuda:0"),
        ("worker", 0, "cuda:0"),
        ("worker", 1, "cuda:1"),
        ("worker", 2, "cuda:1"),
        ("worker", 3, "cuda:0"),
        ("evaluator", 0, "cuda:0"),
    ],
)
def test_the_processes_of_a_cluster_take_the_gpus_of_their_host_in_turn(type: str, index: int, device: str) -> None:
    assert device_of(config(tf_config(ON_TWO_HOSTS, type, index))) == device


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("variable", ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"])
def test_a_launcher_of_ranks_chooses_the_gpu(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": "6", "WORLD_SIZE": "8", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
    for local, device in (("0", "cuda:0"), ("1", "cuda:1"), ("2", "cuda:0")):
        monkeypatch.setenv(variable, local)
        assert device_of(config(task_from_environment(ranks))) == device
    assert device_of(config(task_from_environment(ranks), "cuda:0")) == "cuda:0"


@pytest.mark.usefixtures("gpus")
def test_local_rank_must_be_a_whole_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "first")
    with pytest.raises(InvalidValueError, match="LOCAL_RANK must be a whole number"):
        device_of(config(tf_config(ON_TWO_HOSTS, "worker", 1)))


@pytest.mark.usefixtures("gpus")
def test_a_cluster_with_parameter_servers_computes_on_the_cpu_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "torch_estimator")
    worker = tf_config(PARAMETER_SERVERS, "worker", 0)
    assert device_of(config(worker)) == "cpu"
    assert "because the cluster has parameter servers" in caplog.text
    with pytest.raises(InvalidValueError, match=r'device="cuda:0"\) is a GPU, but'):
        device_of(config(worker, "cuda:0"))
