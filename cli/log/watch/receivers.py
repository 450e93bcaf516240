"""Hands one report to a receiver: a webhook, or a command of this machine. Each attempt has a limit."""

from __future__ import annotations

import base64
import contextlib
import http.client
import shlex
import shutil
import socket
import subprocess
import threading
from typing import Protocol
from urllib.parse import unquote, urlsplit

from metaquorum.cli.log.watch.incidents import WatchIncident
from metaquorum.lines import one_line
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.tls import new_client_context

WEBHOOK_S = 10.0
"""How long a webhook may take for its answer, in seconds."""
COMMAND_S = 60.0
"""How long a command may run, in seconds; then it is killed."""


class NotReported(Exception):
    """A receiver did not take a report; the text says why."""


class Receiver(Protocol):
    """Who gets reports."""

    @property
    def name(self) -> str:
        """The receiver in messages, without secrets."""

    def report(self, incident: WatchIncident, body: bytes) -> str | None:
        """Hands over one report; returns what is worth a line. Raises NotReported."""


class Webhook:
    """A POST of JSON; any status of 200 to 299 takes the report. Redirects are not followed."""

    def __init__(self, url: str, *, limit_s: float = WEBHOOK_S) -> None:
        """Raises ValueError for what is no http or https URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("give a URL that begins with http:// or https://")
        if any(ord(each) <= 32 or ord(each) > 126 for each in url):
            raise ValueError("a URL has neither spaces nor letters beyond ASCII; percent-encode them")
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port or (443 if self._is_tls else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._limit_s = limit_s
        self._headers = {"Content-Type": "application/json", "User-Agent": "metaquorum"}
        if parts.username is not None:
            words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"

    @property
    def name(self) -> str:
        return f"{'https' if self._is_tls else 'http'}://{address_text(self._host, self._port)}"

    def report(self, incident: WatchIncident, body: bytes) -> str | None:
        connection = self._connection()
        is_late = threading.Event()
        watchdog = threading.Timer(self._limit_s, _cut, (connection, is_late))
        watchdog.daemon = True
        watchdog.start()
        try:
            connection.request("POST", self._target, body, self._headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            # What an answer that was cut off looks like says nothing.
            has_waited = is_late.is_set() or isinstance(error, TimeoutError)
            reason = f"no answer within {self._limit_s:g} s" if has_waited else _reason(error)
            raise NotReported(reason) from error
        finally:
            watchdog.cancel()
            connection.close()
        if not 200 <= status < 300:
            raise NotReported(f"it answers {status}")
        return None

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_tls:
            context = new_client_context()
            context.load_default_certs()
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._limit_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._limit_s)


def _cut(connection: http.client.HTTPConnection, is_late: threading.Event) -> None:
    """Ends a connection whose answer arrives byte by byte."""
    is_late.set()
    with contextlib.suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or one_line(error)


class Command:
    """A program, started for each report, which reads it from standard input. No shell sees its words, and
    nothing of a report is among them."""

    def __init__(self, line: str, *, limit_s: float = COMMAND_S) -> None:
        """`line` as in a shell, with quotes. Raises ValueError if it is none, or the program is missing."""
        self._words = shlex.split(line)
        if not self._words:
            raise ValueError("give a command")
        if shutil.which(self._words[0]) is None:
            raise ValueError(f"there is no program {self._words[0]!r} that can be started")
        self._limit_s = limit_s

    @property
    def name(self) -> str:
        return self._words[0]

    def report(self, incident: WatchIncident, body: bytes) -> str | None:
        try:
            ended = subprocess.run(
                self._words, input=body + b"\n", stdout=2, timeout=self._limit_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise NotReported(f"it ran for {self._limit_s:g} s and was killed") from error
        except OSError as error:
            raise NotReported(_reason(error)) from error
        if ended.returncode:
            raise NotReported(f"it ended with exit code {ended.returncode}")
        return "it ended with exit code 0"
