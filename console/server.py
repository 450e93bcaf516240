"""Runs the console: opens the port, computes the strip in the background, serves until Ctrl-C."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator

import uvicorn

from metaquorum.console.app import application
from metaquorum.console.moments import Moments
from metaquorum.console.strip import Strip
from metaquorum.console.views import Views
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.log import MetadataLog

HOST = "127.0.0.1"
FOLLOW_S = 1.0
"""How often a log is looked at for new records."""
_REST = 3
"""After the strip was computed, the pause lasts this many times as long."""


class Console:
    """The console of one log, with its port open. `url` has the token."""

    def __init__(self, log: MetadataLog, words: tuple[str, ...], *, port: int, memory_bytes: int) -> None:
        """`words` are the paths as given. Raises InspectError if the port is in use."""
        self._socket = _listening(port)
        self._port: int = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(24)
        self.url = f"http://{HOST}:{self._port}/?token={token}"
        self._strip = Strip(Moments(log, memory_bytes))
        views = Views(self._strip, words)
        app = application(views, token=token, port=self._port)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)

    def serve(self, refresh: Callable[[], object] | None = None) -> None:
        """Serves until Ctrl-C or SIGTERM. `refresh` brings the copy of a running cluster's log up to date."""
        with self._background(refresh):
            self._server.run(sockets=[self._socket])

    @contextlib.contextmanager
    def _background(self, refresh: Callable[[], object] | None) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(ended, refresh), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            self._strip.stop()
            thread.join(timeout=5)

    def _follow(self, ended: threading.Event, refresh: Callable[[], object] | None) -> None:
        """Computes the strip, and again whenever the log has grown."""
        while not ended.is_set():
            began = time.monotonic()
            self._strip.follow(refresh)
            ended.wait(max(FOLLOW_S, _REST * (time.monotonic() - began)))


def _listening(port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((HOST, port))
        opened.listen(128)
    except OSError as error:
        opened.close()
        raise InspectError(
            f"port {port} of {HOST} cannot be used ({(error.strerror or str(error)).lower()});"
            " give another one with --port, or leave it out"
        ) from None
    return opened
