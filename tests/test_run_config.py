"""RunConfig: defaults, checks, and what replace() does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_estimator as te
from tests.line_jobs import line_model_fn

PLACES = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def test_defaults_are_tf_estimators() -> None:
    config = te.RunConfig()
    assert (config.model_dir, config.random_seed, config.tf_random_seed) == (None, None, None)
    assert (config.save_summary_steps, config.log_step_count_steps) == (100, 100)
    assert (config.save_checkpoints_secs, config.save_checkpoints_steps) == (600, None)
    assert (config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours) == (5, 10_000)
    assert (config.resume_input, config.compile) == (True, "auto")
    assert (config.task_type, config.task_id, config.is_chief) == ("worker", 0, True)
    assert (config.num_worker_replicas, config.num_ps_replicas, config.global_id_in_cluster) == (1, 0, 0)
    assert (config.cluster_spec, config.service) == ({}, {})
    assert (config.master, config.evaluation_master, config.session_creation_timeout_secs) == ("", "", 7200)


@pytest.mark.parametrize(
    ("given", "steps", "secs"),
    [
        ({"save_checkpoints_steps": 10}, 10, None),
        ({"save_checkpoints_secs": 30}, None, 30),
        ({"save_checkpoints_steps": None}, None, None),
        ({"save_checkpoints_secs": None}, None, None),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": 5}, None, 5),
        ({"save_checkpoints_steps": 0}, 0, None),
    ],
)
def test_giving_one_of_the_two_ways_to_save_switches_the_other_off(
    given: dict[str, Any], steps: int | None, secs: int | None
) -> None:
    config = te.RunConfig(**given)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (steps, secs)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"save_checkpoints_steps": 1, "save_checkpoints_secs": 2},
            ValueError,
            "Give save_checkpoints_steps or save_checkpoints_secs, not both, but got save_checkpoints_steps=1 and "
            "save_checkpoints_secs=2.",
        ),
        ({"model_dir": ""}, ValueError, "model_dir must be a non-empty path or URL, but got ''."),
        ({"model_dir": 5}, TypeError, "model_dir must be a path or a URL, but got 5."),
        ({"save_summary_steps": -1}, ValueError, "save_summary_steps must not be negative, but got -1."),
        ({"save_checkpoints_steps": -1}, ValueError, "save_checkpoints_steps must not be negative, but got -1."),
        ({"save_checkpoints_secs": -0.5}, ValueError, "save_checkpoints_secs must not be negative, but got -0.5."),
        ({"keep_checkpoint_max": -1}, ValueError, "keep_checkpoint_max must not be negative, but got -1."),
        ({"keep_checkpoint_every_n_hours": 0}, ValueError, "keep_checkpoint_every_n_hours must be positive, but got 0"),
        ({"log_step_count_steps": 0}, ValueError, "log_step_count_steps must be positive, but got 0."),
        ({"log_step_count_steps": -5}, ValueError, "log_step_count_steps must be positive, but got -5."),
        ({"save_checkpoints_steps": 2.5}, ValueError, "save_checkpoints_steps must be a whole number or None, but got"),
        ({"save_summary_steps": "9"}, TypeError, "save_summary_steps must be a number or None, but got '9'."),
        ({"keep_checkpoint_max": True}, TypeError, "keep_checkpoint_max must be a number or None, but got True."),
        ({"random_seed": 1.5}, ValueError, "random_seed must be an integer, but got 1.5."),
        ({"tf_random_seed": "1"}, ValueError, "tf_random_seed must be an integer, but got '1'."),
        (
            {"random_seed": 1, "tf_random_seed": 2},
            ValueError,
            "random_seed and tf_random_seed are two names of one setting, but got random_seed=1 and tf_random_seed=2",
        ),
        ({"tf_random_seed": True}, ValueError, "tf_random_seed must be an integer, but got True."),
        (
            {"experimental_max_worker_delay_secs": "1"},
            ValueError,
            "experimental_max_worker_delay_secs must be an integer, but got '1'.",
        ),
        (
            {"experimental_max_worker_delay_secs": 1.5},
            ValueError,
            "experimental_max_worker_delay_secs must be an integer, but got 1.5.",
        ),
        (
            {"session_creation_timeout_secs": float("inf")},
            ValueError,
            "session_creation_timeout_secs must be at most 1000000000, but got inf; every wait has an end.",
        ),
        ({"session_creation_timeout_secs": 0}, ValueError, "session_creation_timeout_secs must be positive, but got 0"),
        ({"resume_input": None}, TypeError, "resume_input must be True or False, but got None."),
        ({"compile": "always"}, TypeError, "compile must be \"auto\", True or False, but got 'always'."),
    ],
)
def test_checks(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}") as raised:
        te.RunConfig(**given)
    assert isinstance(raised.value, te.UserError)


@pytest.mark.parametrize(
    "name", ["save_summary_steps", "keep_checkpoint_max", "keep_checkpoint_every_n_hours", "log_step_count_steps"]
)
def test_none_is_allowed(name: str) -> None:
    assert getattr(te.RunConfig(**{name: None}), name) is None


def test_whole_numbers_of_other_types_become_integers() -> None:
    config = te.RunConfig(save_checkpoints_steps=np.int64(5), keep_checkpoint_max=2.0)
    assert (config.save_checkpoints_steps, config.keep_checkpoint_max) == (5, 2)
    assert type(config.save_checkpoints_steps) is type(config.keep_checkpoint_max) is int


@pytest.mark.parametrize("name", ["random_seed", "tf_random_seed"])
def test_the_seed_has_two_names(name: str) -> None:
    config = te.RunConfig(**{name: 3})
    assert (config.random_seed, config.tf_random_seed) == (3, 3)
    assert config.replace(**{name: 4}).random_seed == 4
    assert config.replace(**{name: None}).tf_random_seed is None
    assert te.RunConfig(random_seed=3, tf_random_seed=3).random_seed == 3


def test_a_path_becomes_a_string() -> None:
    assert te.RunConfig(model_dir=Path("/tmp/job")).model_dir == "/tmp/job"


def test_it_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        te.RunConfig().compile = True  # type: ignore[misc]


def test_replace_leaves_the_original_alone() -> None:
    config = te.RunConfig(model_dir="a", save_checkpoints_steps=7, random_seed=1)
    changed = config.replace(model_dir="b", keep_checkpoint_max=None)
    assert (changed.model_dir, changed.keep_checkpoint_max) == ("b", None)
    assert (changed.save_checkpoints_steps, changed.save_checkpoints_secs, changed.random_seed) == (7, None, 1)
    assert (config.model_dir, config.keep_checkpoint_max) == ("a", 5)


def test_replacing_one_way_to_save_takes_the_other_back() -> None:
    by_steps = te.RunConfig().replace(save_checkpoints_steps=5)
    assert (by_steps.save_checkpoints_steps, by_steps.save_checkpoints_secs) == (5, None)
    by_secs = by_steps.replace(save_checkpoints_secs=9)
    assert (by_secs.save_checkpoints_steps, by_secs.save_checkpoints_secs) == (None, 9)
    unchanged = by_secs.replace(save_checkpoints_steps=None)
    assert (unchanged.save_checkpoints_steps, unchanged.save_checkpoints_secs) == (None, 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"session_config": 1}, "Replacing session_config is not supported; the settings of a RunConfig are compile, "),
        ({"_task": 1}, "Replacing _task is not supported"),
        ({"is_chief": False}, "Replacing is_chief is not supported"),
        (
            {"save_checkpoints_steps": 1, "save_checkpoints_secs": 1},
            "Give save_checkpoints_steps or save_checkpoints_s",
        ),
        ({"keep_checkpoint_max": -1}, "keep_checkpoint_max must not be negative, but got -1."),
        ({"model_dir": ""}, "model_dir must be a non-empty path or URL"),
    ],
)
def test_replace_checks(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        te.RunConfig().replace(**changes)


def test_tf_config_gives_model_dir_and_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"model_dir": "runs/a", "service": {"zone": "b"}}')
    config = te.RunConfig()
    assert (config.model_dir, config.service) == ("runs/a", {"zone": "b"})
    assert te.RunConfig(model_dir="runs/a").model_dir == "runs/a"
    with pytest.raises(ValueError, match=r"^model_dir is 'x' in RunConfig but 'runs/a' in TF_CONFIG; make them the"):
        te.RunConfig(model_dir="x")


def test_replace_does_not_read_tf_config_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"service": {"zone": "b"}}')
    config = te.RunConfig()
    monkeypatch.setenv("TF_CONFIG", "not JSON any more")
    assert config.replace(keep_checkpoint_max=1).service == {"zone": "b"}


@pytest.mark.parametrize(
    "name",
    ["session_config", "device_fn", "protocol", "experimental_distribute", "checkpoint_save_graph_def"],
)
def test_settings_of_tensorflow_are_named_where_they_do_not_exist(name: str) -> None:
    with pytest.raises(TypeError, match=f"^RunConfig has no setting {name}: .*; remove it.$"):
        te.RunConfig(**{name: None})


def test_a_cluster_shows_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    config = te.RunConfig("x")
    assert (config.task_type, config.task_id, config.is_chief) == ("worker", 1, False)
    assert (config.num_worker_replicas, config.num_ps_replicas, config.global_id_in_cluster) == (3, 1, 2)
    assert config.cluster_spec == cluster
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}}))
    config = te.RunConfig("x")
    assert (config.cluster_spec, config.num_worker_replicas, config.num_ps_replicas) == ({}, 0, 0)
    assert (config.is_chief, config.global_id_in_cluster) == (False, None)


@pytest.mark.parametrize(
    ("config", "master", "evaluation_master"),
    [
        ({}, "", ""),
        ({"session_master": "s", "eval_session_master": "e"}, "s", "e"),
        ({"cluster": PLACES, "task": {"type": "chief", "index": 0}}, "grpc://a:1", ""),
        ({"cluster": PLACES, "task": {"type": "worker", "index": 1}, "eval_session_master": "e"}, "grpc://c:1", ""),
        ({"cluster": PLACES, "task": {"type": "ps", "index": 0}, "session_master": "s"}, "s", ""),
        (
            {"cluster": PLACES, "task": {"type": "evaluator", "index": 0}, "session_master": "s"},
            "",
            "",
        ),
        (
            {"cluster": PLACES, "task": {"type": "evaluator", "index": 0}, "eval_session_master": "e"},
            "",
            "e",
        ),
        ({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}, "", ""),
    ],
)
def test_masters_are_tf_estimators(
    config: dict[str, Any], master: str, evaluation_master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    one = te.RunConfig("x")
    assert (one.master, one.evaluation_master) == (master, evaluation_master)
    copy = one.replace(keep_checkpoint_max=1)
    assert (copy.master, copy.evaluation_master) == (master, evaluation_master)


def test_ranks_have_no_masters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    config = te.RunConfig("x")
    assert (config.task_type, config.master, config.evaluation_master) == ("worker", "", "")


def test_the_cluster_has_the_methods_of_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": PLACES, "task": {"type": "worker", "index": 1}}))
    spec = te.RunConfig("x").cluster_spec
    assert spec.as_dict() == PLACES and type(spec.as_dict()) is dict
    assert (spec.jobs, spec.num_tasks("worker")) == (["chief", "worker", "ps"], 2)
    assert (spec.job_tasks("worker"), spec.task_address("worker", 1)) == (["b:1", "c:1"], "c:1")
    assert te.RunConfig("x").replace(model_dir="y").cluster_spec == spec
    monkeypatch.delenv("TF_CONFIG")
    assert te.RunConfig("x").cluster_spec.as_dict() == {}


D = te.distribute
NO_PS = r"train_distribute is a ParameterServerStrategy, but TF_CONFIG names no parameter servers; add 'ps' to the clus"
WITH_PS = (
    r"train_distribute is a \w+Strategy, but TF_CONFIG names 1 parameter servers, which it does not use; leave 'ps'"
)
NO_CHIEF = (
    r"TF_CONFIG\['cluster'\] must name one 'chief', but names only worker, ps; make the first worker the chief\.$"
)
MACHINE = (
    r"train_distribute is a MirroredStrategy, which is for the devices of one machine, but TF_CONFIG names a cluster"
)


@pytest.mark.parametrize("of_evaluator", [False, True])
@pytest.mark.parametrize(
    ("cluster", "strategy", "message"),
    [
        ({"chief": ["a:1"], "worker": ["b:1"]}, D.ParameterServerStrategy(pipeline=True), NO_PS),
        ({"worker": ["b:1", "c:1"]}, D.ParameterServerStrategy(), NO_PS),
        ({"worker": ["b:1", "c:1"], "ps": ["d:1"]}, D.ParameterServerStrategy(), NO_CHIEF),
        ({"worker": ["b:1", "c:1"], "ps": ["d:1"]}, None, NO_CHIEF),
        ({"chief": ["a:1"], "ps": ["d:1"]}, D.MultiWorkerMirroredStrategy(), WITH_PS),
        ({"chief": ["a:1"], "ps": ["d:1"]}, D.FullyShardedStrategy(), WITH_PS),
        ({"chief": ["a:1"], "worker": ["b:1"]}, D.MirroredStrategy(replicas=2), MACHINE),
    ],
)
def test_a_strategy_must_fit_the_cluster(
    cluster: dict[str, Any], strategy: Any, message: str, of_evaluator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "evaluator" if of_evaluator else next(iter(cluster))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": place, "index": 0}}))
    with pytest.raises(ValueError, match=f"^{message}") as raised:
        te.RunConfig("x", train_distribute=strategy)
    assert isinstance(raised.value, te.UserError)


@pytest.mark.parametrize("environ", [{}, {"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}])
def test_a_program_for_parameter_servers_runs_alone(environ: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(environ))
    assert te.RunConfig("x", train_distribute=D.ParameterServerStrategy()).num_ps_replicas == 0


def test_waiting_for_none_is_the_default() -> None:
    assert te.RunConfig(session_creation_timeout_secs=None).session_creation_timeout_secs == 7200
    assert te.RunConfig().replace(session_creation_timeout_secs=None).session_creation_timeout_secs == 7200


def test_workers_alone_need_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"worker": ["b:1", "c:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(ValueError, match=r"TF_CONFIG\['cluster'\] must name one 'chief', but names only worker; make"):
        te.RunConfig("x")
    assert te.RunConfig("x", train_distribute=te.distribute.MultiWorkerMirroredStrategy()).is_chief
    with pytest.raises(TypeError, match=r"^train_distribute must be a "):
        te.RunConfig("x", train_distribute="mirrored")
    with pytest.raises(ValueError, match="communication must be one of AUTO, RING, NCCL, but got 'FAST'"):
        te.distribute.MultiWorkerMirroredStrategy("FAST")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="elastic must be True or False, but got 'yes'"):
        te.distribute.MultiWorkerMirroredStrategy(elastic="yes")  # type: ignore[arg-type]


def test_units_are_types() -> None:
    with pytest.raises(TypeError, match=r"^units must be a list of types of modules, but got \['Block'\]\."):
        te.distribute.FullyShardedStrategy(["Block"])  # type: ignore[list-item]


def test_a_cluster_needs_a_model_dir_that_all_can_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}')
    with pytest.raises(ValueError, match="TF_CONFIG names a cluster, whose processes need one model_dir that all of t"):
        te.Estimator(line_model_fn)


def test_a_seed_must_fit_into_64_bits() -> None:
    with pytest.raises(ValueError, match="random_seed must fit into 64 bits"):
        te.RunConfig(random_seed=2**70)


def test_a_model_dir_may_be_given_by_position() -> None:
    assert te.RunConfig("runs/x").model_dir == "runs/x"


@pytest.mark.parametrize("name", ["save_checkpoints_secs", "keep_checkpoint_every_n_hours"])
def test_times_must_be_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must .*, but got nan"):
        te.RunConfig(**{name: float("nan")})


def test_the_environment_settles_what_auto_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, compile in (("true", True), ("false", False), ("", "auto")):
        monkeypatch.setenv("TORCH_ESTIMATOR_COMPILE", text)
        assert te.RunConfig().compile == compile
        assert te.RunConfig(compile=False).compile is False
