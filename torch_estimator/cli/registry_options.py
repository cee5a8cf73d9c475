"""Options that the commands for registries share: ``--registry`` and ``--format``."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from torch_estimator.errors import InvalidValueError

if TYPE_CHECKING:
    from torch_estimator.registry.registry import Registry

ENVIRONMENT = "TORCH_ESTIMATOR_REGISTRY"


def add_registry(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--registry``."""
    parser.add_argument(
        "--registry", metavar="DIR", help=f"directory or URL of the registry; default: ${ENVIRONMENT}, if it is set"
    )


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the options ``--model`` and ``--registry``."""
    parser.add_argument("--model", metavar="MODEL", required=required, help="name of the model")
    add_registry(parser)


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--format``."""
    parser.add_argument("--format", choices=["text", "json"], default="text", help="text for people, json for programs")


def registry_of(options: argparse.Namespace) -> Registry:
    """Return the registry that the command line or the environment names; raise if neither names one."""
    from torch_estimator.registry.registry import Registry

    url = options.registry or os.environ.get(ENVIRONMENT)
    if not url:
        raise InvalidValueError(f"no registry is given; name its directory with --registry, or set {ENVIRONMENT}.")
    return Registry(url)
