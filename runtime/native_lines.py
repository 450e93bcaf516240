"""What C libraries write to a node's standard error: taken out of its log, and said in the log's own words.

Owns the descriptor and what gRPC's lines mean. Of a TLS handshake that failed gRPC tells nobody but standard
error, and does not say with whom: the process's sockets do, for a while. Other lines are passed on as they
are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection

import psutil

_log = logging.getLogger(__name__)

AGAIN_S = 10.0
"""A problem that was told is told again after so long, with how often it came; a client that tries again and
again must not fill the log."""

_GRPC = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ [\w./-]+:\d+\] (.*)$")
_HANDSHAKE = re.compile(r"Handshake failed with error SSL_ERROR_SSL: error:\w+:[^:]*:[^:]*:(\w+): ?(.*)")
_PREAMBLE = "All log messages before absl::InitializeLog()"
_OPEN = ("ESTABLISHED", "LISTEN")


def handshake_text(line: str) -> str | None:
    """What a line of gRPC's about a handshake means; None: it is about something else."""
    found = _HANDSHAKE.search(line)
    if found is None:
        return None
    reason, detail = found[1], found[2]
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it showed no certificate, and ssl.client.auth requires one"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"its certificate is not accepted: {detail}"
    if "ALERT" in reason:
        return f"it does not accept our certificate ({reason.split('ALERT_')[-1].replace('_', ' ').lower()})"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNEXPECTED_MESSAGE"):
        return "it does not speak TLS"
    if reason == "BAD_PACKET_LENGTH":
        # An alert that comes in the clear where the next part of the handshake was to come.
        return "it broke the handshake off: it may not accept our certificate"
    return reason.replace("_", " ").lower()


class Handshakes:
    """Says that a handshake failed: one line for a reason, and in AGAIN_S none that is the same."""

    def __init__(self, peers: Callable[[], set[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._peers = peers
        self._clock = clock
        self._known: set[str] = set()
        self._told: dict[str, tuple[float, int]] = {}

    def failed(self, problem: str) -> None:
        """With whom, is looked for among the connections that are not open any more since."""
        now_s = self._clock()
        told_s, more = self._told.get(problem, (now_s - AGAIN_S, 0))
        if now_s - told_s < AGAIN_S:
            self._told[problem] = told_s, more + 1
            return
        found = self._peers()
        new = sorted(found - self._known)
        self._known = found
        who = f" with {', '.join(new[-3:])}" if new else ""
        often = f" ({more} times more in the last {now_s - told_s:.0f} s)" if more else ""
        self._told[problem] = now_s, 0
        _log.warning("TLS handshake%s failed: %s%s", who, problem, often)


def closed_peers(ports: Collection[int]) -> set[str]:
    """Who had a connection to one of these ports that is closed, or about to be."""
    with contextlib.suppress(psutil.Error, OSError):
        return {
            f"{each.raddr.ip.removeprefix('::ffff:')}:{each.raddr.port}"
            for each in psutil.net_connections("tcp")
            if each.laddr.port in ports and each.raddr and each.status not in _OPEN
        }
    return set()


def take_native_lines(ports: Collection[int]) -> None:
    """From now on what is written to descriptor 2 comes here; `sys.stderr` writes where it wrote before.
    Nothing happens where somebody else has taken standard error already (a test)."""
    if sys.stderr is not sys.__stderr__:
        return
    own = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    raw = os.fdopen(own, "wb", buffering=0)
    sys.stderr = io.TextIOWrapper(raw, write_through=True, errors="backslashreplace")
    faulthandler.enable(own)
    handshakes = Handshakes(lambda: closed_peers(ports))

    def read() -> None:
        with os.fdopen(reading, errors="replace") as lines:
            for line in lines:
                _pass_on(line.rstrip("\n"), handshakes)

    threading.Thread(target=read, name="native-lines", daemon=True).start()


def _pass_on(line: str, handshakes: Handshakes) -> None:
    problem = handshake_text(line)
    if problem is not None:
        handshakes.failed(problem)
        return
    grpc_line = _GRPC.match(line)
    if grpc_line is not None:
        _log.debug("gRPC: %s", grpc_line[1])
    elif line.strip() and _PREAMBLE not in line:
        _log.warning("standard error: %s", line)
