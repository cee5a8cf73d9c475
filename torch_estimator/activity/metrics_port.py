"""A port at which Prometheus gets the state of all roles of a training, as `estimator status` prints it.

The chief opens it while it trains, where an environment variable asks for it. It reads the files of the roles when it
is asked, and does nothing else.
"""

from __future__ import annotations

import contextlib
import http.server
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

from torch_estimator import files
from torch_estimator.activity.status import prometheus_text, role_statuses
from torch_estimator.activity.timeline import TimelineReader
from torch_estimator.cluster.addresses import split_address
from torch_estimator.errors import InvalidValueError

METRICS_PORT = "TORCH_ESTIMATOR_METRICS_PORT"
"""Environment variable: the port, or ``HOST:PORT`` to listen elsewhere than on loopback."""

_STALE_SECS = 120.0
_POLL_SECS = 0.1
_MOST_SECS_TO_ASK = 10.0

logger = logging.getLogger("torch_estimator")


def check_free(given: str, name: str) -> None:
    """Raise an InvalidValueError unless the port that an option was given can be listened on."""
    try:
        _Server(_address(given, name), http.server.BaseHTTPRequestHandler).server_close()
    except OSError as error:
        raise InvalidValueError(f"{name} {given} cannot be used: {files.reason(error)}; name another.") from error


@contextlib.contextmanager
def metrics_served(given: str, model_dir: str) -> Iterator[None]:
    """Serve the metrics of a model directory in the body. A port that is in use is no reason not to train."""
    reader, lock = TimelineReader(model_dir), threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = _MOST_SECS_TO_ASK

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "The metrics are at /metrics")
                return
            with lock:
                runs = reader.runs()
            data = prometheus_text(role_statuses(runs, time.time(), _STALE_SECS)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: a scrape every few seconds is no news."""

    try:
        server = _Server(_address(given, METRICS_PORT), Handler)
    except OSError as error:
        logger.warning(
            "The metrics are not served, since port %s (%s) cannot be used: %s; name another.",
            given,
            METRICS_PORT,
            files.reason(error),
        )
        yield
        return
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECS,), name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _address(given: str, name: str) -> tuple[str, int]:
    try:
        return split_address(given if ":" in given else f"127.0.0.1:{given}", name)
    except InvalidValueError:
        raise InvalidValueError(
            f"{name} must be a port from 1 to 65535, or HOST:PORT, but got {given!r}; give 9100, for example."
        ) from None


# Python's HTTP server asks DNS for the machine's name at its start, which may take long.
class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    # Requests that are answered slowly do not delay the end of a training.
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[socketserver.BaseRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Leave out tracebacks of connections that break."""
        logger.debug("A request for metrics has failed.", exc_info=True)
