"""Tasks from Vertex AI's CLUSTER_SPEC, torchrun's ranks and Slurm's job steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

import torch_estimator as te
from torch_estimator.cluster import Task, task_from_environment
from torch_estimator.cluster.environment import check_trains_alone
from torch_estimator.errors import InvalidValueError, UserError

POOLS = {
    "workerpool0": ["a:2222"],
    "workerpool1": ["b:2222", "c:2222"],
    "workerpool2": ["d:2222"],
    "workerpool3": ["e:2222"],
}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "host", "MASTER_PORT": "29500", "LOCAL_RANK": "0"}
SLURM = {
    "SLURM_JOB_ID": "1000",
    "SLURM_STEP_ID": "1",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "gpu[007-009,12]",
}


def vertex(pools: Any, pool: str, index: int) -> Task:
    spec = {"cluster": pools, "environment": "cloud", "task": {"type": pool, "index": index, "trial": ""}}
    return task_from_environment({"CLUSTER_SPEC": json.dumps(spec)})


@pytest.mark.parametrize(
    ("pool", "index", "name", "address", "workers"),
    [
        ("workerpool0", 0, "chief 0", "a:2222", 3),
        ("workerpool1", 1, "worker 1", "c:2222", 3),
        ("workerpool2", 0, "ps 0", "d:2222", 3),
        ("workerpool3", 0, "evaluator 0", "e:2222", 0),
    ],
)
def test_pools_are_types_of_tasks(pool: str, index: int, name: str, address: str, workers: int) -> None:
    one = vertex(POOLS, pool, index)
    assert (str(one), one.address, one.num_workers, one.rendezvous) == (name, address, workers, "a:2222")
    assert one.has_evaluator


def test_a_vertex_job_without_the_last_pool_evaluates_itself_and_one_replica_is_no_cluster() -> None:
    assert not vertex({**POOLS, "workerpool3": []}, "workerpool0", 0).has_evaluator
    assert vertex({"workerpool0": ["a:2222"]}, "workerpool0", 0) == Task(source="CLUSTER_SPEC")


def test_tf_config_decides_where_both_are_set() -> None:
    environ = {**TORCHRUN, "CLUSTER_SPEC": "{", "TF_CONFIG": "{}"}
    assert task_from_environment(environ) == Task(source="TF_CONFIG")


@pytest.mark.parametrize(
    ("rank", "name", "chief"), [("0", "chief 0", True), ("1", "worker 0", False), ("3", "worker 2", False)]
)
def test_rank_0_is_the_chief(rank: str, name: str, chief: bool) -> None:
    one = task_from_environment({**TORCHRUN, "RANK": rank})
    assert (str(one), one.is_chief, one.global_id, one.num_workers) == (name, chief, int(rank), 4)
    assert (one.rendezvous, one.cluster, one.has_evaluator) == ("host:29500", {}, False)


def test_one_rank_is_no_cluster_and_hosts_may_be_numbers() -> None:
    assert task_from_environment({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}).num_workers == 1
    assert task_from_environment({**TORCHRUN, "MASTER_ADDR": "::1"}).rendezvous == "[::1]:29500"


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu[007-009,12]", "gpu007"),
        ("n1", "n1"),
        ("n-a.example.org,n-b", "n-a.example.org"),
        ("rack[2,4]-ib", "rack2-ib"),
    ],
)
def test_slurm_ranks_use_the_first_node_as_rendezvous(nodes: str, host: str) -> None:
    one = task_from_environment({**SLURM, "SLURM_STEP_NODELIST": nodes})
    assert (str(one), one.num_workers, one.rendezvous) == ("chief 0", 3, f"{host}:13097")


def test_slurm_takes_an_address_that_is_set() -> None:
    environ = {**SLURM, "SLURM_PROCID": "1", "MASTER_ADDR": "front", "MASTER_PORT": "5"}
    one = task_from_environment(environ)
    assert (str(one), one.rendezvous) == ("worker 0", "front:5")


def test_slurm_takes_an_address_of_numbers() -> None:
    environ = {**SLURM, "MASTER_ADDR": "fe80::1", "MASTER_PORT": "5"}
    assert task_from_environment(environ).rendezvous == "[fe80::1]:5"


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "0"},
        {"WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1", "MASTER_ADDR": "host", "MASTER_PORT": "1"},
        {"RANK": "", "WORLD_SIZE": ""},
        {"RANK": "", "WORLD_SIZE": "1"},
    ],
)
def test_variables_that_tools_set_for_one_process_are_no_cluster(environ: dict[str, str]) -> None:
    assert task_from_environment(environ) == Task()
    check_trains_alone(environ)


@pytest.mark.parametrize(
    ("environ", "given", "missing"),
    [
        ({"RANK": "1"}, "RANK is '1'", "WORLD_SIZE"),
        ({"RANK": "0", "MASTER_ADDR": "host"}, "RANK is '0'", "WORLD_SIZE"),
        ({"RANK": "1", "WORLD_SIZE": ""}, "RANK is '1'", "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is '2'", "RANK"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "WORLD_SIZE is '2'", "RANK"),
    ],
)
def test_a_process_that_cannot_find_the_others_evaluates_but_does_not_train(
    environ: dict[str, str], given: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    estimator = te.BaselineRegressor()
    said = f"^{given}, but {missing} is not set, without which every process would train alone; set both, as"
    with pytest.raises(InvalidValueError, match=said):
        estimator.train(lambda: te.data.Dataset.from_arrays({"a": [1.0]}, [1.0]).batch(1))


def test_a_number_of_ranks_alone_may_stand_in_a_batch_script() -> None:
    one = task_from_environment({**SLURM, "WORLD_SIZE": "3", "MASTER_ADDR": "front", "MASTER_PORT": "5"})
    assert (str(one), one.num_workers, one.rendezvous) == ("chief 0", 3, "front:5")


def test_a_batch_script_and_a_step_of_one_task_are_no_cluster() -> None:
    script = {name: value for name, value in SLURM.items() if "STEP" not in name}
    assert task_from_environment(script) == Task()
    assert task_from_environment({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}) == Task(source="SLURM_PROCID")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"CLUSTER_SPEC": "["}, "CLUSTER_SPEC is not JSON"),
        ({"CLUSTER_SPEC": "[]"}, r"CLUSTER_SPEC must be a JSON object, but got '\[\]'"),
        (
            {"CLUSTER_SPEC": json.dumps({"cluster": {"workerpool1": ["a:1", "b:1"]}})},
            r"CLUSTER_SPEC\['cluster'\]\['workerpool0'\] must be one address, that of the chief, but got \[\]",
        ),
        (
            {"CLUSTER_SPEC": json.dumps({"cluster": {"workerpool0": ["a:1"]}, "task": {"type": "workerpool1"}})},
            r"CLUSTER_SPEC\['task'\] must name the type and the index .*which has 1 in workerpool0, but got \{",
        ),
        (
            {"CLUSTER_SPEC": json.dumps({"cluster": POOLS, "task": {"type": "workerpool1", "index": 2}})},
            r"CLUSTER_SPEC\['task'\] must name the type and the index .*2 in workerpool1, .*but got \{'type': 'wor",
        ),
        *(
            (
                {"CLUSTER_SPEC": json.dumps({"cluster": POOLS, "task": wrong})},
                r"CLUSTER_SPEC\['task'\] must name the type and the index .*2 in workerpool1, .*but got \{'type': ",
            )
            for wrong in [
                {"type": "workerpool1", "index": True},
                {"type": "workerpool1", "index": float("inf")},
                {"type": ["workerpool1"], "index": 0},
                {"type": {}, "index": 0},
            ]
        ),
        ({"CLUSTER_SPEC": "[" * 100_000}, r"CLUSTER_SPEC is not JSON \(Nested deeper than 100 levels.*'\[{199}…\.$"),
        (
            {"CLUSTER_SPEC": json.dumps({"cluster": {"workerpool0": ["a:" + "9" * 5000]}})},
            r"CLUSTER_SPEC\['cluster'\]\['workerpool0'\]\[0\] is 'a:9{197}…, but ports go from 1 to 65535\.$",
        ),
        ({**TORCHRUN, "RANK": "1" * 5000}, "RANK must be a whole number from 0 to 3, but got '1{199}…"),
        ({**SLURM, "MASTER_ADDR": "a b", "MASTER_PORT": "5"}, "MASTER_ADDR:MASTER_PORT must be an address .*'a b:5'"),
        ({**TORCHRUN, "RANK": "4"}, "RANK must be a whole number from 0 to 3, but got '4'"),
        ({**TORCHRUN, "WORLD_SIZE": "many"}, "WORLD_SIZE must be a whole number at least 1, but got 'many'"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but MASTER_ADDR and MASTER_PORT are not set; name the"),
        ({**TORCHRUN, "MASTER_PORT": "x"}, "MASTER_ADDR:MASTER_PORT must be an address 'host:port', but got 'host:x'"),
        ({**SLURM, "SLURM_STEP_NODELIST": "[1-2]"}, r"SLURM_STEP_NODELIST is '\[1-2\]', of which the first node is no"),
        ({**SLURM, "SLURM_PROCID": "3"}, "SLURM_PROCID must be a whole number from 0 to 2, but got '3'"),
    ],
)
def test_checks(environ: dict[str, str], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{message}") as raised:
        task_from_environment(environ)
    assert isinstance(raised.value, UserError)
