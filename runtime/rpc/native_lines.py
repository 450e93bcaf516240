"""What C libraries write to a node's standard error: taken out of its log, and said in the log's own words.

Owns the descriptor and what gRPC's lines mean. gRPC tells no one but standard error of a TLS handshake that
failed; its trace of handshakes (`cli.__main__` asks for it, before gRPC is imported) also says with whom. It
costs some lines for each connection and none for a call. Other lines are passed on as they are.
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
    """What gRPC's error of a server's handshake means; None: nothing that anyone did wrong, for example a
    look whether the port is open."""
    if "missing selected ALPN property" in error:
        return "it does not offer HTTP/2 (h2 by ALPN)"
    found = _SSL_ERROR.search(error)
    if found is None:
        return None
    return handshake_problem(found[1], found[2])


class NativeLines:
    """Takes line after line. An error is followed, often some lines later, by the arguments that name the
    peer; gRPC writes both at once, so that no other line comes between."""

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
        """Of its own attempts to connect a node says more elsewhere (`runtime.rpc.reach`)."""
        problem = None if _OF_A_CLIENT in arguments else handshake_text(error)
        peer = _PEER.search(arguments)
        if problem is not None and peer is not None:
            self._refused.tell(peer[1], "TLS handshake with {peer} failed: " + problem)


def take_native_lines(refused: RefusedCallers) -> None:
    """From now on what is written to descriptor 2 comes here; `sys.stderr` writes where it wrote before.
    Nothing happens where someone else has taken standard error already (a test)."""
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
