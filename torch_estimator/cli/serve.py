"""Command ``estimator serve``: answer requests with exports."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_estimator.errors import InvalidValueError

if TYPE_CHECKING:
    from torch_estimator.serving.options import ServedModel, ServingOptions

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_NUMBERS = (
    ("--port", int, 8501, "PORT", "port of REST; 0 takes a free one"),
    ("--workers", int, 1, "N", "processes that serve"),
    ("--idle-secs", float, 300.0, "SECS", "with --min-nodes or --max-nodes: time until a process without work ends"),
    ("--max-batch", int, 64, "N", "most instances of small requests that are run together"),
    ("--max-delay-ms", float, 0.0, "MS", "time that a request waits for others; 0 runs at once what has arrived"),
    ("--max-queue", int, 4096, "N", "most instances that may wait; more get status 429"),
    ("--timeout-secs", float, 30.0, "SECS", "time after which a waiting request gets status 504"),
    ("--max-body-mb", float, 64.0, "MIB", "largest request body; a larger one gets status 413"),
    ("--drain-secs", float, 30.0, "SECS", "time that running requests have after SIGTERM"),
    ("--threads", int, 0, "N", "threads of onnxruntime in a process; 0 divides the cores"),
)


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("serve", help="answer requests with exports, over REST and gRPC")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="a model and its export, or its directory of numbered exports; may be repeated",
    )
    parser.add_argument("--registry", metavar="DIR", help="serve the models of this registry")
    parser.add_argument("--config", metavar="FILE", help="YAML file with the settings of the models")
    parser.add_argument(
        "--versions", default="latest", metavar="POLICY", help="latest, latest(N), all, or versions such as 1,3"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    for flag, kind, default, metavar, text in _NUMBERS:
        parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=f"{text} (default: {default})")
    parser.add_argument(
        "--min-nodes", type=int, metavar="N", help="let the number of processes follow the load, from N, which may be 0"
    )
    parser.add_argument("--max-nodes", type=int, metavar="N", help="the same, up to N (default: one per core)")
    parser.add_argument("--token-file", metavar="FILE", help="bearer tokens that requests need, one a line")
    parser.add_argument("--tls-certificate", metavar="FILE", help="PEM file of the certificate")
    parser.add_argument("--tls-key", metavar="FILE", help="PEM file of its key")
    parser.add_argument("--access-log", metavar="FILE", help="one line of JSON a request; - is stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Serve until the command is stopped."""
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InvalidValueError("serving needs more packages: pip install 'torch-estimator[serve]'.") from error
    from torch_estimator.serving.worker import listen, serve

    settings = _settings(options)
    listener = listen(settings)
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.tls_certificate else "http"
    names = ", ".join(model.name for model in settings.models)

    where = f"Serving {names} at {scheme}://{host}:{port}"
    if settings.follows_load or settings.workers > 1:
        from torch_estimator.serving.catalog import sources
        from torch_estimator.serving.nodes import run_in_parent

        # With no process at first, a wrong directory would otherwise be noticed by the first request.
        sources(settings.models, settings.registry)
        least, most = settings.least_nodes, settings.most_nodes
        count = f"{most}" if least == most else f"{least} to {most}"
        run_in_parent(settings, listener, f"{where} with {count} processes (Ctrl-C ends it).")
    serve(settings, listener, lambda: print(f"{where} (Ctrl-C ends it).", flush=True))


def _settings(options: argparse.Namespace) -> ServingOptions:
    """Return the settings that the command line gives."""
    from torch_estimator.serving.options import ServingOptions, VersionPolicy

    policy = VersionPolicy.parse(options.versions)
    names = ("registry", "host", "token_file", "tls_certificate", "tls_key", "access_log", "min_nodes", "max_nodes")
    numbers = (flag.removeprefix("--").replace("-", "_") for flag, *_ in _NUMBERS)
    return ServingOptions(
        models=tuple(_model(text, policy) for text in options.model),
        **{name: getattr(options, name) for name in (*names, *numbers)},
    )


def _model(text: str, policy: object) -> ServedModel:
    from torch_estimator.serving.options import ServedModel

    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise InvalidValueError(f"--model takes NAME=DIR, such as census=runs/census/export/census, but got {text!r}.")
    return ServedModel(name=name, path=path, policy=policy)  # type: ignore[arg-type]
