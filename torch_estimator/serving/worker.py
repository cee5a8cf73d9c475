"""A process that serves: loads the models and runs uvicorn on a socket."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable

from prometheus_client import values
from starlette.middleware.cors import CORSMiddleware

from torch_estimator.errors import INTERRUPTED, InvalidValueError, UserError, printable
from torch_estimator.serving.app import ServingApp
from torch_estimator.serving.http_server import HttpServer, Place
from torch_estimator.serving.options import ServingOptions
from torch_estimator.serving.reload import Watch, content_of
from torch_estimator.serving.scoreboard import BOARD_FILE, SETTINGS_FILE, Scoreboard
from torch_estimator.serving.service import PredictionService
from torch_estimator.web.connection import server_config
from torch_estimator.web.http import Application

logger = logging.getLogger("torch_estimator")

_ALLOCATIONS_PER_COLLECTION = 50_000
"""Objects that are made before Python's garbage collector runs; by default 700, or 2,000 from Python 3.13 on."""


def serve(
    options: ServingOptions,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
    place: Place | None = None,
    follow: Callable[[PredictionService], None] = lambda service: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer what has arrived, close the listener, and return.

    `ready` is called when the models are loaded and connections are taken, and `follow` before, to follow changes of
    the settings; without other processes on the socket, `place` is None. A UserError says that a model cannot be served
    at all.
    """
    _allow_many_connections()
    _check_certificate(options)
    service = PredictionService(options)
    app = ServingApp(service)
    config = server_config(
        _for_browsers(app, options.allowed_origins),
        options.body_secs,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(max(1, options.drain_secs)),
        ssl_certfile=options.tls_certificate,
        ssl_keyfile=options.tls_key,
    )
    try:
        service.start()
        follow(service)
        _collect_garbage_less_often()
        server = HttpServer(config, listener, place, running=service.metrics.publish_running, ready=ready)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_serve_both(server, app) if options.grpc_ports else server.serve())
    finally:
        if service.close():
            _leave()


def _leave() -> None:
    """Exit at once if the process is to end: at its regular end, Python would wait for a graph that never ends."""
    error = sys.exc_info()[1]
    status = {type(None): 0, SystemExit: getattr(error, "code", 0), KeyboardInterrupt: INTERRUPTED}.get(type(error))
    if status is not None:
        logger.warning("The server ends, although a version is still being loaded or run.")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)


def _for_browsers(app: ServingApp, origins: list[str]) -> Application:
    """Return the application; if pages of other origins may ask it, with what their browsers ask for first."""
    if not origins:
        return app
    headers = ("Inference-Header-Content-Length", "Retry-After")
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=("GET", "HEAD", "POST"), allow_headers=("*",), expose_headers=headers
    )


def _check_certificate(options: ServingOptions) -> None:
    """Check that the certificate and the key can be used."""
    if options.tls_certificate is None:
        return
    try:
        # Without a password, OpenSSL would ask for that of an encrypted key at the terminal.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.tls_certificate, options.tls_key, password=b"")
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"the certificate {options.tls_certificate} with the key {options.tls_key} cannot be used: {error}."
        ) from error


async def _serve_both(server: HttpServer, app: ServingApp) -> None:
    """Serve REST and gRPC until the end of the server."""
    # Without gRPC this module is not needed, and it takes time and memory.
    from torch_estimator.serving.grpc_server import GrpcServer

    rpc = GrpcServer(app)
    await rpc.start()
    # uvicorn raises the signal again when it has ended, which would end the process before gRPC has answered. Its
    # handlers around both take that signal, and raise it when both have ended.
    with server.capture_signals():
        async with asyncio.TaskGroup() as both:
            both.create_task(rpc.stop_after(lambda: server.should_exit))
            both.create_task(server.serve())


def _collect_garbage_less_often() -> None:
    """Keep Python's collector away from the models and the modules, and from the lists of large requests.

    By default a full collection follows a few large requests, since each row of an answer is a list. It visits every
    object of the process, which takes a fifth of the CPU time of a request of 1,024 rows.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, 20, 20)


def _allow_many_connections() -> None:
    """Raise the limit of open files to what the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: list[str]) -> int:
    """Serve as one of several processes, which `torch_estimator.serving.nodes` starts.

    The arguments are the process id of the parent, the number of this node from 0, the inherited socket, a pipe that
    gets a line when the models are loaded or cannot be served, and the directory that the processes share.
    """
    parent, slot, descriptor, pipe = map(int, arguments[:4])
    directory = arguments[4]
    # Each node has a file of counters. It is named by the number of the node instead of the process, so that the next
    # process takes it over, and there are never more files than nodes.
    values.ValueClass = values.MultiProcessValue(lambda: slot)  # type: ignore[no-untyped-call]

    def ready() -> None:
        os.write(pipe, b"ready\n")
        os.close(pipe)

    # The parent follows the file of --config, and each node the settings that it makes of it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = os.path.join(directory, SETTINGS_FILE)
    place = Place(Scoreboard(os.path.join(directory, BOARD_FILE)), slot, parent)
    try:
        content = content_of(settings)
        options = ServingOptions.from_json(content)
        watch = Watch(settings, content, options.poll_secs)
        serve(
            options,
            socket.socket(fileno=descriptor),
            ready,
            place,
            follow=lambda service: watch.start(lambda: service.apply(ServingOptions.from_json(content_of(settings)))),
        )
    except UserError as error:
        os.write(pipe, f"{printable(str(error))}\n".encode())
        return UserError.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
