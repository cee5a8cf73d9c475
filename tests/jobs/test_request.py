"""What a user asks for: options, gcloud's YAML, tiers and machine types, and mistakes in each."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from tests.jobs.conftest import Jobs
from torch_estimator.jobs.directory import JobDirectory
from torch_estimator.jobs.package import copy_package

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
interpreter = "/bin/sh"
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
    assert (spec["interpreter"], spec["settings"]) == ("/bin/sh", {"kind": "local"})


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


def test_options_of_gcloud_that_mean_nothing_here_are_named(jobs: Jobs) -> None:
    jobs.program("")
    given = ("--use-chief-in-tf-config", "true", "--no-enable-web-access", "-q", "--no-user-output-enabled")
    more = ("--log-http", "--configuration=x", "--flatten", "y", "--billing-project", "z", "--format", "yaml")
    status, out, err = jobs.run(*SUBMIT, "--dry-run", *given, *more, "--scale-tier", "SCALE_TIER_UNSPECIFIED")
    assert status == 0
    assert "tier: BASIC\n" in out
    assert set(err.removesuffix(" do nothing here.\n").split(", ")) == {
        *("--use-chief-in-tf-config", "--enable-web-access", "--quiet", "--user-output-enabled", "--log-http"),
        *("--configuration", "--flatten", "--billing-project"),
    }
    assert jobs.run(*SUBMIT, "--use-chief-in-tf-config=true", "--dry-run")[0] == 0
    assert "x.yaml is not read here; give its options" in jobs.run(*SUBMIT, "--flags-file", "x.yaml")[2]
    status, _, err = jobs.run(*SUBMIT, "--format", "value(state)")
    assert status == 2
    assert "must be text, yaml or json, but got 'value(state)'; take what you need from json" in err


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
        (["--on", "moon"], "there is no target 'moon'; there are local, slurm, ray, kubernetes (estimator.toml can "
         "define others)."),
        (["--scale-tier", "BASIC", "--worker-count", "1"], "numbers of workers, parameter servers and evaluators go "
         "with --scale-tier CUSTOM only, but the tier is BASIC."),
        (["--worker-count", "-1"], "the number of workers must be 0 or more, but got -1."),
        (["--evaluator-count", "2"], "the number of evaluators must be 0 or 1, but got 2."),
        (["--labels", "team"], "--labels must be KEY=VALUE,…, but got 'team'."),
        (["--package-path", "nowhere"], "--package-path nowhere does not exist; name the folder that trainer.task "
         "is in."),
        (["--scale-tier", "BASIC_TPU"], "scale tier BASIC_TPU asks for TPUs, which no target has; choose BASIC_GPU, "
         "say."),
        (["--config", "none.yaml"], "none.yaml cannot be read: No such file or directory."),
        (["--jobs", "memory://x"], "--jobs memory://x is in the memory of this process; name a folder or a "
         "store's URL."),
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
        (
            "trainingInput:\n  scaleTier: BASIC\n  workerCount: 3\n",
            "line 3: workerCount: numbers of workers, parameter servers and evaluators go with --scale-tier CUSTOM",
        ),
        ("trainingInput:\n  scaleTier: HUGE\n", "line 2: scaleTier: there is no scale tier 'HUGE'; "),
        (
            "trainingInput:\n  evaluatorCount: 2\n",
            "line 2: evaluatorCount: the number of evaluators must be 0 or 1, but got 2.",
        ),
        ("trainingInput:\n  masterType: n9\n", "line 2: masterType: there is no machine type 'n9'; "),
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


def test_the_place_in_the_configuration_is_not_that_of_an_option(jobs: Jobs) -> None:
    (jobs.folder / "job.yaml").write_text("trainingInput:\n  scaleTier: BASIC\n  workerCount: 3\n")
    said = refused(jobs, "--config", "job.yaml", "--worker-count", "2")
    assert said.startswith("job.yaml, line 2: scaleTier: numbers of workers")
    assert refused(jobs, "--config", "job.yaml", "--worker-count", "2", "--scale-tier", "BASIC").startswith(
        "numbers of"
    )
    (jobs.folder / "job.yaml").write_text("trainingInput:\n  masterType: n1\n")
    said = refused(jobs, "--config", "job.yaml", "--master-machine-type", "n2")
    assert said.startswith("there is no machine type 'n2'; ")


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
        ("[targets.x]\n", "targets.x: it has no 'kind'."),
        ("[machines.m]\ncpus = -2", "machines.m: 'cpus' must be 0 or more, but got -2."),
        (
            "[machines.m]\nmemory = 'lots'",
            "machines.m: the memory of a machine type must be such as 14Gi, but got 'lots'.",
        ),
        ("[jobs]\n", "has an unknown section 'jobs'; "),
        ("secret_arguments = 'x'", "secret_arguments must be a list of names such as --token, but got 'x'."),
        ("[tiers", "is not TOML: "),
    ],
)
def test_a_mistake_in_the_table_is_one_sentence(jobs: Jobs, text: str, message: str) -> None:
    (jobs.folder / "estimator.toml").write_text(text)
    said = refused(jobs)
    assert said.removeprefix("estimator.toml").lstrip(": ").startswith(message)


def test_a_target_without_an_interpreter_is_refused(jobs: Jobs) -> None:
    (jobs.folder / "estimator.toml").write_text("[targets.x]\nkind = 'local'\ninterpreter = '/opt/none/python'")
    said = refused(jobs, "--on", "x")
    assert said == "the interpreter of target x, /opt/none/python, cannot be run; mend estimator.toml."


def test_what_cannot_be_copied_is_named_and_nothing_is_left(jobs: Jobs) -> None:
    jobs.program("")
    odd = jobs.folder / "trainer" / "odd"
    os.mkfifo(odd)
    said = f"{odd} of the package is no file, but a pipe, a socket or a device; remove it."
    assert jobs.run(*SUBMIT) == (2, "", f"estimator: error: {said}\n")
    odd.unlink()
    odd.symlink_to("nowhere")
    said = f"{odd} of the package cannot be read: No such file or directory; mend it, or name it in .gitignore."
    assert jobs.run(*SUBMIT) == (2, "", f"estimator: error: {said}\n")
    odd.unlink()
    odd.write_bytes(bytes(20_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # As on a full disk, a write fails.
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        status, _, err = jobs.run(*SUBMIT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (status, err) == (
        2, f"estimator: error: {jobs.folder}/jobs/job cannot be made: File too large; give another --jobs.\n"
    )  # fmt: skip
    assert not os.listdir(jobs.folder / "jobs")


def test_a_command_that_is_ended_leaves_no_job(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.program("")

    def copy(package: Path, job: JobDirectory) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return copy_package(package, job)

    with monkeypatch.context() as patched:
        patched.setattr("torch_estimator.jobs.submission.copy_package", copy)
        assert jobs.run(*SUBMIT)[0] == 143
    assert not os.listdir(jobs.folder / "jobs")
    # A directory without job.json is no job.
    for name in ("odd", "other"):
        (jobs.folder / "jobs" / name).mkdir()
    assert "there is no job odd in " in jobs.run("describe", "odd")[2]
    assert "but none at all; " in jobs.run("describe", "odd")[2]
    jobs.submit("job")
    assert jobs.wait("job") == "SUCCEEDED"
    assert "but job; " in jobs.run("describe", "odd")[2]
    for name in ("odd", "other"):
        (jobs.folder / "jobs" / name).rmdir()
    assert os.listdir(jobs.folder / "jobs") == ["job"]
