"""Command ``estimator models``: create, list, describe and delete the models of a registry, as gcloud does."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from torch_estimator.cli.registry_options import add_format, add_registry, registry_of
from torch_estimator.cli.tables import aligned
from torch_estimator.errors import printable
from torch_estimator.registry.changes import Change, ModelInfo
from torch_estimator.registry.registry import Registry

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_CHANGES_SHOWN = 10


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("models", help="models of a registry: create, list, describe, delete")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser("create", help="create a model without versions")
    create.add_argument("name", metavar="MODEL", help="name of the new model")
    create.add_argument("--description", default="", help="text for people")
    add_registry(create)
    create.set_defaults(run=run_create)
    listing = actions.add_parser("list", help="list the models")
    add_registry(listing)
    add_format(listing)
    listing.set_defaults(run=run_list)
    describe = actions.add_parser("describe", help="print the default version, labels and history of a model")
    describe.add_argument("name", metavar="MODEL", help="name of the model")
    add_registry(describe)
    add_format(describe)
    describe.set_defaults(run=run_describe)
    delete = actions.add_parser("delete", help="delete a model that has no versions")
    delete.add_argument("name", metavar="MODEL", help="name of the model")
    add_registry(delete)
    delete.set_defaults(run=run_delete)


def run_create(options: argparse.Namespace) -> None:
    """Create a model."""
    registry = registry_of(options)
    registry.create_model(options.name, description=options.description)
    print(f"Created the model {options.name} in {printable(registry.url)}.")


def run_list(options: argparse.Namespace) -> None:
    """Print a line for each model."""
    registry = registry_of(options)
    found = [_summary(registry, registry.read_model(name)) for name in registry.models()]
    if options.format == "json":
        print(json.dumps(found, indent=2, ensure_ascii=False))
    elif not found:
        print(f"There are no models in {printable(registry.url)}.")
    else:
        lines = [["NAME", "DEFAULT", "VERSIONS", "LABELS", "DESCRIPTION"]]
        for one in found:
            default = "-" if one["default"] is None else str(one["default"])
            lines.append(
                [one["name"], default, str(len(one["versions"])), labels_of(one["labels"]), one["description"]]
            )
        print(printable(aligned([[first_line(cell) for cell in line] for line in lines])))


def run_describe(options: argparse.Namespace) -> None:
    """Print everything about a model."""
    registry = registry_of(options)
    info = registry.read_model(options.name)
    summary, history = _summary(registry, info), registry.history(options.name)
    if options.format == "json":
        print(
            json.dumps({**summary, "history": [_as_json(change) for change in history]}, indent=2, ensure_ascii=False)
        )
        return
    versions = ", ".join(map(str, summary["versions"])) or "none"
    print(printable(f"name: {info.name}\ndescription: {info.description}\ncreated: {info.created}"))
    print(f"default: {'none' if info.default is None else info.default}\nversions: {versions}")
    print(f"labels: {labels_of(info.labels) or 'none'}\n")
    lines = [["TIME", "WHO", "CHANGE", "VERSION", "DEFAULT AFTER"]]
    for change in history[-_CHANGES_SHOWN:]:
        after = None if change.after is None else change.after.default
        numbers = ["" if number is None else str(number) for number in (change.version, after)]
        lines.append([change.time, change.who, change.change, *numbers])
    print(printable(aligned(lines)))
    if len(history) > _CHANGES_SHOWN:
        print(f"{len(history) - _CHANGES_SHOWN} older changes are in --format json.")


def run_delete(options: argparse.Namespace) -> None:
    """Delete a model."""
    registry = registry_of(options)
    registry.delete_model(options.name)
    print(f"Deleted the model {options.name} from {printable(registry.url)}.")


def labels_of(labels: dict[str, int] | Any, version: int | None = None) -> str:
    """Return labels as text: all with their versions, or the names of one version's labels."""
    if version is None:
        return ", ".join(f"{label}={number}" for label, number in sorted(labels.items()))
    return ", ".join(sorted(label for label, number in labels.items() if number == version))


def first_line(text: str) -> str:
    """Return the first line of a text, for a table."""
    lines = text.splitlines()
    return f"{lines[0]} …" if len(lines) > 1 else text


def _summary(registry: Registry, info: ModelInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "description": info.description,
        "created": info.created,
        "default": info.default,
        "labels": dict(info.labels),
        "versions": registry.versions(info.name),
    }


def _as_json(change: Change) -> dict[str, Any]:
    return {key: value for key, value in change.to_json().items() if key != "manifest"}
