"""Settings of the server. They are plain values, so that the parent process can hand them to its workers as JSON."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from torch_estimator.errors import InvalidValueError
from torch_estimator.runs.state_file import dataclass_from_json
from torch_estimator.web.addresses import checked_address

# Browsers name an origin in lower case, and without a path.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s,A-Z*]+")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPolicy:
    """Which versions of a model are loaded: `all`, or else those in `specific`, or else the `latest` newest ones."""

    latest: int = 1
    specific: tuple[int, ...] = ()
    all: bool = False

    def __post_init__(self) -> None:
        if self.latest < 1:
            raise InvalidValueError(f"the policy latest({self.latest}) would load no version; give at least 1.")

    def __str__(self) -> str:
        return "all" if self.all else ",".join(map(str, self.specific)) or f"latest({self.latest})"

    @classmethod
    def parse(cls, text: str) -> VersionPolicy:
        """Return the policy that a command line names; raise an InvalidValueError if it is none.

        >>> VersionPolicy.parse("latest(2)").latest
        2
        >>> VersionPolicy.parse("1,7").specific
        (1, 7)
        """
        if text == "all":
            return cls(all=True)
        if match := re.fullmatch(r"latest(?:\((\d{1,9})\))?", text):
            return cls(latest=int(match[1] or 1))
        if re.fullmatch(r"v?\d{1,18}(,v?\d{1,18})*", text):
            return cls(specific=tuple(int(part.removeprefix("v")) for part in text.split(",")))
        raise InvalidValueError(f"{text!r} is no version policy; give latest, latest(N), all, or versions such as 1,3.")

    def chosen(self, versions: list[int]) -> list[int]:
        """Return which of the versions to load, ascending."""
        if self.all:
            return sorted(versions)
        if self.specific:
            return sorted(set(self.specific).intersection(versions))
        return sorted(versions)[-self.latest :]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model to serve, with its name in URLs.

    `path` is a directory of numbered exports, or one export, or None for a model of the registry. `labels` are names of
    versions, which are loaded besides those of the policy. `place` is the beginning of a sentence about this model, if
    it is in a file: the file and the line.
    """

    name: str
    path: str | None = None
    policy: VersionPolicy = field(default_factory=VersionPolicy)
    labels: Mapping[str, int] = field(default_factory=dict)
    place: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for kind, name in (("model name", self.name), *(("label", label) for label in self.labels)):
            if not _NAME.fullmatch(name):
                raise InvalidValueError(
                    f"the {kind} {name!r} may have letters, digits, '_', '-' and '.' only; it is part of URLs."
                )
        if self.labels and self.path is None:
            raise InvalidValueError(
                f"the labels of the model {self.name!r} are in its registry: use 'estimator versions update'."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Settings of a server, which the help of ``estimator serve`` describes as options with the same names.

    `models` without a path are models of the registry; all of the registry's models are served, unless `models` names
    some of them, and `policy` is for those that it does not name. Every `poll_secs` the server looks for new versions
    and a changed default. If the number of processes follows the load, the last one ends after `idle_secs` without a
    request; one for ``/metrics`` or for the health counts, too.
    """

    models: tuple[ServedModel, ...] = ()
    registry: str | None = None
    policy: VersionPolicy = field(default_factory=VersionPolicy)
    host: str = "127.0.0.1"
    port: int = 8501
    grpc_port: int | None = None
    tf_serving_grpc_port: int | None = None
    workers: int = 1
    min_nodes: int | None = None
    max_nodes: int | None = None
    idle_secs: float = 300.0
    max_batch: int = 64
    max_delay_ms: float = 0.0
    max_queue: int = 4096
    timeout_secs: float = 30.0
    max_body_mb: float = 64.0
    body_secs: float = 30.0
    drain_secs: float = 30.0
    poll_secs: float = 0.5
    threads: int = 0
    token_file: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    cors_origins: str | None = None
    access_log: str | None = None
    console: str | None = None
    ignore_unknown: bool = False

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("max_batch", 1), ("max_queue", 1), ("threads", 0), ("max_delay_ms", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise InvalidValueError(f"{name} must be at least {least} and finite, but got {getattr(self, name)}.")
        for name in ("timeout_secs", "max_body_mb", "body_secs", "drain_secs", "poll_secs", "idle_secs"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidValueError(f"{name} must be positive and finite, but got {getattr(self, name)}.")
        for name in ("port", "grpc_port", "tf_serving_grpc_port"):
            if not 0 <= (getattr(self, name) or 0) < 2**16:
                raise InvalidValueError(f"{name} must be from 0 to 65535, but got {getattr(self, name)}.")
        if not self.host.strip("[]"):
            raise InvalidValueError(f"host must be an address to listen on, such as 127.0.0.1, but got {self.host!r}.")
        if self.port and self.port in self.grpc_ports:
            raise InvalidValueError(f"REST and gRPC need ports of their own, but both got {self.port}.")
        if self.console is not None:
            checked_address("console", self.console)
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise InvalidValueError(
                    f"cors_origins must be origins such as https://page.example:8080, with commas between them, or *, "
                    f"but got {origin!r}."
                )
        self._check_nodes()
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidValueError("TLS needs both a certificate and a key; give both or neither.")
        if not self.models and self.registry is None:
            raise InvalidValueError("there is nothing to serve: name a model, a registry, or a file of settings.")
        # Names in URLs do not depend on case.
        names = [model.name.lower() for model in self.models]
        for model in self.models:
            if names.count(model.name.lower()) > 1:
                raise InvalidValueError(
                    f"{model.place}the model name {model.name!r} is given twice; each model needs its own name."
                )
            if model.path is None and self.registry is None:
                raise InvalidValueError(
                    f"{model.place}the model {model.name!r} has no directory; give it one, or name a registry that has "
                    "the model."
                )

    @property
    def serves_whole_registry(self) -> bool:
        """Whether all models of the registry are served."""
        return self.registry is not None and all(model.path is not None for model in self.models)

    def _check_nodes(self) -> None:
        least, most = self.least_nodes, self.most_nodes
        if least < 0 or most < 1:
            raise InvalidValueError(
                f"min_nodes must be at least 0 and max_nodes at least 1, but got {least} and {most}."
            )
        if least > most:
            raise InvalidValueError(f"min_nodes must be at most max_nodes, but got {least} and {most}.")
        if self.follows_load and self.workers != 1:
            raise InvalidValueError(
                "workers is a fixed number of processes, and min_nodes and max_nodes let it follow the load; "
                "give one or the other."
            )
        if least == 0 and self.grpc_ports:
            raise InvalidValueError(
                "with min_nodes=0 no process is there to answer the first call over gRPC; set min_nodes to at least 1, "
                "or leave gRPC out."
            )

    @property
    def most_body_bytes(self) -> int:
        """Largest size of a request's body in bytes."""
        return int(self.max_body_mb * 2**20)

    @property
    def grpc_ports(self) -> set[int]:
        """Ports of gRPC; each of them answers all of its services."""
        return {port for port in (self.grpc_port, self.tf_serving_grpc_port) if port is not None}

    @property
    def allowed_origins(self) -> list[str]:
        """Origins of web pages that may ask the server from a browser."""
        return [] if self.cors_origins is None else [one.strip() for one in self.cors_origins.split(",")]

    @property
    def follows_load(self) -> bool:
        """Whether the number of processes follows the load."""
        return self.min_nodes is not None or self.max_nodes is not None

    @property
    def least_nodes(self) -> int:
        """Least number of processes that serve."""
        return (self.min_nodes or 0) if self.follows_load else self.workers

    @property
    def most_nodes(self) -> int:
        """Largest number of processes that serve: as many as there are cores if only the least number is given."""
        if not self.follows_load:
            return self.workers
        return max(self.least_nodes, _cores()) if self.max_nodes is None else self.max_nodes

    @property
    def session_threads(self) -> int:
        """Threads of one onnxruntime session."""
        return self.threads or max(1, _cores() // self.most_nodes)

    def to_json(self) -> str:
        """Return the settings as JSON for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServingOptions:
        """Return the settings in a text that `to_json` made."""
        return dataclass_from_json(cls, json.loads(text))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
