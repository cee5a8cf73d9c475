"""What the page shows of the models: their versions, default, labels, signatures, and the form with an example."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from torch_estimator.errors import ExportError, UserError
from torch_estimator.export.signatures import Signature
from torch_estimator.export.warmup import WarmupInstance, read_warmup
from torch_estimator.registry import ModelInfo, Registry, VersionInfo
from torch_estimator.serving.catalog import ModelState, Version
from torch_estimator.serving.page_forms import Field, Outcome, fields_of, texts_in, type_of
from torch_estimator.serving.service import PredictionService
from torch_estimator.web.errors import RequestError

# Versions that are listed at first; a registry may have a thousand.
_MOST_VERSIONS = 10

_MOST_METRICS = 3

# The signature of the form: the first of these that the export has.
_USUAL_SIGNATURES = ("predict", "serving_default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a person has chosen to see.

    An empty name stands for the first model or the usual signature, and no version for the default one. `example` is
    the number of the recorded instance that fills the form, from 0. `all` says whether to list all versions.
    """

    model: str = ""
    version: int | None = None
    signature: str = ""
    example: int = 0
    all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One line of the list of versions.

    `state` is ``available``, ``loading``, ``unloading``, ``ended``, ``failed`` or ``not loaded``, and `problem` says
    why loading failed. `is_default` says whether it answers requests that name no version, and `can_be_default` whether
    a person may make it the default. `created` is when it was put into the registry, if it is in one.
    """

    number: int
    state: str
    problem: str = ""
    is_default: bool = False
    can_be_default: bool = False
    labels: tuple[str, ...] = ()
    step: int | None = None
    created: str = ""
    description: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureView:
    """A signature: the kind of call, and name, type and default of each input and output."""

    name: str
    method: str
    inputs: list[tuple[str, str, str]]
    outputs: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """One model, as the page shows it.

    `default` is the number of the default version, or None if no version answers. `wanted` is the default in the
    registry, which may not be loaded yet, or None if the model is not from the registry; `problem` says why that cannot
    be read. `versions` are those that are listed, the newest first, without `hidden` others. The form asks `version`,
    one of those `loaded`, for `signature`, one of its `signatures`; without a form it is None. `example` is which of
    the recorded `examples` fills the form.
    """

    name: str
    description: str
    default: int | None
    wanted: int | None
    is_registered: bool
    problem: str
    versions: list[VersionRow]
    hidden: int
    version: int | None = None
    loaded: list[int] = field(default_factory=list)
    signature: str = ""
    signatures: list[SignatureView] = field(default_factory=list)
    fields: list[Field] = field(default_factory=list)
    examples: int = 0
    example: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A prediction that a person has asked for: the texts in the form, and what is wrong with them or the outcome."""

    texts: Mapping[str, str]
    problem: str = ""
    outcome: Outcome | None = None


class Models:
    """The models of a server, for the page."""

    def __init__(self, service: PredictionService) -> None:
        self._service = service
        self._catalog = service.catalog

    def registry_of(self, model: str) -> Registry:
        """Return the registry that a model comes from; raise a RequestError if it comes from a directory."""
        options = self._service.options
        if options.registry is None or any(one.name == model and one.path is not None for one in options.models):
            raise RequestError(
                409, f"The model {model} is not served from a registry, so its newest version is the default."
            )
        return Registry(options.registry)

    def name_of(self, model: str) -> str:
        """Return the name of a model in its own letters; names in URLs do not depend on case."""
        names = self._catalog.names()
        found = [one for one in names if one == model] or [one for one in names if one.lower() == model.lower()]
        if not found:
            raise RequestError(404, f"There is no model {model}.")
        return found[0]

    def version_of(self, model: str, number: int | None) -> Version:
        """Return a loaded version of a model, the default if there is no number, or raise a RequestError."""
        state = self._catalog.state(self.name_of(model))
        version = state.versions.get(state.default if number is None else number)  # type: ignore[arg-type]
        if version is None:
            what = f"Version {number} of the model {model} is not loaded."
            raise RequestError(404, f"No version of the model {model} is loaded." if number is None else what)
        return version

    def names(self) -> list[tuple[str, int | None]]:
        """Return the name and the default version of each model."""
        return [(name, self._catalog.state(name).default) for name in self._catalog.names()]

    def fingerprint(self) -> int:
        """Return a number that changes when a version, a default or a label does."""
        states = [(name, self._catalog.state(name)) for name in self._catalog.names()]
        # Sorted, because processes of one server may have found them in another order.
        known = [(name, one.default, sorted(one.labels.items()), sorted(one.states.items())) for name, one in states]
        return zlib.crc32(repr(known).encode())

    def view(self, chosen: Chosen, *, with_form: bool, tried: Tried | None = None) -> ModelView | None:
        """Return what is shown of a model; None if there is no model at all.

        This reads the registry and the example, so call it in a thread. The form is filled with the prediction `tried`,
        or else with an example, a row of the training or the evaluation.
        """
        names = self._catalog.names()
        if not names:
            return None
        name = self.name_of(chosen.model or names[0])
        state = self._catalog.state(name)
        info, numbers, problem = self._registered(name)
        rows = _rows(state, info, numbers)
        listed = rows if chosen.all else _important(rows)
        common: dict[str, Any] = {
            "name": name,
            "description": "" if info is None else info.description,
            "default": state.default,
            "wanted": None if info is None else info.default,
            "is_registered": info is not None,
            "problem": problem,
            "versions": [self._with_manifest(name, row, state, info) for row in listed],
            "hidden": len(rows) - len(listed),
        }
        if not state.versions and chosen.version is None:
            return ModelView(**common)
        version = self.version_of(name, chosen.version)
        signatures = version.export.signatures
        signature = chosen.signature or next((one for one in _USUAL_SIGNATURES if one in signatures), min(signatures))
        signature_of(version, signature)
        common.update(
            version=version.number,
            loaded=sorted(state.versions, reverse=True),
            signature=signature,
            signatures=[_signature_view(one, signatures[one]) for one in signatures],
        )
        if not with_form:
            return ModelView(**common)
        if tried is not None:
            fields = texts_in(fields_of(signatures[signature], {}), tried.texts)
            return ModelView(**common, fields=fields, examples=len(_recorded(version, signature)))
        examples = _recorded(version, signature)
        example = chosen.example % max(1, len(examples))
        instance = examples[example].instance if examples else _first_row(version, signature)
        return ModelView(
            **common, fields=fields_of(signatures[signature], instance), examples=len(examples), example=example
        )

    def _registered(self, name: str) -> tuple[ModelInfo | None, list[int], str]:
        """Return the state and the versions of a model in the registry, and why they cannot be read."""
        try:
            registry = self.registry_of(name)
        except RequestError:
            return None, [], ""
        try:
            return registry.read_model(name), registry.versions(name), ""
        except UserError as error:
            return None, [], str(error)

    def _with_manifest(self, name: str, row: VersionRow, state: ModelState, info: ModelInfo | None) -> VersionRow:
        """Add what is known about the origin of a version."""
        loaded = state.versions.get(row.number)
        step = None if loaded is None else loaded.export.manifest.global_step
        manifest: VersionInfo | None = None
        if info is not None:
            try:
                manifest = _manifest(self.registry_of(name).url, name, row.number)
            except UserError:
                # It has just been deleted, or is damaged; then show what is loaded.
                manifest = None
        if manifest is None:
            return replace(row, step=step)
        return replace(
            row,
            step=manifest.global_step,
            created=manifest.created[:16].replace("T", " "),
            description=manifest.description,
            metrics=_metrics(manifest),
        )


def signature_of(version: Version, name: str) -> Signature:
    """Return a signature of a version, or raise a RequestError."""
    if name not in version.export.signatures:
        raise RequestError(404, f"Version {version.number} of the model {version.model} has no signature {name}.")
    return version.export.signatures[name]


def _rows(state: ModelState, info: ModelInfo | None, numbers: list[int]) -> list[VersionRow]:
    """Return all versions that are known, the newest first."""
    labels = dict(state.labels) if info is None else dict(info.labels)
    rows = []
    for number in sorted({*state.states, *state.versions, *numbers}, reverse=True):
        word, problem = state.states.get(number, ("NOT LOADED", ""))
        is_default = number == state.default
        rows.append(
            VersionRow(
                number=number,
                state="failed" if problem else {"END": "ended"}.get(word, word.lower()),
                problem=problem,
                is_default=is_default,
                can_be_default=number in numbers and not is_default and not problem,
                labels=tuple(sorted(label for label, one in labels.items() if one == number)),
            )
        )
    return rows


def _important(rows: list[VersionRow]) -> list[VersionRow]:
    """Return the newest versions, and those older ones that are in use."""
    return [
        row
        for place, row in enumerate(rows)
        if place < _MOST_VERSIONS or row.is_default or row.labels or row.state in ("available", "loading")
    ]


def _signature_view(name: str, signature: Signature) -> SignatureView:
    return SignatureView(
        name=name,
        method=signature.method_name.rsplit("/", 1)[-1],
        inputs=[
            (key, type_of(info), "" if info.default is None else repr(info.default))
            for key, info in signature.inputs.items()
        ],
        outputs=[(key, type_of(info)) for key, info in signature.outputs.items()],
    )


def _first_row(version: Version, signature: str) -> dict[str, Any]:
    """Return an instance of the right types, for an export without recorded ones."""
    return {name: values[0] for name, values in version.example(signature, 1).items()}


def _recorded(version: Version, signature: str) -> list[WarmupInstance]:
    """Return the recorded instances of a signature."""
    return [one for one in _warmup(version.directory) if one.signature_name == signature]


# Exports and manifests never change, so read them once. Not more than these, because a registry may have many.
@lru_cache(maxsize=32)
def _warmup(directory: str) -> list[WarmupInstance]:
    try:
        return read_warmup(directory)
    except ExportError:
        # The form does without them; 'estimator check' says what is wrong.
        return []


@lru_cache(maxsize=256)
def _manifest(url: str, model: str, version: int) -> VersionInfo:
    return Registry(url).read_version(model, version)


def _metrics(manifest: VersionInfo) -> dict[str, float]:
    """Return a few metrics of the first evaluation, the best known ones first."""
    evaluation = next(iter(manifest.metrics.values()), {})
    usual = ("auc", "accuracy", "average_loss", "loss")
    names = [name for name in usual if name in evaluation]
    names += [name for name in evaluation if name not in usual and name != "global_step"]
    return {name: evaluation[name] for name in names[:_MOST_METRICS]}
