"""A process that serves: loads the models and runs uvicorn on a socket."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
import sys
from collections.abc import Callable

import uvicorn

from torch_estimator.errors import InvalidValueError, UserError, printable
from torch_estimator.serving.app import ServingApp
from torch_estimator.serving.connection import Connection
from torch_estimator.serving.options import ServingOptions
from torch_estimator.serving.service import PredictionService

logger = logging.getLogger("torch_estimator")

_BACKLOG = 4096


def listen(options: ServingOptions) -> socket.socket:
    """Return a socket that listens on the address of the settings.

    Raises:
        InvalidValueError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise InvalidValueError(
            f"the server cannot listen on {options.host}, port {options.port}: {error}; choose another --port."
        ) from error
    listener.listen(_BACKLOG)
    return listener


def serve(options: ServingOptions, listener: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer what has arrived, and return.

    Args:
        options: The settings.
        listener: A socket that listens.
        ready: Called when the models are loaded.

    Raises:
        UserError: A model cannot be served at all.
    """
    _allow_many_connections()
    _check_certificate(options)
    service = PredictionService(options)
    app = ServingApp(service)
    config = uvicorn.Config(
        app,
        http=Connection.with_limit(options.body_secs),
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        backlog=_BACKLOG,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(max(1, options.drain_secs)),
        ssl_certfile=options.tls_certificate,
        ssl_keyfile=options.tls_key,
    )
    service.start()
    try:
        server = uvicorn.Server(config)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            if options.grpc_port is not None:
                runner.run(_serve_both(server, app, listener, ready))
            else:
                ready()
                runner.run(server.serve(sockets=[listener]))
    finally:
        service.close()


def _check_certificate(options: ServingOptions) -> None:
    """Check that the certificate and the key can be used.

    Raises:
        InvalidValueError: They cannot.
    """
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


async def _serve_both(
    server: uvicorn.Server, app: ServingApp, listener: socket.socket, ready: Callable[[], None]
) -> None:
    """Serve REST and gRPC until the end of the server."""
    # Without gRPC this module is not needed, and it takes time and memory.
    from torch_estimator.serving.grpc_server import GrpcServer

    rpc = GrpcServer(app)
    await rpc.start()
    ready()
    # uvicorn raises the signal again when it has ended, which would end the process before gRPC has answered. Its
    # handlers around both take that signal, and raise it when both have ended.
    with server.capture_signals():
        async with asyncio.TaskGroup() as both:
            both.create_task(rpc.stop_after(lambda: server.should_exit))
            both.create_task(server.serve(sockets=[listener]))


def _allow_many_connections() -> None:
    """Raise the limit of open files to what the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: list[str]) -> int:
    """Serve on an inherited socket; the parent passes its number, and the settings as JSON.

    Args:
        arguments: The number of the socket, the number of a pipe that gets a line when the models are loaded, and the
            settings.
    """
    descriptor, pipe, text = arguments
    listener = socket.socket(fileno=int(descriptor))

    def ready() -> None:
        os.write(int(pipe), b"ready\n")
        os.close(int(pipe))

    try:
        serve(ServingOptions.from_json(text), listener, ready)
    except UserError as error:
        print(f"estimator: error: {printable(str(error))}", file=sys.stderr)
        return UserError.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
