"""Client of a server that answers TensorFlow Serving's REST, for ``estimator predict --server``."""

from __future__ import annotations

import base64
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.export.instances import InstanceError
from torch_estimator.json_text import parse_json, shortened

_BATCH = 1024
_TIMEOUT_SECS = 60.0
_INSTANCE = re.compile(r"Instance (\d+): (.*)", re.DOTALL)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        # urllib would send the token to wherever the server points.
        return None


class ServerClient:
    """A model of a server.

    Args:
        url: Address of the server, such as ``http://127.0.0.1:8501``.
        model: Name of the model.
        version: Its version, such as ``3`` or ``v3``, or a label; None for the default version.
        token_file: File whose first line is the bearer token, or None.

    Raises:
        InvalidValueError: An argument cannot be used.
    """

    def __init__(self, url: str, model: str, version: str | None, token_file: str | None) -> None:
        if not re.match(r"https?://[^/]", url):
            raise InvalidValueError(f"--server must be an address such as http://127.0.0.1:8501, but got {url!r}.")
        place = f"{url.rstrip('/')}/v1/models/{urllib.parse.quote(model, safe='')}"
        if version is not None:
            number = re.fullmatch(r"v?([0-9]+)", version)
            place += f"/versions/{number[1]}" if number else f"/labels/{urllib.parse.quote(version, safe='')}"
        self._url = url
        self._place = place
        self._headers = {"Content-Type": "application/json"}
        if token_file is not None:
            self._headers["Authorization"] = f"Bearer {_read_token(token_file)}"
        self._opener = urllib.request.build_opener(_NoRedirects)

    def predict(self, instances: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        """Return one object of outputs per instance, as the export itself would give it.

        An InstanceError says that the server refuses an instance; if it refuses the request or cannot be reached, that
        is an InvalidValueError.
        """
        metadata = self._ask(f"{self._place}/metadata", None)
        try:
            signatures = metadata["metadata"]["signature_def"]["signature_def"]
            if signature not in signatures:
                raise InvalidValueError(
                    f"the signature {signature!r} is not in the model on {self._url}, which has "
                    f"{', '.join(sorted(signatures))}."
                )
            dtypes = {name: info["dtype"] for name, info in signatures[signature]["outputs"].items()}
            predictions: list[dict[str, Any]] = []
            for start in range(0, len(instances), _BATCH):
                batch = instances[start : start + _BATCH]
                answer = self._ask(
                    f"{self._place}:predict", {"signature_name": signature, "instances": batch}, first=start
                )
                predictions += [_as_exported(row, dtypes) for row in answer["predictions"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise self._strange() from error
        return predictions

    def _ask(self, url: str, content: Any, *, first: int = 0) -> Any:
        data = None if content is None else json.dumps(content).encode()
        try:
            request = urllib.request.Request(url, data, self._headers)
            with self._opener.open(request, timeout=_TIMEOUT_SECS) as response:
                body = response.read()
        except urllib.error.HTTPError as error:
            raise self._refusal(error, first) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(problem, OSError):
                problem = problem.strerror or problem
            raise InvalidValueError(f"the server {self._url} cannot be asked: {problem}.") from error
        try:
            return parse_json(body.decode())
        except ValueError as error:
            raise self._strange() from error

    def _refusal(self, error: urllib.error.HTTPError, first: int) -> InvalidValueError:
        """Return the error for an answer that is one, with the server's own sentence."""
        with error:
            try:
                message = parse_json(error.read(100_000).decode())["error"]
            except (ValueError, OSError, KeyError, TypeError, http.client.HTTPException):
                message = error.reason
        match = _INSTANCE.fullmatch(str(message))
        if match:
            return InstanceError(match[2], index=first + int(match[1]))
        return InvalidValueError(f"the server {self._url} answers with status {error.code}: {message}")

    def _strange(self) -> InvalidValueError:
        return InvalidValueError(f"the server {self._url} does not answer as TensorFlow Serving does.")


def _as_exported(row: Any, dtypes: Mapping[str, str]) -> dict[str, Any]:
    """Return a prediction as the export gives it, with the name of a single output and all digits of a float32."""
    if len(dtypes) == 1:
        row = {next(iter(dtypes)): row}
    return {name: _value(value, dtypes[name]) for name, value in row.items()}


def _value(value: Any, dtype: str) -> Any:
    if isinstance(value, list):
        return [_value(item, dtype) for item in value]
    if dtype == "DT_FLOAT":
        return float(np.float32(value))
    if isinstance(value, dict):
        return base64.b64decode(value["b64"]).decode(errors="replace")
    return value


def _read_token(path: str) -> str:
    try:
        lines = files.read_text(path).split()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"the token file {path} cannot be read: {files.reason(error)}.") from error
    if not lines:
        raise InvalidValueError(f"the token file {path} has no token; write one a line.")
    if not lines[0].isascii() or not lines[0].isprintable():
        raise InvalidValueError(f"the token file {path} has {shortened(lines[0][:8])}…, which is no token.")
    return lines[0]
