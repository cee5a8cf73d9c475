"""Command ``estimator import-checkpoint``: bring a checkpoint of TensorFlow into a model directory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_estimator.cli.tables import aligned
from torch_estimator.errors import printable

if TYPE_CHECKING:
    from torch_estimator.checkpoint.tensorflow import Found

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Reads a checkpoint of TensorFlow, without TensorFlow, and writes it as a checkpoint into DIR. This is then the model_dir
of the same model here, which evaluates, predicts, exports and goes on training. Weights, the state of the optimizers
and the global step come along, from names of TF 1.x as well as of TF 2.x. Prints a table of all tensors."""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "import-checkpoint", help="bring a checkpoint of TensorFlow into a model directory", description=_ABOUT
    )
    add = parser.add_argument
    add("checkpoint", metavar="MODEL.ckpt-N", help="path of the checkpoint, or a directory for its newest one")
    add("--into", required=True, metavar="DIR", help="model directory that has no checkpoint yet")
    add("--weights-only", action="store_true", help="leave out the state of the optimizers, which start anew")
    add("--allow-unmatched", action="store_true", help="leave out tensors that cannot be imported")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Import the checkpoint, and print what became of each tensor."""
    # Import here, because the other commands do not need torch.
    from torch_estimator.checkpoint.tensorflow_import import import_checkpoint

    imported = import_checkpoint(
        options.checkpoint,
        options.into,
        weights_only=options.weights_only,
        allow_unmatched=options.allow_unmatched,
    )
    print(printable(aligned([["IN TENSORFLOW", "HERE", "SHAPE"], *map(_row, imported.found)])))
    weights, slots = (_count(imported.found, kind) for kind in ("weight", "optimizer"))
    checkpoint = imported.checkpoint
    print(
        f"\nImported weights: {weights}, slots: {slots}, global step: {checkpoint.step}, "
        f"as {printable(checkpoint.path)}."
    )


def _row(found: Found) -> list[str]:
    here = found.target or f"({found.kind}: {found.note})" if found.note else found.target or f"({found.kind})"
    return [found.name, here, "x".join(map(str, found.shape)) or "number"]


def _count(found: Sequence[Found], kind: str) -> int:
    return len({one.target for one in found if one.kind == kind and one.target is not None})
