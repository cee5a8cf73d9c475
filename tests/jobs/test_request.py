"""What a user asks for: options, gcloud's YAML, tiers and machine types, and mistakes in each."""

from __future__ import annotations

import pytest

from tests.jobs.conftest import Jobs

SUBMIT = ("submit", "training", "job", "--module-name", "trainer.task")

YAML = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: large
  workerType: small
  workerCount: 3
  parameterServerCount: "2"
  workerConfig:
    acceleratorConfig: {count: 1, type: NVIDIA_TESLA_K80}
  args:
  - --steps
  - 5
  - 'a: b'
  jobDir: gs://bucket/out
  pythonModule: trainer.task
  region: us-central1
  runtimeVersion: '1.15'
labels: {team: ads}
"""

VERTEX = """\
displayName: census
trialJobSpec:
  workerPoolSpecs:
  - machineSpec: {machineType: n1-standard-4, acceleratorType: NVIDIA_TESLA_T4, acceleratorCount: 1}
    replicaCount: 1
    pythonPackageSpec:
      executorImageUri: image
      packageUris: [gs://bucket/trainer.tar.gz]
      pythonModule: trainer.task
      args: [--steps, 5]
  - {}
  - replicaCount: "2"
    pythonPackageSpec: {pythonModule: trainer.server}
  scheduling: {timeout: 7200s}
  baseOutputDirectory: {outputUriPrefix: gs://bucket/out}
"""

MACHINES = """
[machines.large]
cpus = 8
memory = "30Gi"
[machines.small]
cpus = 2
[targets.cluster]
kind = "local"
interpreter = "/opt/python"
"""


def asked(jobs: Jobs, *arguments: str) -> dict[str, object]:
    jobs.program("")
    import json

    status, out, err = jobs.run(*SUBMIT, "--dry-run", "--format", "json", *arguments)
    assert status == 0, err
    return dict(json.loads(out)["trainingInput"])


def refused(jobs: Jobs, *arguments: str) -> str:
    jobs.program("")
    status, _, err = jobs.run(*SUBMIT, *arguments)
    assert status == 2
    assert not (jobs.folder / "jobs").exists()
    return err.removeprefix("estimator: error: ").removesuffix("\n")


def test_gclouds_configuration_is_read_as_it_is(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_estimator.jobs.targets.gpus_here", lambda: ["0", "1", "2"])
    (jobs.folder / "job.yaml").write_text(YAML)
    (jobs.folder / "estimator.toml").write_text(MACHINES)
    spec = asked(jobs, "--config", "job.yaml", "--on", "cluster")
    assert spec["arguments"] == ["--steps", "5", "a: b"]
    assert (spec["worker_count"], spec["parameter_server_count"], spec["evaluator"]) == (3, 2, True)
    assert spec["machines"] == {
        "chief": {"cpus": 8, "memory": "30Gi", "gpus": 0},
        "worker": {"cpus": 2, "memory": "", "gpus": 1},
    }
    assert (spec["job_dir"], spec["labels"]) == ("gs://bucket/out", {"team": "ads"})
    assert (spec["interpreter"], spec["settings"]) == ("/opt/python", {"kind": "local"})


def test_vertex_ais_pools_become_the_roles_of_a_job(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_estimator.jobs.targets.gpus_here", lambda: ["0"])
    (jobs.folder / "job.yaml").write_text(VERTEX)
    spec = asked(jobs, "--config", "job.yaml")
    assert (spec["module_name"], spec["arguments"]) == ("trainer.task", ["--steps", "5"])
    assert (spec["worker_count"], spec["parameter_server_count"], spec["evaluator"]) == (0, 2, True)
    assert spec["machines"] == {"chief": {"cpus": 0, "memory": "", "gpus": 1}}
    assert (spec["job_dir"], spec["max_running_secs"], spec["study"]) == ("gs://bucket/out", 7200.0, None)
    assert jobs.run(*SUBMIT, "--dry-run", "--config", "job.yaml")[2] == (
        "machineType, acceleratorType, executorImageUri, packageUris do nothing here.\n"
    )


def test_options_win_over_the_configuration(jobs: Jobs) -> None:
    (jobs.folder / "job.yaml").write_text(YAML.replace("  masterType: large\n  workerType: small\n", ""))
    given = ("--worker-count", "1", "--worker-accelerator", "type=a100,count=0", "--labels", "team=search,run=2")
    spec = asked(jobs, "--config", "job.yaml", *given, "--", "--steps", "7")
    assert (spec["worker_count"], spec["parameter_server_count"]) == (1, 2)
    assert spec["arguments"] == ["--steps", "7"]
    assert spec["labels"] == {"team": "search", "run": "2"}


@pytest.mark.parametrize("name", ["STANDARD_1", "standard-1", "SCALE_TIER_STANDARD_1", "standard_1"])
def test_a_tier_has_several_spellings(jobs: Jobs, name: str) -> None:
    spec = asked(jobs, "--scale-tier", name)
    assert (spec["tier"], spec["worker_count"], spec["parameter_server_count"]) == ("STANDARD_1", 4, 3)


def test_numbers_of_roles_ask_for_a_custom_tier(jobs: Jobs) -> None:
    spec = asked(jobs, "--worker-count", "2", "--evaluator-count", "0")
    assert (spec["tier"], spec["worker_count"], spec["evaluator"]) == ("CUSTOM", 2, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scale-tier", "HUGE"], "there is no scale tier 'HUGE'; there are BASIC, STANDARD_1, PREMIUM_1, BASIC_GPU, "
         "CUSTOM (estimator.toml can define others)."),
        (["--worker-machine-type", "n9"], "there is no machine type 'n9'; there are gpu (estimator.toml can "
         "define others)."),
        (["--on", "moon"], "there is no target 'moon'; there are local, slurm, ray (estimator.toml can define "
         "others)."),
        (["--scale-tier", "BASIC", "--worker-count", "1"], "numbers of workers, parameter servers and evaluators go "
         "with --scale-tier CUSTOM only, but the tier is BASIC."),
        (["--worker-count", "-1"], "the number of workers must be 0 or more, but got -1."),
        (["--evaluator-count", "2"], "the number of evaluators must be 0 or 1, but got 2."),
        (["--labels", "team"], "--labels must be KEY=VALUE,…, but got 'team'."),
        (["--package-path", "nowhere"], "--package-path nowhere does not exist; name the folder that trainer.task "
         "is in."),
        (["--config", "none.yaml"], "none.yaml cannot be read: No such file or directory."),
        (["--scale-tier", "basic-gpu"], "the job asks for 1 GPUs, and this machine has 0; choose other machine "
         "types, or another tier."),
    ],
)  # fmt: skip
def test_a_mistake_on_the_command_line_is_one_sentence(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("torch_estimator.jobs.targets.gpus_here", list)
    assert refused(jobs, *arguments) == message


def test_a_module_must_be_in_the_package(jobs: Jobs) -> None:
    jobs.program("")
    status, _, err = jobs.run("submit", "training", "job", "--module-name", "trainer.other")
    assert status == 2
    assert "there is no module trainer.other in " in err
    status, _, err = jobs.run("submit", "training", "job", "--module-name", "elsewhere.task")
    assert status == 2
    assert "there is no module elsewhere.task in " in err
    assert jobs.run("submit", "training", "job")[2] == (
        "estimator: error: no program is given; name its module with --module-name, such as trainer.task.\n"
    )


@pytest.mark.parametrize("name", ["1st", "a b", "../x", "", "a" * 129, "ä"])
def test_a_name_that_is_not_allowed_is_refused(jobs: Jobs, name: str) -> None:
    jobs.program("")
    status, _, err = jobs.run("submit", "training", name, "--module-name", "trainer.task")
    assert status == 2
    assert err.startswith("estimator: error: the name of a job must be a letter and then letters, digits, _ or -")
    assert not (jobs.folder / "jobs").exists()


def test_a_name_is_taken_once(jobs: Jobs) -> None:
    jobs.program("")
    jobs.submit("job")
    assert jobs.wait("job") == "SUCCEEDED"
    status, _, err = jobs.run(*SUBMIT)
    assert (status, err) == (
        2, f"estimator: error: there is a job job in {jobs.folder}/jobs already; choose another name.\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "trainingInput:\n  scaleTier: CUSTOM\n  wokerCount: 3\n",
            "line 3: unknown key 'wokerCount' in trainingInput; ",
        ),
        ("trainingInput:\n  workerCount: many\n", "line 2: workerCount must be a whole number, but got 'many'."),
        ("trainingInput:\n  workerCount: 1\n  workerCount: 2\n", "line 3: 'workerCount' is there twice."),
        ("trainingInput:\n  workerCount: true\n", "line 2: workerCount must be a whole number, but got True."),
        ("trainingInput: [1]\n", "line 1: trainingInput must have keys, such as scaleTier."),
        (
            "trainingOutput: {}\n",
            "line 1: unknown key 'trainingOutput'; there are trainingInput, labels, trialJobSpec, studySpec, "
            "maxTrialCount, parallelTrialCount and maxFailedTrialCount.",
        ),
        ("trainingInput:\n  hyperparameters: {}\n", "line 2: hyperparameters needs params."),
        ("trainingInput:\n  scheduling: {maxRunningTime: 2h}\n", "line 2: maxRunningTime must be a number of seconds"),
        ("trainingInput:\n  masterConfig: {acceleratorConfig: {size: 1}}\n", "line 2: unknown key 'size'"),
        ("trainingInput:\n  - x\n - y\n", "line 3 is not YAML: "),
        ("labels: !!timestamp 2001-13-01\n", "line 1: labels cannot be read: "),
        ("trialJobSpec: {workerPoolSpecs: [{replicaCount: 2}]}", "line 1: replicaCount of the first pool, which has "),
        ("trialJobSpec:\n  workerPoolSpecs:\n  - {module: a}\n", "line 3: unknown key 'module' in workerPoolSpecs; "),
        (
            "trialJobSpec:\n  workerPoolSpecs: [{}, {}, {}, {},\n  {}]\n",
            "line 3: workerPoolSpecs has at most 4 pools, for chief, worker, ps, evaluator.",
        ),
    ],
)
def test_a_mistake_in_the_configuration_is_named_with_its_line(jobs: Jobs, text: str, message: str) -> None:
    (jobs.folder / "job.yaml").write_text(text)
    assert refused(jobs, "--config", "job.yaml").startswith(f"job.yaml, {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiers = 3", "tiers must hold tables, such as [tiers.NAME]."),
        ("[tiers.S]\nworkers = 2", "tiers.S has an unknown key 'workers'; there are worker_count, "),
        ("[tiers.S]\nworker_count = 'two'", "tiers.S: 'worker_count': expected int, but got"),
        ("[targets.x]\nkind = 'moon'", "'kind' of targets.x must be one of local"),
        (
            "[targets.x]\nkind = 'local'\npartition = 'p'",
            "targets.x has an unknown key 'partition'; a target of kind local ",
        ),
        ("[targets.x]\n", "targets.x: "),
        ("[jobs]\n", "has an unknown section 'jobs'; "),
        ("secret_arguments = 'x'", "secret_arguments must be a list of names such as --token, but got 'x'."),
        ("[tiers", "is not TOML: "),
    ],
)
def test_a_mistake_in_the_table_is_one_sentence(jobs: Jobs, text: str, message: str) -> None:
    (jobs.folder / "estimator.toml").write_text(text)
    said = refused(jobs)
    assert said.removeprefix("estimator.toml").lstrip(": ").startswith(message)
