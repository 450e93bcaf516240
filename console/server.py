"""Runs the console: opens the port, computes strips in the background, serves until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import uvicorn

from metaquorum.console.app import application
from metaquorum.console.moments import Moments
from metaquorum.console.strip import Strip
from metaquorum.console.views import Asking, Views
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.log import MetadataLog

HOST = "127.0.0.1"
FOLLOW_S = 1.0
"""How often a log is looked at for new records."""
_REST = 3
"""After the strip was computed, the pause lasts this many times as long."""


class LogPage:
    """The views of one log, and the thread that computes its strip and follows it."""

    def __init__(
        self,
        log: MetadataLog,
        words: tuple[str, ...],
        memory_bytes: int,
        *,
        refresh: Callable[[], object] | None = None,
        groups: Asking | None = None,
        voters: Asking | None = None,
    ) -> None:
        """`words` are the paths as given. `refresh` brings the copy of a running cluster's log up to date;
        `groups` asks that cluster for its groups, `voters` for those of its quorum."""
        self._strip = Strip(Moments(log, memory_bytes))
        self._refresh = refresh
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.views = Views(self._strip, words, groups, voters)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, if it was started."""
        self._ended.set()
        self._strip.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def _follow(self) -> None:
        """Computes the strip, and again whenever the log has grown."""
        while not self._ended.is_set():
            began = time.monotonic()
            self._strip.follow(self._refresh)
            self._ended.wait(max(FOLLOW_S, _REST * (time.monotonic() - began)))


class Console:
    """A console with its port open. `url` has the token."""

    def __init__(self, make: Callable[[str, int], Any], port: int) -> None:
        """`make` returns the application for a token and a port. Raises InspectError if the port is in
        use."""
        self._socket = _listening(port)
        self._port: int = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(24)
        self.url = f"http://{HOST}:{self._port}/?token={token}"
        config = uvicorn.Config(
            make(token, self._port),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)

    def serve(self) -> None:
        """Serves until Ctrl-C or SIGTERM. Answers that are on their way then are cut off without a word: the
        stream of a page that is open always is."""
        serving = self._server.serve(sockets=[self._socket])
        logger = logging.getLogger("uvicorn.error")
        logger.addFilter(self._is_said)
        try:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                runner.run(serving)
        finally:
            logger.removeFilter(self._is_said)
            serving.close()  # Ctrl-C may come before it began, about which Python would print a warning

    def _is_said(self, record: logging.LogRecord) -> bool:
        return not self._server.should_exit


@contextlib.contextmanager
def log_console(page: LogPage, port: int) -> Iterator[Console]:
    """The console of one log, whose thread runs meanwhile."""
    made = Console(lambda token, bound: application(page.views, token=token, port=bound), port)
    page.start()
    try:
        yield made
    finally:
        page.stop()


@contextlib.contextmanager
def fleet_console(tables: str, logs: Mapping[str, Callable[[], LogPage]], port: int) -> Iterator[Console]:
    """The console of the tables of a fleet; `logs` open the logs that were given, by cluster."""
    from metaquorum.console.fleet import FleetViews
    from metaquorum.console.fleet_app import fleet_application

    started: list[LogPage] = []

    def opening(open_log: Callable[[], LogPage]) -> Callable[[], Views]:
        def views() -> Views:
            page = open_log()
            page.start()
            started.append(page)
            return page.views

        return views

    views = FleetViews(tables, logs)
    opened = {cluster: opening(open_log) for cluster, open_log in logs.items()}
    made = Console(lambda token, bound: fleet_application(views, opened, token=token, port=bound), port)
    try:
        yield made
    finally:
        for page in started:
            page.stop()


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
