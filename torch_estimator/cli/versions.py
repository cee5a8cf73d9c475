"""Command ``estimator versions``: create, list, describe, label and delete versions of a model, and set the default."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from torch_estimator.cli.models import first_line, labels_of
from torch_estimator.cli.registry_options import add_format, add_model, registry_of
from torch_estimator.cli.show import newest_export
from torch_estimator.cli.tables import aligned, size_of
from torch_estimator.errors import printable
from torch_estimator.export.warmup import read_warmup
from torch_estimator.registry.changes import ModelInfo
from torch_estimator.registry.manifest import VersionInfo

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("versions", help="versions of a registry's model: create, list, set-default, …")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the versions of a model")
    add_model(listing)
    add_format(listing)
    listing.set_defaults(run=run_list)

    def add(name: str, text: str, run: Any) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text)
        action.add_argument("version", metavar="VERSION", help="number of the version; v1 is read as 1")
        add_model(action)
        action.set_defaults(run=run)
        return action

    create = add("create", "check an export and copy it into the registry", run_create)
    create.add_argument("--origin", metavar="DIR", required=True, help="the export, or a directory of numbered ones")
    create.add_argument("--description", default="", help="text for people")
    add_format(add("describe", "print the files of a version and where it comes from", run_describe))
    add("set-default", "make a version the one that answers if a caller names none", run_set_default)
    update = add("update", "change the labels of a version", run_update)
    for option, text in (("update", "labels that name this version from now on"), ("remove", "labels to take away")):
        update.add_argument(f"--{option}-labels", metavar="LABEL,…", default="", help=text)
    add("delete", "delete a version", run_delete)


def run_create(options: argparse.Namespace) -> None:
    """Check an export and copy it into the registry."""
    registry = registry_of(options)
    origin = newest_export(options.origin)
    info = registry.create_version(options.model, options.version, origin, description=options.description)
    directory = registry.version_dir(info.model, info.version)
    print(printable(f"Created version {info.version} of {info.model} in {directory} ({size_of(info.bytes)})."))
    if registry.read_model(info.model).default == info.version:
        print("It is the default.")
    if not read_warmup(directory):
        print("It has no recorded instances, so that it was loaded, but not compared with anything.", file=sys.stderr)


def run_list(options: argparse.Namespace) -> None:
    """Print a line for each version."""
    registry = registry_of(options)
    model, versions = registry.read_model(options.model), registry.read_versions(options.model)
    if options.format == "json":
        print(json.dumps([_summary(one, model) for one in versions], indent=2, ensure_ascii=False))
        return
    if not versions:
        print(f"The model {model.name} has no versions.")
        return
    lines = [["VERSION", "DEFAULT", "LABELS", "STEP", "CREATED", "DESCRIPTION"]]
    for one in versions:
        default = "yes" if one.version == model.default else ""
        step = "" if one.global_step is None else str(one.global_step)
        labels = labels_of(model.labels, one.version)
        lines.append([str(one.version), default, labels, step, one.created, first_line(one.description)])
    print(printable(aligned(lines)))


def run_describe(options: argparse.Namespace) -> None:
    """Print everything about a version."""
    registry = registry_of(options)
    info = registry.read_version(options.model, options.version)
    summary = _summary(info, registry.read_model(options.model))
    if options.format == "json":
        print(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    for key, value in summary.items():
        if key not in ("default", "labels", "files", "metrics", "versions"):
            print(printable(f"{key.replace('_', ' ')}: {'unknown' if value is None else value}"))
    print(f"default: {'yes' if summary['default'] else 'no'}")
    print(f"labels: {', '.join(summary['labels']) or 'none'}")
    for key, value in info.versions.items():
        print(printable(f"{key}: {value}"))
    for name, metrics in info.metrics.items():
        print(printable(f"\n{name}\n" + aligned([["", key, f"{value:g}"] for key, value in metrics.items()])))
    files = [["FILE", "BYTES", "SHA256"], *([name, str(one.bytes), one.sha256] for name, one in info.files.items())]
    print(printable(f"\n{aligned(files)}"))


def run_set_default(options: argparse.Namespace) -> None:
    """Make a version the default."""
    registry = registry_of(options)
    registry.set_default(options.model, options.version)
    print(f"Version {registry.read_model(options.model).default} is the default of the model {options.model}.")


def run_update(options: argparse.Namespace) -> None:
    """Change the labels of a version."""
    registry = registry_of(options)
    added, removed = (
        [label for label in text.split(",") if label] for text in (options.update_labels, options.remove_labels)
    )
    registry.update(options.model, options.version, labels=added, remove_labels=removed)
    print(f"Labels of the model {options.model}: {labels_of(registry.read_model(options.model).labels) or 'none'}.")


def run_delete(options: argparse.Namespace) -> None:
    """Delete a version."""
    registry_of(options).delete_version(options.model, options.version)
    print(f"Deleted version {options.version} of the model {options.model}.")


def _summary(info: VersionInfo, model: ModelInfo) -> dict[str, Any]:
    content = {key: value for key, value in info.to_json().items() if key != "format_version"}
    labels = sorted(label for label, version in model.labels.items() if version == info.version)
    return {**content, "default": info.version == model.default, "labels": labels}
