"""Command ``estimator serve``: answer requests with exports."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import TYPE_CHECKING

from torch_estimator.cli.registry_options import ENVIRONMENT
from torch_estimator.errors import InvalidValueError

if TYPE_CHECKING:
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
    ("--body-secs", float, 30.0, "SECS", "time that a client has to send a request; a slower one gets status 408"),
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
        help="a model and its export, or its directory of numbered exports; with --registry also the NAME of one of "
        "its models, and then only those that are named; may be repeated",
    )
    parser.add_argument("--registry", metavar="DIR", help=f"serve all models of this registry; default: ${ENVIRONMENT}")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file of settings; those of the command line come first; its models are read again when it changes",
    )
    parser.add_argument(
        "--versions", default="latest", metavar="POLICY", help="latest, latest(N), all, or versions such as 1,3"
    )
    parser.add_argument("--host", help="address to listen on (default: this machine only)")
    for flag, kind, default, metavar, text in _NUMBERS:
        parser.add_argument(flag, type=kind, metavar=metavar, help=f"{text} (default: {default})")
    parser.add_argument(
        "--grpc-port", type=int, metavar="PORT", help="also answer gRPC at this port; 0 takes a free one"
    )
    parser.add_argument(
        "--tf-serving-grpc-port", type=int, metavar="PORT", help="also answer TensorFlow Serving's gRPC at this port"
    )
    parser.add_argument(
        "--min-nodes", type=int, metavar="N", help="let the number of processes follow the load, from N, which may be 0"
    )
    parser.add_argument("--max-nodes", type=int, metavar="N", help="the same, up to N (default: one per core)")
    parser.add_argument("--token-file", metavar="FILE", help="bearer tokens that requests need, one a line")
    parser.add_argument("--tls-certificate", metavar="FILE", help="PEM file of the certificate")
    parser.add_argument("--tls-key", metavar="FILE", help="PEM file of its key")
    parser.add_argument(
        "--ignore-unknown",
        action="store_true",
        default=None,
        help="leave names that a model does not read out of requests, in place of status 400",
    )
    parser.add_argument("--console", metavar="URL", help="address of a console, to which the page links")
    parser.add_argument(
        "--cors-origins",
        metavar="URL,...",
        help="web pages that may ask from a browser, such as https://page.example; * stands for all (default: none)",
    )
    parser.add_argument("--access-log", metavar="FILE", help="one line of JSON a request; - is stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Serve until the command is stopped."""
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InvalidValueError("serving needs more packages: pip install 'torch-estimator[serve]'.") from error
    from torch_estimator.serving.reload import Command
    from torch_estimator.serving.worker import serve
    from torch_estimator.web.connection import listen

    command, settings = Command.read({**vars(options), "default_registry": os.environ.get(ENVIRONMENT)})
    # uvicorn raises SIGTERM once more when it has answered everything, which would be reported as a failure.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    reserved = []
    for name in ("grpc_port", "tf_serving_grpc_port") if settings.grpc_ports else ():
        from torch_estimator.serving.grpc_server import reserve_port

        settings, port_kept = reserve_port(settings, name)
        reserved.append(port_kept)
    listener = listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    address = f"{host}:{port}"
    scheme = "https" if settings.tls_certificate else "http"
    names = ", ".join(model.name for model in settings.models)
    rpc = "".join(f" and gRPC at {host}:{port}" for port in sorted(settings.grpc_ports))
    if settings.serves_whole_registry:
        names += f"{' and ' if names else ''}the models of {settings.registry}"

    where = f"Serving {names} at {scheme}://{address}{rpc}"
    if settings.follows_load or settings.workers > 1:
        from torch_estimator.serving.access_log import AccessLog
        from torch_estimator.serving.catalog import checked_sources
        from torch_estimator.serving.nodes import run_in_parent

        # With no process at first, a wrong directory would otherwise be noticed by the first request.
        checked_sources(settings.models, settings.registry)
        AccessLog(settings.access_log).close()
        least, most = settings.least_nodes, settings.most_nodes
        count = f"{most}" if least == most else f"{least} to {most}"
        run_in_parent(settings, command, listener, f"{where} with {count} processes (Ctrl-C ends it).")
    watch = command.watch(settings.poll_secs)
    watch.wake_on_sighup()
    serve(
        settings,
        listener,
        lambda: print(f"{where} (Ctrl-C ends it).", flush=True),
        follow=lambda service: watch.start(lambda: command.apply_again(service)),
    )
