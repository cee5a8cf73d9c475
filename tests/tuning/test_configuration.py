"""Studies in YAML: gcloud's hyperparameters, Vertex AI's studySpec, and mistakes in each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.jobs.conftest import Jobs
from tests.tuning.studies import make_study, make_trial
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.request import request_of_file
from torch_estimator.runs.state_file import from_json
from torch_estimator.tuning.configuration import study_of
from torch_estimator.tuning.space import Categorical, Child, Discrete, Double, Integer, Space
from torch_estimator.tuning.study import Study

GCLOUD = """\
trainingInput:
  scaleTier: BASIC
  hyperparameters:
    goal: MINIMIZE
    hyperparameterMetricTag: eval/loss
    maxTrials: 12
    maxParallelTrials: "3"
    maxFailedTrials: 2
    enableTrialEarlyStopping: TRUE
    resumePreviousJobId: first
    algorithm: RANDOM_SEARCH
    params:
    - parameterName: learning-rate
      type: DOUBLE
      minValue: 1e-5
      maxValue: 0.10
      scaleType: UNIT_LOG_SCALE
    - parameterName: keep
      type: DOUBLE
      minValue: 0.5
      maxValue: 1
      scaleType: UNIT_REVERSE_LOG_SCALE
    - parameterName: layers
      type: integer
      minValue: 1
      maxValue: 4.0
      scaleType: NONE
    - parameterName: units
      type: CATEGORICAL
      categoricalValues: ["64 32", 128, yes, 2001-01-01]
    - parameterName: batch
      type: DISCRETE
      discreteValues: [64, 1.50, 0x]
"""

VERTEX = """\
displayName: search
maxTrialCount: 20
parallelTrialCount: 2
maxFailedTrialCount: 0
studySpec:
  metrics:
  - metricId: auc
    goal: MAXIMIZE
  medianAutomatedStoppingSpec: {useElapsedDuration: true}
  measurementSelectionType: BEST_MEASUREMENT
  observationNoise: LOW
  algorithm: ALGORITHM_UNSPECIFIED
  parameters:
  - parameterId: optimizer
    categoricalValueSpec: {values: [Adam, SGD, Ftrl]}
    conditionalParameterSpecs:
    - parentCategoricalValues: {values: [SGD, Ftrl]}
      parameterSpec:
        parameterId: nesterov
        discreteValueSpec: {values: [0.0, 1.50]}
        conditionalParameterSpecs:
        - parentDiscreteValues: {values: [1.5]}
          parameterSpec:
            parameterId: decay
            doubleValueSpec: {minValue: 0.1, maxValue: 0.9, defaultValue: 0.5}
  - parameterId: layers
    integerValueSpec: {minValue: "1", maxValue: "3"}
    scaleType: UNIT_LINEAR_SCALE
    conditionalParameterSpecs:
    - parentIntValues: {values: [3]}
      parameterSpec:
        parameterId: last
        integerValueSpec: {minValue: 8, maxValue: 64}
        scaleType: UNIT_LOG_SCALE
trialJobSpec:
  workerPoolSpecs:
  - pythonPackageSpec: {pythonModule: trainer.task}
  - {}
  - replicaCount: "2"
"""


def read(folder: Path, text: str) -> tuple[Study, list[str]]:
    (folder / "hp.yaml").write_text(text)
    asked = request_of_file(str(folder / "hp.yaml")).study
    assert asked is not None
    return study_of(asked)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(InvalidValueError) as caught:
        read(folder, text)
    return str(caught.value).removeprefix(f"{folder}/hp.yaml, ")


def test_gclouds_form_is_read_with_all_types_and_scales(tmp_path: Path) -> None:
    study, useless = read(tmp_path, GCLOUD.replace("0x", "1e2"))
    assert study == Study(
        goal="MINIMIZE",
        metric="eval/loss",
        max_trials=12,
        parallel=3,
        max_failed=2,
        early_stopping=True,
        resume_previous="first",
        algorithm="RANDOM",
        space=Space(
            (
                Double("learning-rate", 1e-5, 0.1, scale="LOG"),
                Double("keep", 0.5, 1, scale="REVERSE_LOG"),
                Integer("layers", 1, 4),
                Categorical("units", ("64 32", "128", "yes", "2001-01-01")),
                Discrete("batch", ("1.50", "64", "1e2")),
            )
        ),
    )
    assert useless == []
    assert from_json(Study, json.loads(json.dumps(dataclasses.asdict(study)))) == study


def test_what_gcloud_leaves_open_has_its_defaults(tmp_path: Path) -> None:
    text = """\
trainingInput:
  hyperparameters:
    resumePreviousJobId: null
    params:
    - {parameterName: size, type: INTEGER, minValue: 8, maxValue: 8}
    - {parameterName: kind, type: CATEGORICAL, categoricalValues: [a], scaleType: UNIT_LOG_SCALE}
"""
    study, useless = read(tmp_path, text)
    assert study == Study(space=Space((Integer("size", 8, 8), Categorical("kind", ("a",)))))
    assert (study.goal, study.metric, study.max_trials, study.parallel, study.algorithm) == (
        "MAXIMIZE", "training/hptuning/metric", 1, 1, None
    )  # fmt: skip
    assert study.max_failed == 0
    assert useless == ["scaleType of kind"]


def test_vertex_ais_form_is_read_with_conditional_parameters(tmp_path: Path) -> None:
    study, useless = read(tmp_path, VERTEX)
    decay = Child(Double("decay", 0.1, 0.9), ("1.50",))
    nesterov = Child(Discrete("nesterov", ("0.0", "1.50"), children=(decay,)), ("SGD", "Ftrl"))
    last = Child(Integer("last", 8, 64, scale="LOG"), ("3",))
    assert study == Study(
        metric="auc",
        max_trials=20,
        parallel=2,
        early_stopping=True,
        measurement="BEST",
        space=Space(
            (
                Categorical("optimizer", ("Adam", "SGD", "Ftrl"), children=(nesterov,)),
                Integer("layers", 1, 3, children=(last,)),
            )
        ),
    )
    assert useless == ["defaultValue", "observationNoise", "useElapsedDuration"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("maxTrials: 12", "maxTrails: 12", "line 6: unknown key 'maxTrails' in hyperparameters; there are params, "
         "goal, hyperparameterMetricTag, "),
        ("maxTrials: 12", "maxTrials: many", "line 6: maxTrials must be a whole number, but got 'many'."),
        ("maxTrials: 12", "maxTrials: 0", "line 6: maxTrials: the number of trials must be at least 1, but got 0."),
        ("maxFailedTrials: 2", "maxFailedTrials: -1", "line 8: maxFailedTrials: the number of failed trials must be at "
         "least 0, but got -1."),
        ("Stopping: TRUE", "Stopping: 1", "line 9: enableTrialEarlyStopping must be true or false, but got 1."),
        ("goal: MINIMIZE", "goal: LESS", "line 4: goal must be one of MAXIMIZE, MINIMIZE, GOAL_TYPE_UNSPECIFIED, but "
         "got 'LESS'."),
        ("RANDOM_SEARCH", "POPULATION_BASED_TRAINING", "line 11: POPULATION_BASED_TRAINING, which changes parameters "
         "of a trial while it trains, is not there; leave algorithm out, or take RANDOM_SEARCH."),
        ("RANDOM_SEARCH", "GRID_SEARCH", "line 11: algorithm: parameter 'learning-rate' is a DOUBLE, which has no "
         "grid; make it a DISCRETE, or choose another algorithm."),
        ("minValue: 1e-5", "minValue: 0.2", "line 13: params: parameter 'learning-rate' has no values from 0.2 "
         "to 0.1; give a minimum, and a maximum above it."),
        ("minValue: 1e-5", "minValue: 0", "line 13: params: parameter 'learning-rate' has a logarithmic scale, which "
         "needs a minimum above 0, but got 0.0."),
        ("minValue: 1e-5", "minValue: low", "line 15: minValue of parameter 'learning-rate' must be a number, but got "
         "'low'."),
        ("minValue: 1e-5", "minValue: .inf", "line 15: minValue of parameter 'learning-rate' must be a number, but got "
         "'.inf'."),
        ("maxValue: 4.0", "maxValue: 4.5", "line 26: maxValue of parameter 'layers' must be a whole number, but got "
         "'4.5'."),
        ("      maxValue: 4.0\n", "", "line 23: parameter 'layers' needs maxValue."),
        ("      type: integer\n", "", "line 23: parameter 'layers' needs type."),
        ("type: integer", "type: TEXT", "line 24: type must be one of DOUBLE, INTEGER, CATEGORICAL, DISCRETE, but got "
         "'TEXT'."),
        ("type: integer", "type: CATEGORICAL", "line 25: minValue does not go with type CATEGORICAL of parameter "
         "'layers'."),
        ("scaleType: NONE", "scaleType: LOG", "line 27: scaleType must be one of NONE, SCALE_TYPE_UNSPECIFIED, "),
        ("yes,", '"128",', "line 28: params: parameter 'units' has the value 128 twice."),
        ("categoricalValues: [", "categoricalValues: [[a], ", "line 30: categoricalValues must be a single value."),
        ("0x", "abc", "line 31: params: parameter 'batch' must have numbers as values, but got 64, 1.50, abc."),
        ("[64, 1.50, 0x]", "[]", "line 31: params: parameter 'batch' has no values."),
        ("0x", "64.0", "line 31: params: parameter 'batch' has the value 64.0 twice."),
        ("Name: batch", "Name: job_dir", "line 31: params: parameter 'job_dir' cannot be told from the --job-dir that "
         "each trial gets; give it another name."),
        ("Name: batch", "Name: keep", "line 13: params: there are two parameters 'keep'; give them different names."),
        ("0x]\n", "2]\nmaxTrialCount: 3\n", "line 34: maxTrialCount is Vertex AI's form of hyperparameters; keep one "
         "of them."),
        ("scaleTier: BASIC", "scaleTear: BASIC", "line 2: unknown key 'scaleTear' in trainingInput; "),
    ],
)  # fmt: skip
def test_a_mistake_in_gclouds_form_is_named_with_line_and_key(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    assert GCLOUD.count(before) == 1
    assert refused(tmp_path, GCLOUD.replace(before, after).replace("0x", "3")).startswith(message)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("studySpec:\n", "studySpecs:\n", "line 6: unknown key 'studySpecs'; there are trainingInput, labels, "
         "trialJobSpec, studySpec, maxTrialCount, parallelTrialCount and maxFailedTrialCount."),
        ("  metrics:\n  - metricId: auc\n    goal: MAXIMIZE\n", "", "line 6: studySpec needs metrics."),
        ("- metricId: auc\n    goal", "- goal", "line 7: metrics needs metricId."),
        ("    goal: MAXIMIZE", "  - metricId: loss", "line 7: metrics must have one metric, but has 2."),
        ("BEST_MEASUREMENT", "FIRST", "line 10: measurementSelectionType must be one of LAST_MEASUREMENT, "),
        ("  observationNoise: LOW", "  decayCurveStoppingSpec: {}", "line 9: medianAutomatedStoppingSpec and "
         "decayCurveStoppingSpec are two ways to stop early; keep one of them."),
        ("maxTrialCount: 20", "maxTrialCount: 0", "line 2: maxTrialCount: the number of trials must be at least 1, "
         "but got 0."),
        ("parameterId: last", "parameterName: last", "line 32: unknown key 'parameterName' in parameterSpec; there "
         "are parameterId, scaleType, conditionalParameterSpecs, doubleValueSpec, "),
        ("    integerValueSpec: {minValue: \"1\", maxValue: \"3\"}\n", "", "line 26: parameter 'layers' needs one of "
         "doubleValueSpec, integerValueSpec, categoricalValueSpec, discreteValueSpec, but has 0."),
        ("parentIntValues", "parentDiscreteValues", "line 30: parentDiscreteValues does not go with integerValueSpec "
         "of parameter 'layers'."),
        ("- parentIntValues: {values: [3]}\n      parameterSpec", "- parameterSpec", "line 30: "
         "conditionalParameterSpecs needs one of parentIntValues, "),
        ("{values: [3]}", "{values: [4]}", "line 26: params: parameter 'layers' must be from 1 to 3, but got 4."),
        ("parameterId: decay", "parameterId: job-dir", "line 24: params: parameter 'job-dir' cannot be told from the "
         "--job-dir that each trial gets; give it another name."),
        ("parameterId: decay", "parameterId: layers", "line 14: parameters: there are two parameters 'layers'; give "
         "them different names."),
    ],
)  # fmt: skip
def test_a_mistake_in_vertex_ais_form_is_named_with_line_and_key(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    assert VERTEX.count(before) == 1
    assert refused(tmp_path, VERTEX.replace(before, after)).startswith(message)


def test_counts_need_a_study(tmp_path: Path) -> None:
    assert refused(tmp_path, "labels: {}\nmaxTrialCount: 3\n") == (
        "line 2: maxTrialCount needs studySpec, which has the metric and the parameters."
    )


def test_a_grid_with_more_points_than_trials_is_refused_with_their_number(tmp_path: Path) -> None:
    text = VERTEX.replace(
        "doubleValueSpec: {minValue: 0.1, maxValue: 0.9", "integerValueSpec: {minValue: 1, maxValue: 9"
    )
    grid = text.replace("ALGORITHM_UNSPECIFIED", "GRID_SEARCH")
    # Adam; SGD and Ftrl with one and nine points; 1, 2, and 3 with 57 points.
    assert refused(tmp_path, grid) == (
        "line 12: algorithm: the grid has 1239 points, but the study has 20 trials; allow as many trials, or take "
        "fewer values."
    )
    study, _ = read(tmp_path, grid.replace("maxTrialCount: 20", "maxTrialCount: 1239"))
    assert (study.algorithm, study.space.size) == ("GRID", 1239)


def test_a_grid_that_an_earlier_job_has_begun_needs_trials_for_its_other_points(jobs: Jobs) -> None:
    jobs.program("")
    points = {"space": Space((Discrete("batch", ("64", "1.5", "3")),)), "metric": "auc"}
    earlier = make_study(jobs.folder, "", name="earlier", **points)
    make_trial(earlier, parameters={"batch": "3.0"}, results=[(1, 0.5)], state="SUCCEEDED")
    earlier.job.add("ended", "SUCCEEDED", status=0)
    text = """\
trainingInput:
  hyperparameters:
    hyperparameterMetricTag: auc
    maxTrials: 2
    resumePreviousJobId: earlier
    algorithm: GRID_SEARCH
    params:
    - {parameterName: batch, type: DISCRETE, discreteValues: [1.5, 3, 64]}
"""
    line = ("submit", "training", "job", "--config", "hp.yaml", "--module-name", "trainer.task", "--dry-run")
    for before, after, error in (
        ("", "", ""),
        ("maxTrials: 2", "maxTrials: 1", "the grid has 2 points, but the study has 1 trials; allow as many trials"),
        ("[1.5, 3, 64]", "[3]", "job earlier has tried all 1 points of the grid; give more values."),
        ("Tag: auc", "Tag: loss", "the trials of job earlier cannot be added, because its goal is to maximize 'auc', "
         "and that of this study to maximize 'loss'."),
        ("hyperparameters:", "hyperparameters:\n    goal: MINIMIZE", "and that of this study to minimize 'auc'."),
    ):  # fmt: skip
        (jobs.folder / "hp.yaml").write_text(text.replace(before, after, 1) if before else text)
        status, _, err = jobs.run(*line)
        assert (status, error in err) == (2 if error else 0, True), err


def test_a_parameter_below_itself_is_refused(tmp_path: Path) -> None:
    itself = "parameterSpec: &last\n        conditionalParameterSpecs: [{parameterSpec: *last}]\n"
    text = VERTEX.replace("parameterSpec:\n        parameterId: last", f"{itself}        parameterId: last")
    assert refused(tmp_path, text).startswith("line 14: parameters cannot be read: found unconstructable ")


def test_a_dry_run_shows_the_study_and_makes_nothing(jobs: Jobs) -> None:
    jobs.program("")
    (jobs.folder / "hp.yaml").write_text(VERTEX.replace('  - {}\n  - replicaCount: "2"\n', ""))
    submit = ("submit", "training", "job", "--config", "hp.yaml")
    status, out, err = jobs.run(*submit, "--dry-run", "--format", "json")
    assert status == 0, err
    spec = json.loads(out)["trainingInput"]
    assert (spec["module_name"], spec["launcher"]) == ("trainer.task", "torch_estimator.tuning.controller")
    assert from_json(Study, spec["study"]).space.parameters[1].name == "layers"
    assert err.endswith("defaultValue, observationNoise, useElapsedDuration do nothing here.\n")
    assert "study:" in jobs.run(*submit, "--dry-run")[1]
    assert not (jobs.folder / "jobs").exists()
