"""Command ``estimator predict``: run an export on instances, or ask a server, and print what gcloud prints."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_estimator import files
from torch_estimator.cli.server_client import ServerClient
from torch_estimator.cli.show import newest_export
from torch_estimator.cli.tables import aligned
from torch_estimator.errors import InvalidValueError, printable
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.feeds import WrongRowError, problem_of_row
from torch_estimator.export.instances import InstanceError, to_columns, to_rows
from torch_estimator.json_text import parse_json

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_SIGNATURE = "serving_default"
_BATCH = 4096


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("predict", help="run an export on instances from a file, or ask a server")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--model-dir", metavar="DIR", help="the export, or a directory of numbered ones")
    where.add_argument("--server", metavar="URL", help="a server such as http://127.0.0.1:8501; needs --model")
    parser.add_argument("--model", metavar="NAME", help="name of the model on the server")
    parser.add_argument("--version", metavar="V", help="version on the server, such as v1, or label; default: its own")
    parser.add_argument("--token-file", metavar="FILE", help="file with the bearer token for the server")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--json-instances", metavar="FILE", help="one JSON instance per line; - is stdin")
    given.add_argument("--text-instances", metavar="FILE", help="one line of text per instance; - is stdin")
    given.add_argument("--json-request", metavar="FILE", help="one JSON object with a list of instances; - is stdin")
    parser.add_argument("--signature-name", metavar="NAME", help=f"default: {DEFAULT_SIGNATURE}")
    parser.add_argument(
        "--ignore-unknown",
        action="store_true",
        help="leave names that the model does not read out of instances; for --model-dir",
    )
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="json has NaN and Infinity for numbers that are not finite, as TensorFlow Serving's answers do",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the predictions for every instance."""
    client = _client(options)
    name = options.signature_name
    path, unit = options.json_instances, "line"
    if options.json_request is not None:
        path, unit = options.json_request, "instance"
        instances, requested = _request(path)
        name = name or requested
    elif options.json_instances is not None:
        instances = list(_json_lines(path))
    else:
        path = options.text_instances
        instances = list(_lines(path))
    if not instances:
        raise InvalidValueError("No valid instance was found in input file.")
    try:
        if client is not None:
            predictions: list[Any] = client.predict(instances, name or DEFAULT_SIGNATURE)
        else:
            model = ExportedModel.load(newest_export(options.model_dir), ignore_unknown=options.ignore_unknown)
            predictions = _predictions(model, instances, name or DEFAULT_SIGNATURE)
    except InstanceError as error:
        raise InvalidValueError(f"{_name_of(path)}, {unit} {error.index + 1}: {error}") from error
    if options.format == "json":
        print(json.dumps({"predictions": predictions}, indent=2, ensure_ascii=False))
    else:
        print(printable(table(predictions)))


def _client(options: argparse.Namespace) -> ServerClient | None:
    """Return the client of the server that the command line names, or None for an export."""
    if options.server is None:
        for name in ("model", "version", "token_file"):
            if getattr(options, name) is not None:
                raise InvalidValueError(f"--{name.replace('_', '-')} is for --server, and --model-dir is an export.")
        return None
    if options.ignore_unknown:
        raise InvalidValueError("--ignore-unknown is for --model-dir; give it to estimator serve for a server.")
    if not options.model:
        raise InvalidValueError("--server needs --model, the name of the model on the server.")
    return ServerClient(options.server, options.model, options.version, options.token_file)


def _predictions(model: ExportedModel, instances: list[Any], name: str) -> list[Any]:
    """Return the model's prediction for each instance, a dict of outputs. The model runs on batches of instances."""
    columns = to_columns(instances, model.signature(name), model.unknown)
    predictions: list[Any] = []
    for start in range(0, len(instances), _BATCH):
        batch = {key: values[start : start + _BATCH] for key, values in columns.items()}
        try:
            predictions += to_rows(model.predict(batch, name))
        except WrongRowError as error:
            raise InstanceError(problem_of_row(error), index=start + error.row) from error
        except InvalidValueError:
            _raise_for_wrong_instance(model, batch, start, name)
            raise
    return predictions


def _raise_for_wrong_instance(model: ExportedModel, batch: Mapping[str, list[Any]], start: int, name: str) -> None:
    """Raise an InstanceError for the first instance of a batch that does not fit the signature, if any."""
    for row in range(len(next(iter(batch.values())))):
        try:
            model.check({key: values[row : row + 1] for key, values in batch.items()}, name)
        except InvalidValueError as error:
            raise InstanceError(problem_of_row(error), index=start + row) from error


def table(rows: Sequence[Any]) -> str:
    """Format predictions, one per row, as a text table in the format of gcloud.

    Columns are sorted by name and have upper-case headings. Values are printed as Python does. Rows that are not
    objects make a single column without a heading.

    >>> print(table([{"logits": [0.5], "classes": ["a"]}]))
    CLASSES  LOGITS
    ['a']    [0.5]
    """
    if not all(isinstance(row, Mapping) for row in rows):
        return "\n".join(str(row) for row in rows)
    names = sorted({name for row in rows for name in row})
    lines = [[name.upper() for name in names]]
    lines += [[str(row.get(name, "")) for name in names] for row in rows]
    return aligned(lines)


def _json_lines(path: str) -> Iterator[Any]:
    """Parse each line of a file as JSON, and yield the result as an instance."""
    for number, line in enumerate(_lines(path), 1):
        try:
            yield parse_json(line)
        except ValueError as error:
            raise InvalidValueError(
                f"{_name_of(path)}, line {number}: input instances are not in JSON format ({error})."
            ) from error


def _request(path: str) -> tuple[list[Any], str | None]:
    """Return the instances and the signature's name in a file that holds a request for TensorFlow Serving."""
    where = _name_of(path)
    try:
        request = parse_json(_text(path))
    except ValueError as error:
        raise InvalidValueError(f"{where} is not JSON ({error}).") from error
    if not isinstance(request, dict) or not isinstance(request.get("instances"), list):
        raise InvalidValueError(f"{where} must be an object with a list called 'instances'.")
    name = request.get("signature_name")
    if name is not None and not isinstance(name, str):
        raise InvalidValueError(f"{where} has the signature_name {name!r}, which is no string.")
    return request["instances"], name


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of a text file. An empty line is an error, not an empty instance."""
    lines = _text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        instance = line.removesuffix("\r")
        if not instance:
            raise InvalidValueError(f"{_name_of(path)}, line {number}: an instance must not be an empty line.")
        yield instance


def _text(path: str) -> str:
    where = _name_of(path)
    try:
        data = sys.stdin.buffer.read() if path == "-" else files.read_bytes(path)
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidValueError(f"{where} cannot be read: {files.reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise InvalidValueError(
            f"{where} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}."
        ) from error


def _name_of(path: str) -> str:
    return "the standard input" if path == "-" else path
