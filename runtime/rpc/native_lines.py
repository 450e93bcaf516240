"""What C libraries write to a node's standard error: captured, and logged in the log's format.

Owns the descriptor and the interpretation of gRPC's lines. gRPC reports a failed TLS handshake only on
standard error; its trace of handshakes, which `cli.__main__` enables before gRPC is imported, also names the
peer. It costs some lines per connection and none per call. Does not suppress repetitions: `refused_callers`
does. Other lines are passed on unchanged.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import re
import sys
import threading

from metaquorum.runtime.rpc.refused_callers import RefusedCallers
from metaquorum.runtime.tls.problems import handshake_problem

_log = logging.getLogger(__name__)

_GRPC = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ ([\w./-]+):\d+\] (.*)$")
_TRACES = frozenset({"handshaker.cc", "channel_trace.h", "ssl_transport_security.cc"})
_FAILED = re.compile(r"^CallNextHandshakerLocked: error=(?!OK )(.*)$")
_ARGUMENTS = re.compile(r" shutdown=\w+ index=\d+, args=\{(.*)$")
_CONTINUED = re.compile(r"^(=== Source Location Trace: ===|src/core/\S+:\d+|)\s*$")
_PEER = re.compile(r"endpoint_peer_address=(?:ipv[46]|unix):([^,}]+)")
_OF_A_CLIENT = "grpc.server_uri="
_SSL_ERROR = re.compile(r"SSL_ERROR_SSL: error:\w+:[^:]*:[^:]*:(\w+): ?(.*?)(?:: OK)?$")
_PREAMBLE = "All log messages before absl::InitializeLog()"


def handshake_text(error: str) -> str | None:
    """The meaning of gRPC's error in a server's handshake; None if it is not a mistake, such as a check
    whether the port is open."""
    if "missing selected ALPN property" in error:
        return "it does not offer HTTP/2 (h2 by ALPN)"
    found = _SSL_ERROR.search(error)
    if found is None:
        return None
    return handshake_problem(found[1], found[2])


class NativeLines:
    """Takes one line at a time. The arguments that name the peer follow an error, often some lines later;
    gRPC writes both at once, so that no unrelated line is in between."""

    def __init__(self, refused: RefusedCallers) -> None:
        self._refused = refused
        self._error: str | None = None

    def take(self, line: str) -> None:
        grpc_line = _GRPC.match(line)
        if grpc_line is None:
            if self._error is not None and _ARGUMENTS.match(line):
                self._failed(self._error, line)
                self._error = None
            elif not _CONTINUED.match(line) and _PREAMBLE not in line:
                _log.warning("standard error: %s", line)
            return
        source, text = grpc_line[1], grpc_line[2]
        if source not in _TRACES:
            _log.debug("gRPC: %s", text)
            return
        failed = _FAILED.match(text)
        self._error = failed[1] if failed else None
        if failed and _ARGUMENTS.search(text):
            self._failed(text, text)

    def _failed(self, error: str, arguments: str) -> None:
        """Logs a failed handshake of a server; `runtime.rpc.reach` covers this node's own attempts to
        connect."""
        problem = None if _OF_A_CLIENT in arguments else handshake_text(error)
        peer = _PEER.search(arguments)
        if problem is not None and peer is not None:
            self._refused.tell(peer[1], "TLS handshake with {peer} failed: " + problem)


def take_native_lines(refused: RefusedCallers) -> None:
    """Captures everything written to descriptor 2; `sys.stderr` still writes to the original destination.
    Does nothing if standard error is already captured, as in a test."""
    if sys.stderr is not sys.__stderr__:
        return
    own = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    raw = os.fdopen(own, "wb", buffering=0)
    sys.stderr = io.TextIOWrapper(raw, write_through=True, errors="backslashreplace")
    faulthandler.enable(own)
    native = NativeLines(refused)

    def read() -> None:
        with os.fdopen(reading, errors="replace") as lines:
            for line in lines:
                native.take(line.rstrip("\n"))

    threading.Thread(target=read, name="native-lines", daemon=True).start()
