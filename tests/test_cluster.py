"""TF_CONFIG on one machine."""

from __future__ import annotations

import pytest

from torch_estimator.cluster import Task, task_from_environment
from torch_estimator.errors import UserError


def test_without_tf_config_this_process_is_the_only_one() -> None:
    assert task_from_environment({}) == Task(type="worker", id=0, model_dir=None, service={})


@pytest.mark.parametrize(
    "config",
    [
        "{}",
        '{"task": {}}',
        '{"cluster": {}}',
        '{"task": {"type": "worker", "index": 0}}',
        '{"task": {"type": "worker", "index": "0"}, "environment": "cloud"}',
    ],
)
def test_a_worker_without_a_cluster_is_the_only_process(config: str) -> None:
    assert task_from_environment({"TF_CONFIG": config}) == Task()


def test_model_dir_and_service_are_taken_over() -> None:
    task = task_from_environment({"TF_CONFIG": '{"model_dir": "gs://b/job", "service": {"a": [1]}}'})
    assert (task.model_dir, task.service) == ("gs://b/job", {"a": [1]})


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ("", ValueError, r"TF_CONFIG is not JSON \(.*\): ''"),
        ("{task: 1}", ValueError, r"TF_CONFIG is not JSON \(.*\): '\{task: 1\}'"),
        ("[]", TypeError, r"TF_CONFIG must be a JSON object, but got '\[\]'"),
        ('{"cluster": {"chief": ["a:1"]}}', ValueError, "TF_CONFIG names a cluster, but this version .* one machine"),
        ('{"task": "worker"}', TypeError, r"TF_CONFIG\['task'\] must be a JSON object, but got 'worker'"),
        ('{"task": null}', TypeError, r"TF_CONFIG\['task'\] must be a JSON object, but got None"),
        (
            '{"task": {"type": "evaluator"}}',
            ValueError,
            r"TF_CONFIG\['task'\]\['type'\] must be 'worker' .*'evaluator'",
        ),
        ('{"task": {"index": 1}}', ValueError, r"TF_CONFIG\['task'\]\['index'\] must be 0 .*, but got 1"),
        ('{"task": {"index": "first"}}', ValueError, r"TF_CONFIG\['task'\]\['index'\] must be an integer, .*'first'"),
        ('{"task": {"index": null}}', ValueError, r"TF_CONFIG\['task'\]\['index'\] must be an integer, but got None"),
        ('{"service": []}', TypeError, r"TF_CONFIG\['service'\] must be a JSON object, but got \[\]"),
        ('{"model_dir": ""}', ValueError, r"TF_CONFIG\['model_dir'\] must be a non-empty string, but got ''"),
        ('{"model_dir": 1}', ValueError, r"TF_CONFIG\['model_dir'\] must be a non-empty string, but got 1"),
    ],
)
def test_checks(config: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}") as raised:
        task_from_environment({"TF_CONFIG": config})
    assert isinstance(raised.value, UserError)
