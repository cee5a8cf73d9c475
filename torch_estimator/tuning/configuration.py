"""Reads a `Study` from gcloud's configuration (``hyperparameters``), or from that of its successor Vertex AI."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_estimator.jobs.yaml_reader import Unread, YamlReader
from torch_estimator.tuning.space import TYPES, Child, Parameter, Space
from torch_estimator.tuning.study import Study


class _Section:
    """The values under the keys of one mapping. Null is no value, as in Google's API."""

    def __init__(self, reader: YamlReader, node: Any, name: str, known: Sequence[str]) -> None:
        self.reader = reader
        self.node = node
        self.name = name
        given = reader.items(node, name, known)
        self.nodes = {key: value for key, value in given if value.tag != "tag:yaml.org,2002:null"}

    def needed(self, key: str) -> Any:
        if key not in self.nodes:
            self.reader.refuse(self.node, f"{self.name} needs {key}")
        return self.nodes[key]

    def one_of(self, keys: Sequence[str]) -> str:
        there = [key for key in keys if key in self.nodes]
        if len(there) != 1:
            self.reader.refuse(self.node, f"{self.name} needs one of {', '.join(keys)}, but has {len(there)}")
        return there[0]

    def sections(self, key: str, known: Sequence[str]) -> list[_Section]:
        return [_Section(self.reader, one, key, known) for one in self.reader.nodes(self.needed(key), key)]

    def text(self, key: str) -> str:
        return self.reader.text(self.needed(key), key)

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self.reader.text(one, key) for one in self.reader.nodes(self.needed(key), key))

    def choice(self, key: str, names: Mapping[str, Any]) -> Any:
        """Return what a name stands for, in capital or, as in Google's own samples, in small letters."""
        text = self.text(key)
        if text.upper() not in names:
            self.reader.refuse(self.nodes[key], f"{key} must be one of {', '.join(names)}, but got {text!r}")
        return names[text.upper()]

    def bound(self, key: str, kind: str) -> float:
        text, is_whole = self.text(key), kind == "INTEGER"
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        # Google's API has whole numbers as floats, such as 4.0.
        if not math.isfinite(number) or (is_whole and not number.is_integer()):
            what = "a whole number" if is_whole else "a number"
            self.reader.refuse(self.nodes[key], f"{key} of {self.name} must be {what}, but got {text!r}")
        return (int(text) if text.isdecimal() else int(number)) if is_whole else number


def study_of(asked: Unread) -> tuple[Study, list[str]]:
    """Return the study that a configuration asks for, and the names of what has no meaning here."""
    reader, nodes, useless = asked.reader, asked.nodes, list[str]()
    for key, node in nodes.items():
        if "hyperparameters" in nodes and key != "hyperparameters":
            reader.refuse(node, f"{key} is Vertex AI's form of hyperparameters; keep one of them")
        if not nodes.keys() & {"hyperparameters", "studySpec"}:
            reader.refuse(node, f"{key} needs studySpec, which has the metric and the parameters")
    if "hyperparameters" in nodes:
        known = ("params", *_HYPERPARAMETERS)
        section = _Section(reader, nodes["hyperparameters"], "hyperparameters", known)
        parameters = [_gcloud_parameter(one, useless) for one in section.sections("params", _GCLOUD_PARAMETER)]
        return _study(section, "params", parameters, _HYPERPARAMETERS), useless
    section = _Section(reader, nodes["studySpec"], "studySpec", ("parameters", "metrics", *_STUDY_SPEC, *_USELESS))
    parameters = [_vertex_parameter(one, useless) for one in section.sections("parameters", _VERTEX_PARAMETER)]
    metrics = section.sections("metrics", ("metricId", "goal", "safetyConfig"))
    if len(metrics) != 1:
        reader.refuse(section.nodes["metrics"], f"metrics must have one metric, but has {len(metrics)}")
    metrics[0].needed("metricId")
    useless += [key for key in ("safetyConfig", *_USELESS) if key in metrics[0].nodes.keys() | section.nodes.keys()]
    stopping = [key for key in _STOPPING if key in section.nodes]
    for key in stopping[1:]:
        reader.refuse(section.nodes[key], f"{key} and {stopping[0]} are two ways to stop early; keep one of them")
    for key in stopping:
        useless += [name for name, _ in reader.items(section.nodes[key], key)]
    section.nodes = {**section.nodes, **metrics[0].nodes, **nodes}
    return _study(section, "parameters", parameters, _STUDY_SPEC), useless


def _study(section: _Section, key: str, parameters: Sequence[Parameter], settings: Mapping[str, _Setting]) -> Study:
    with section.reader.placed(section.nodes[key], key):
        study = Study(space=Space(tuple(parameters)))
    # One after the other, so that a contradiction is found at its own line.
    for key, (attribute, read) in settings.items():
        if key in section.nodes:
            value = read(section, key)
            with section.reader.placed(section.nodes[key], key):
                study = dataclasses.replace(study, **{attribute: value})
    return study


def _gcloud_parameter(section: _Section, useless: list[str]) -> Parameter:
    name = section.text("parameterName")
    section.name = f"parameter {name!r}"
    kind = section.choice("type", {name: name for name in TYPES})
    keys = _RANGE if kind in ("DOUBLE", "INTEGER") else (f"{kind.lower()}Values",)
    for key in (*_RANGE, *_LISTS):
        if key in section.nodes and key not in keys:
            section.reader.refuse(section.nodes[key], f"{key} does not go with type {kind} of {section.name}")
    return _parameter(name, kind, section, section, keys, useless)


def _vertex_parameter(section: _Section, useless: list[str]) -> Parameter:
    name = section.text("parameterId")
    section.name = f"parameter {name!r}"
    key = section.one_of(tuple(_VALUE_SPECS))
    kind = _VALUE_SPECS[key]
    keys = _RANGE if kind in ("DOUBLE", "INTEGER") else ("values",)
    spec = _Section(section.reader, section.nodes[key], f"{key} of {section.name}", (*keys, "defaultValue"))
    useless += [key for key in spec.nodes if key == "defaultValue"]
    children = []
    if "conditionalParameterSpecs" in section.nodes:
        for child in section.sections("conditionalParameterSpecs", ("parameterSpec", *_CONDITIONS)):
            condition = child.one_of(tuple(_CONDITIONS))
            if _CONDITIONS[condition] != kind:
                section.reader.refuse(child.nodes[condition], f"{condition} does not go with {key} of {section.name}")
            values = _Section(section.reader, child.nodes[condition], condition, ("values",)).texts("values")
            below = _Section(section.reader, child.needed("parameterSpec"), "parameterSpec", _VERTEX_PARAMETER)
            children.append(Child(_vertex_parameter(below, useless), values))
    return _parameter(name, kind, section, spec, keys, useless, children)


def _parameter(
    name: str,
    kind: str,
    section: _Section,
    spec: _Section,
    keys: Sequence[str],
    useless: list[str],
    children: Sequence[Child] = (),
) -> Parameter:
    """Return a parameter, whose bounds or values are in `spec` under `keys`."""
    scale = section.choice("scaleType", _SCALES) if "scaleType" in section.nodes else "LINEAR"
    settings: dict[str, Any] = {"children": tuple(children)}
    if keys == _RANGE:
        settings |= {"min": spec.bound(keys[0], kind), "max": spec.bound(keys[1], kind), "scale": scale}
    else:
        settings["values"] = spec.texts(keys[0])
        useless += [f"scaleType of {name}"] if scale != "LINEAR" else []
    with section.reader.placed(section.node, "params"):
        return TYPES[kind](name, **settings)


_Setting = tuple[str, Callable[[_Section, str], Any]]


def _value(kind: type[Any]) -> Callable[[_Section, str], Any]:
    return lambda section, key: section.reader.value(section.nodes[key], kind, key)


def _choice(names: Mapping[str, Any]) -> Callable[[_Section, str], Any]:
    return lambda section, key: section.choice(key, names)


def _algorithm(section: _Section, key: str) -> Any:
    if section.text(key).upper() == "POPULATION_BASED_TRAINING":
        section.reader.refuse(
            section.nodes[key],
            "POPULATION_BASED_TRAINING, which changes parameters of a trial while it trains, is not there; leave "
            f"{key} out, or take RANDOM_SEARCH",
        )
    return section.choice(key, {"GRID_SEARCH": "GRID", "RANDOM_SEARCH": "RANDOM", "ALGORITHM_UNSPECIFIED": None})


_GOALS = {"MAXIMIZE": "MAXIMIZE", "MINIMIZE": "MINIMIZE", "GOAL_TYPE_UNSPECIFIED": "MAXIMIZE"}
_MEASUREMENTS = {
    "LAST_MEASUREMENT": "LAST",
    "BEST_MEASUREMENT": "BEST",
    "MEASUREMENT_SELECTION_TYPE_UNSPECIFIED": "LAST",
}
_SCALES = {
    "NONE": "LINEAR",
    "SCALE_TYPE_UNSPECIFIED": "LINEAR",
    "UNIT_LINEAR_SCALE": "LINEAR",
    "UNIT_LOG_SCALE": "LOG",
    "UNIT_REVERSE_LOG_SCALE": "REVERSE_LOG",
}

# The algorithm comes last: whether a grid is too large shows only when the number of trials is known.
_HYPERPARAMETERS: dict[str, _Setting] = {
    "goal": ("goal", _choice(_GOALS)),
    "hyperparameterMetricTag": ("metric", _Section.text),
    "maxTrials": ("max_trials", _value(int)),
    "maxParallelTrials": ("parallel", _value(int)),
    "maxFailedTrials": ("max_failed", _value(int)),
    "enableTrialEarlyStopping": ("early_stopping", _value(bool)),
    "resumePreviousJobId": ("resume_previous", _Section.text),
    "algorithm": ("algorithm", _algorithm),
}
_RANGE, _LISTS = ("minValue", "maxValue"), ("categoricalValues", "discreteValues")
_GCLOUD_PARAMETER = ("parameterName", "type", *_RANGE, *_LISTS, "scaleType")

# Whichever rule stops trials early there, here it is ASHA.
_STOPPING = ("decayCurveStoppingSpec", "medianAutomatedStoppingSpec", "convexAutomatedStoppingSpec", "convexStopConfig")
_STUDY_SPEC: dict[str, _Setting] = {
    "metricId": ("metric", _Section.text),
    "goal": ("goal", _choice(_GOALS)),
    "maxTrialCount": ("max_trials", _value(int)),
    "parallelTrialCount": ("parallel", _value(int)),
    "maxFailedTrialCount": ("max_failed", _value(int)),
    "measurementSelectionType": ("measurement", _choice(_MEASUREMENTS)),
    **dict.fromkeys(_STOPPING, ("early_stopping", lambda section, key: True)),
    "algorithm": ("algorithm", _algorithm),
}
_USELESS = ("observationNoise", "studyStoppingConfig", "transferLearningConfig")
_VALUE_SPECS = {f"{kind.lower()}ValueSpec": kind for kind in TYPES}
_CONDITIONS = {
    "parentIntValues": "INTEGER",
    "parentCategoricalValues": "CATEGORICAL",
    "parentDiscreteValues": "DISCRETE",
}
_VERTEX_PARAMETER = ("parameterId", "scaleType", "conditionalParameterSpecs", *_VALUE_SPECS)
