"""TF_CONFIG: every task of a cluster is recognised, and every mistake gives one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torch_estimator.cluster import Task, task_from_environment
from torch_estimator.errors import UserError

CLUSTER = {
    "chief": ["c:1"],
    "worker": ["w0:1", "w1:1"],
    "ps": ["p0:1", "p1:1"],
}
LEGACY = {"master": ["m:1"], "worker": ["w0:1"], "ps": ["p0:1"]}
WORKERS = {"worker": ["w0:1", "w1:1"]}


def task(config: Any) -> Task:
    return task_from_environment({"TF_CONFIG": json.dumps(config)})


def place(cluster: Any, type: str, index: Any) -> Task:
    return task({"cluster": cluster, "task": {"type": type, "index": index}})


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"task": {}},
        {"cluster": {}},
        {"cluster": None},
        {"task": {"type": "worker", "index": 0}},
        {"task": {"type": "worker", "index": "0"}, "environment": "cloud"},
    ],
)
def test_a_worker_without_a_cluster_is_the_only_process(config: Any) -> None:
    one = task(config)
    assert (one.type, one.id, one.cluster, one.is_chief) == ("worker", 0, {}, True)
    assert (one.num_workers, one.num_ps, one.global_id, one.rendezvous) == (1, 0, 0, None)


def test_model_dir_and_service_are_taken_over() -> None:
    one = task({"model_dir": "gs://b/job", "service": {"a": [1]}})
    assert (one.model_dir, one.service) == ("gs://b/job", {"a": [1]})
    one = task({"model_dir": "gs://b/job", "cluster": WORKERS, "task": {"type": "worker", "index": 1}})
    assert one.model_dir == "gs://b/job"


@pytest.mark.parametrize(
    ("cluster", "type", "index", "chief", "workers", "ps", "global_id"),
    [
        (CLUSTER, "chief", 0, True, 3, 2, 0),
        (CLUSTER, "worker", 0, False, 3, 2, 1),
        (CLUSTER, "worker", "1", False, 3, 2, 2),
        (CLUSTER, "ps", 0, False, 3, 2, 3),
        (CLUSTER, "ps", 1, False, 3, 2, 4),
        (CLUSTER, "evaluator", 0, False, 0, 0, None),
        (CLUSTER, "evaluator", 7, False, 0, 0, None),
        ({**CLUSTER, "evaluator": ["e:1"]}, "worker", 0, False, 3, 2, 2),
        (LEGACY, "master", 0, True, 2, 1, 0),
        (LEGACY, "ps", 0, False, 2, 1, 2),
        (WORKERS, "worker", 0, True, 2, 0, 0),
        (WORKERS, "worker", 1, False, 2, 0, 1),
        ({"chief": ["c:1"]}, "chief", 0, True, 1, 0, 0),
    ],
)
def test_counts_and_numbers_are_tf_estimators(
    cluster: Any, type: str, index: Any, chief: bool, workers: int, ps: int, global_id: int | None
) -> None:
    one = place(cluster, type, index)
    assert (one.type, one.id, one.is_chief) == (type, int(index), chief)
    assert (one.num_workers, one.num_ps, one.global_id) == (workers, ps, global_id)


def test_addresses_and_rendezvous() -> None:
    one = place(CLUSTER, "ps", 1)
    assert (one.address, one.rendezvous, str(one)) == ("p1:1", "c:1", "ps 1")
    assert place(WORKERS, "worker", 1).rendezvous == "w0:1"
    assert place({"chief": ["[::1]:80"]}, "chief", 0).address == "[::1]:80"
    assert place(CLUSTER, "evaluator", 0).address is None


@pytest.mark.parametrize(
    ("cluster", "has"), [(CLUSTER, True), (LEGACY, True), (WORKERS, False), ({**WORKERS, "evaluator": ["e:1"]}, True)]
)
def test_workers_alone_evaluate_themselves(cluster: Any, has: bool) -> None:
    assert place(cluster, next(iter(cluster)), 0).has_evaluator is has


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", ValueError, r"TF_CONFIG is not JSON \(.*\): ''"),
        ("{task: 1}", ValueError, r"TF_CONFIG is not JSON \(.*\): '\{task: 1\}'"),
        ("[]", TypeError, r"TF_CONFIG must be a JSON object, but got '\[\]'"),
        ('{"task": "worker"}', TypeError, r"TF_CONFIG\['task'\] must be a JSON object, but got 'worker'"),
        ('{"task": null}', TypeError, r"TF_CONFIG\['task'\] must be a JSON object, but got None"),
        (
            '{"task": {"type": "evaluator"}}',
            ValueError,
            r"TF_CONFIG\['task'\]\['type'\] must be 'worker' .*'evaluator'",
        ),
        ('{"task": {"index": 1}}', ValueError, r"TF_CONFIG\['task'\]\['index'\] must be 0 .*, but got 1"),
        ('{"task": {"index": "first"}}', ValueError, r"TF_CONFIG\['task'\]\['index'\] must be an integer, .*'first'"),
        ('{"task": {"index": true}}', ValueError, r"TF_CONFIG\['task'\]\['index'\] must be an integer, but got True"),
        ('{"task": {"index": 0.5}}', ValueError, r"TF_CONFIG\['task'\]\['index'\] must be an integer, but got 0.5"),
        ('{"task": {"index": null}}', ValueError, r"TF_CONFIG\['task'\]\['index'\] must be an integer, but got None"),
        (
            '{"task": {"index": Infinity}}',
            ValueError,
            r"TF_CONFIG\['task'\]\['index'\] must be an integer, but got inf",
        ),
        ('{"task": {"type": ["worker"]}}', ValueError, r".*\['type'\] must be 'worker' .*, but got \['worker'\]"),
        ("[" * 100_000, ValueError, r"TF_CONFIG is not JSON \(Nested deeper than 100 levels.*\): '\[{199}…\.$"),
        ('{"task": {"index": ' + "1" * 5000 + "}}", ValueError, r"TF_CONFIG is not JSON \(.* digits.*\): '.*1…\.$"),
        ('{"session_master": 7}', TypeError, r"TF_CONFIG\['session_master'\] must be an address, but got 7"),
        (
            '{"eval_session_master": []}',
            TypeError,
            r"TF_CONFIG\['eval_session_master'\] must be an address, but got \[",
        ),
        ('{"service": []}', TypeError, r"TF_CONFIG\['service'\] must be a JSON object, but got \[\]"),
        ('{"model_dir": ""}', ValueError, r"TF_CONFIG\['model_dir'\] must be a non-empty string, but got ''"),
        ('{"model_dir": 1}', ValueError, r"TF_CONFIG\['model_dir'\] must be a non-empty string, but got 1"),
    ],
)
def test_checks(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}") as raised:
        task_from_environment({"TF_CONFIG": text})
    assert isinstance(raised.value, UserError)


CHIEF = {"type": "chief", "index": 0}


@pytest.mark.parametrize(
    ("cluster", "named", "error", "message"),
    [
        (["c:1"], CHIEF, TypeError, r"TF_CONFIG\['cluster'\] must be a JSON object of lists of addresses, but got \["),
        ({"workers": ["c:1"]}, CHIEF, ValueError, r"TF_CONFIG\['cluster'\] names 'workers'; the types of tasks are c"),
        ({"chief": "c:1"}, CHIEF, TypeError, r"TF_CONFIG\['cluster'\]\['chief'\] must be a list of addr.*'c:1'"),
        ({"chief": [1]}, CHIEF, TypeError, r"TF_CONFIG\['cluster'\]\['chief'\]\[0\] must be an address 'host:port'"),
        ({"chief": ["c"]}, CHIEF, ValueError, r"TF_CONFIG\['cluster'\]\['chief'\]\[0\] must be an address .*'c'"),
        ({"chief": ["::1:80"]}, CHIEF, ValueError, r"TF_CONFIG\['cluster'\]\['chief'\]\[0\] must be .* '::1:80'"),
        ({"chief": ["c:99999"]}, CHIEF, ValueError, r".*\['chief'\]\[0\] is 'c:99999', but ports go from 1 to 65535"),
        ({"chief": ["c:0"]}, CHIEF, ValueError, r".*\['chief'\]\[0\] is 'c:0', but ports go from 1 to 65535"),
        (
            {"chief": ["c:1"], "ps": ["p:1", "c:1"]},
            CHIEF,
            ValueError,
            r".*\['ps'\]\[1\] is 'c:1', which is the address of TF_CONFIG\['cluster'\]\['chief'\]\[0\], too",
        ),
        *(
            (
                {"chief": [wrong]},
                CHIEF,
                ValueError,
                rf".*\['chief'\]\[0\] must be an address 'host:port', but got '{as_told}'",
            )
            for wrong, as_told in [
                ("a b:1", "a b:1"),
                ("..:1", r"\.\.:1"),
                (" c:1", " c:1"),
                ("c:1\n", r"c:1\\n"),
                ("[]:12", r"\[\]:12"),
                ("[c]:12", r"\[c\]:12"),
                ("c:\u0661", "c:\u0661"),
                ("grpc://c:1", "grpc://c:1"),
            ]
        ),
        ({"chief": ["c:" + "9" * 5000]}, CHIEF, ValueError, r".*\[0\] is 'c:9{197}…, but ports go from 1 to 65535\.$"),
        *(
            (
                {"chief": [one], "worker": [other]},
                CHIEF,
                ValueError,
                rf".*\['worker'\]\[0\] is '{told}', which is the a",
            )
            for one, other, told in [
                ("localhost:1", "127.0.0.1:1", "127.0.0.1:1"),
                ("[::1]:1", "LOCALHOST:1", "LOCALHOST:1"),
                ("Host:1", "host:01", "host:01"),
                ("[fe80::1]:1", "[fe80:0::1]:1", r"\[fe80:0::1\]:1"),
            ]
        ),
        ({"chief": ["c:1", "d:1"]}, CHIEF, ValueError, r".*\['chief'\] must be one address, but got \['c:1', 'd:1'\]"),
        ({"chief": ["c:1"], "master": ["m:1"]}, CHIEF, ValueError, r".* names a chief and a master, .*remove 'master'"),
        (
            {"ps": ["p:1"]},
            {"type": "ps", "index": 0},
            ValueError,
            r".* has no task that trains, only ps; add a",
        ),
        (CLUSTER, {"index": 0}, ValueError, r"TF_CONFIG\['task'\]\['type'\] is missing; name one of chief, worker, ps"),
        (
            CLUSTER,
            {"type": ["chief"], "index": 0},
            ValueError,
            r".*\['type'\] is \['chief'\], which is not in TF_CONFIG",
        ),
        (
            CLUSTER,
            {"type": {}, "index": 0},
            ValueError,
            r".*\['type'\] is \{\}, which is not in TF_CONFIG.*names chief, w",
        ),
        (CLUSTER, {"type": "ps", "index": 1e999}, ValueError, r".*\['index'\] must be an integer, but got inf"),
        (
            CLUSTER,
            {"type": "ps", "index": "9" * 5000},
            ValueError,
            r".*\['index'\] must be an integer, but got '9{199}…\.$",
        ),
        (CLUSTER, {"type": "ps"}, ValueError, r"TF_CONFIG\['task'\]\['index'\] is missing; say which ps this proc"),
        (CLUSTER, {"type": "ps", "index": -1}, ValueError, r"TF_CONFIG\['task'\]\['index'\] must not be negative"),
        (CLUSTER, {"type": "ps", "index": 2}, ValueError, r".*\['index'\] is 2, but .*\['ps'\] has 2 addresses"),
        (CLUSTER, {"type": "master", "index": 0}, ValueError, r".*\['type'\] is 'master', which is not in .*chief, w"),
        (LEGACY, {"type": "evaluator", "index": 0}, ValueError, r".* is 'evaluator', but a 'master' evaluates itself"),
    ],
)
def test_checks_of_a_cluster(cluster: Any, named: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}") as raised:
        task({"cluster": cluster, "task": named})
    assert isinstance(raised.value, UserError)


def test_entries_without_effect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    one = task({"environment": "google", "session_master": "grpc://s:1", "eval_session_master": ""})
    assert (one.session_master, one.eval_session_master) == ("grpc://s:1", "")
    assert caplog.messages == [
        "TF_CONFIG['environment'] is 'google', where tf.estimator started no servers; here nothing depends on it.",
        "TF_CONFIG['session_master'] is 'grpc://s:1', but nothing connects to it: there are no sessions.",
    ]
