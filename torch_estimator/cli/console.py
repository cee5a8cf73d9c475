"""Command ``estimator console``: show jobs, their roles, logs and curves in a browser."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import TYPE_CHECKING

from torch_estimator.errors import InvalidValueError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("console", help="show jobs, their roles, logs and curves in a browser")
    parser.add_argument(
        "--jobs", metavar="DIR", help="directory or URL of all jobs (default: $TORCH_ESTIMATOR_JOBS, else jobs)"
    )
    parser.add_argument("--logdir", metavar="DIR", help="directory or URL with event files for TensorBoard below it")
    parser.add_argument(
        "--registry", metavar="DIR", help="directory or URL of the registry; default: $TORCH_ESTIMATOR_REGISTRY"
    )
    parser.add_argument(
        "--server", metavar="URL", help="server of the registry's models; its requests are shown beside the versions"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument(
        "--port", type=int, default=8600, metavar="PORT", help="port; 0 takes a free one (default: 8600)"
    )
    parser.add_argument("--token-file", metavar="FILE", help="tokens that visitors need, one a line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Show until the command is stopped."""
    try:
        import jinja2  # noqa: F401
        import orjson  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InvalidValueError("the console needs more packages: pip install 'torch-estimator[console]'.") from error
    from torch_estimator import files
    from torch_estimator.cli.registry_options import ENVIRONMENT
    from torch_estimator.console.app import make_app, serve
    from torch_estimator.console.sources import Sources, problem_of
    from torch_estimator.jobs.directory import jobs_directory
    from torch_estimator.web.connection import listen

    # The default may not exist where there is only a directory of event files.
    jobs: str | None = jobs_directory(options.jobs)
    if options.jobs is None and options.logdir is not None and problem_of(jobs, "--jobs"):
        jobs = None
    logdir = None if options.logdir is None else files.as_url(options.logdir)
    sources = Sources(jobs, logdir, options.registry or os.environ.get(ENVIRONMENT), _server(options.server))
    app = make_app(sources, host=options.host, token_file=options.token_file)
    for problem in filter(None, (*sources.problems(), problem_of(sources.registry, "--registry"))):
        print(f"estimator: {problem}", file=sys.stderr)
    listener = listen(options.host, options.port)
    host, port = listener.getsockname()[:2]
    where = " and ".join(filter(None, (jobs, logdir)))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    print(f"Showing {where} at http://{address} (Ctrl-C ends it).", flush=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    serve(app, listener)


def _server(given: str | None) -> str | None:
    """Return the address of a server without a slash at its end."""
    from torch_estimator.web.addresses import checked_address

    return None if given is None else checked_address("--server", given)
