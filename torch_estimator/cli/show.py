"""Command ``estimator show``: print the inputs and outputs of an export, as TensorFlow's saved_model_cli does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch_estimator.errors import InvalidValueError, printable
from torch_estimator.export.exported_model import find_export, read_manifest
from torch_estimator.export.signatures import Hashing, Manifest, Signature, TensorInfo

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_to(commands: Commands) -> None:
    """Add the command ``show`` and its options to the parser."""
    parser = commands.add_parser("show", help="print the signatures of an export")
    parser.add_argument(
        "--dir", "--model-dir", metavar="DIR", required=True, help="the export, or a directory of numbered ones"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="print every signature (the default)")
    which.add_argument("--signature_def", "--signature-def", metavar="NAME", help="print this signature only")
    parser.add_argument("--tag_set", choices=["serve"], help="accepted for saved_model_cli's sake")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print one signature of an export, or all its signatures."""
    directory = newest_export(options.dir)
    manifest = read_manifest(directory)
    if options.signature_def is None:
        lines = _everything(manifest)
    elif options.signature_def in manifest.signatures:
        lines = _signature(manifest.signatures[options.signature_def], indent="")
    else:
        names = ", ".join(sorted(manifest.signatures))
        raise InvalidValueError(f"the signature {options.signature_def!r} is not in {directory}, which has {names}.")
    print(printable("\n".join(lines)))


def newest_export(path: str) -> str:
    """Return the export at `path`. If `path` is a directory of exports, choose the newest and say so on stderr."""
    directory, count = find_export(path)
    if count:
        print(f"Using {directory}, the newest of {count} in {path}.", file=sys.stderr)
    return directory


def _everything(manifest: Manifest) -> Iterator[str]:
    yield ""
    yield "MetaGraphDef with tag-set: 'serve' contains the following SignatureDefs:"
    for name in sorted(manifest.signatures):
        yield ""
        yield f"signature_def['{name}']:"
        yield from _signature(manifest.signatures[name], indent="  ")
    yield ""
    yield f"Written by {manifest.producer} {manifest.version}" + (
        f" at global step {manifest.global_step}." if manifest.global_step is not None else "."
    )
    yield from _csv(manifest)
    if manifest.examples is not None:
        yield f"Features of a tf.Example: {', '.join(manifest.examples.fields)}."
    yield from _hashing(manifest.hashing)


def _signature(signature: Signature, *, indent: str) -> Iterator[str]:
    yield f"{indent}The given SavedModel SignatureDef contains the following input(s):"
    yield from _tensors("inputs", signature.inputs, indent)
    yield f"{indent}The given SavedModel SignatureDef contains the following output(s):"
    yield from _tensors("outputs", signature.outputs, indent)
    yield f"{indent}Method name is: {signature.method_name}"


def _tensors(kind: str, tensors: Mapping[str, TensorInfo], indent: str) -> Iterator[str]:
    for name in sorted(tensors):
        info = tensors[name]
        # Join the sizes without a trailing comma: saved_model_cli writes (-1) for a vector, and Python (-1,).
        shape = ", ".join(map(str, info.shape))
        yield f"{indent}  {kind}['{name}'] tensor_info:"
        yield f"{indent}      dtype: {info.dtype}"
        yield f"{indent}      shape: ({shape})"
        yield f"{indent}      name: {info.tensor}"
        if info.default is not None:
            yield f"{indent}      default: {info.default!r}"


def _csv(manifest: Manifest) -> Iterator[str]:
    if manifest.csv is not None:
        unused = [name for name in manifest.csv.column_names if name not in manifest.csv.fields]
        yield f"CSV fields: {', '.join(manifest.csv.column_names)}" + (
            f"; not used: {', '.join(unused)}." if unused else "."
        )


def _hashing(hashing: Hashing) -> Iterator[str]:
    by_function: dict[str, list[str]] = {}
    for name, function in sorted(hashing.functions.items()):
        by_function.setdefault(function, []).append(name)
    for function, names in sorted(by_function.items()):
        yield f"Hashed with {function}: {', '.join(names)}."
    for key, count in sorted(hashing.seen_strings.items()):
        yield (
            f"The graph knows the farmhash of {count} strings of {key!r}, those seen in training; "
            "others are hashed with murmur3."
        )
