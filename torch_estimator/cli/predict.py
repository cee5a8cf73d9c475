"""``estimator predict``: runs an export on instances, as ``gcloud ai-platform local predict`` does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch_estimator import files
from torch_estimator.cli.exports import chosen
from torch_estimator.cli.table import table
from torch_estimator.errors import InvalidValueError, printable
from torch_estimator.export.csv_text import CsvRowError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.instances import InstanceError, to_columns, to_rows
from torch_estimator.json_text import parse_json

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_SIGNATURE = "serving_default"
_BATCH = 4096


def add_to(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser("predict", help="run an export on instances from a file")
    parser.add_argument("--model-dir", required=True, help="the export, or a directory of numbered ones")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--json-instances", metavar="FILE", help="one JSON instance per line; - is stdin")
    given.add_argument("--text-instances", metavar="FILE", help="one line of text per instance; - is stdin")
    given.add_argument("--json-request", metavar="FILE", help="one JSON object with a list of instances; - is stdin")
    parser.add_argument("--signature-name", metavar="NAME", help=f"default: {DEFAULT_SIGNATURE}")
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="json holds NaN and Infinity for what is not finite, as TensorFlow Serving's answers do",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Prints the predictions for every instance."""
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
    model = ExportedModel.load(chosen(options.model_dir))
    try:
        predictions = _predictions(model, instances, name or DEFAULT_SIGNATURE)
    except InstanceError as error:
        raise InvalidValueError(f"{_called(path)}, {unit} {error.index + 1}: {error}") from error
    if options.format == "json":
        print(json.dumps({"predictions": predictions}, indent=2, ensure_ascii=False))
    else:
        print(printable(table(predictions)))


def _predictions(model: ExportedModel, instances: list[Any], name: str) -> list[Any]:
    columns = to_columns(instances, model.signature(name))
    predictions: list[Any] = []
    for start in range(0, len(instances), _BATCH):
        batch = {key: values[start : start + _BATCH] for key, values in columns.items()}
        try:
            predictions += to_rows(model.predict(batch, name))
        except InvalidValueError:
            _find_the_bad_one(model, batch, start, name)
            raise
    return predictions


def _find_the_bad_one(model: ExportedModel, batch: Mapping[str, list[Any]], start: int, name: str) -> None:
    """Raises an InstanceError for the first instance that is wrong by itself."""
    for row in range(len(next(iter(batch.values())))):
        try:
            model.check({key: values[row : row + 1] for key, values in batch.items()}, name)
        except CsvRowError as error:
            raise InstanceError(f"the CSV row {error.problem}", index=start + row) from error
        except InvalidValueError as error:
            raise InstanceError(str(error), index=start + row) from error


def _json_lines(path: str) -> Iterator[Any]:
    for number, line in enumerate(_lines(path), 1):
        try:
            yield parse_json(line)
        except ValueError as error:
            raise InvalidValueError(
                f"{_called(path)}, line {number}: input instances are not in JSON format ({error})."
            ) from error


def _request(path: str) -> tuple[list[Any], str | None]:
    where = _called(path)
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
    lines = _text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        instance = line.removesuffix("\r")
        if not instance:
            raise InvalidValueError(f"{_called(path)}, line {number}: an instance must not be an empty line.")
        yield instance


def _text(path: str) -> str:
    where = _called(path)
    try:
        data = sys.stdin.buffer.read() if path == "-" else files.read_bytes(path)
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidValueError(f"{where} cannot be read: {files.reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise InvalidValueError(
            f"{where} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}."
        ) from error


def _called(path: str) -> str:
    return "the standard input" if path == "-" else path
