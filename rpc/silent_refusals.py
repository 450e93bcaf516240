"""Callers that gRPC refuses without a word to us: failed TLS handshakes, and clients of other protocols.

A failed handshake is reported only on standard error, which is captured here; the trace of handshakes,
which `cli.__main__` enables before gRPC is imported, also names the peer. It costs some lines per
connection and none per call. Other lines are passed on unchanged.

On a listener without TLS, a connection that does not speak HTTP/2 (TLS, or Kafka's protocol) is closed
without a line. But Linux reports every TCP connection that ends (sock_diag(7), shown by `ss --events`),
with the number of bytes received and sent. HTTP/2 servers acknowledge a caller's settings before anything
else, so a connection that received bytes and sent only this server's settings did not speak HTTP/2, unless
its client died at once. On other systems, and if the kernel refuses the subscription, nothing is logged.
"""

from __future__ import annotations

import faulthandler
import io
import ipaddress
import logging
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Collection

from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.network.tls import handshake_problem
from metaquorum.platforms import netlink_socket

_log = logging.getLogger(__name__)

GREETING_MAX = 54
"""The most bytes sent to a caller that does not speak HTTP/2. This server's settings are 46 bytes; with the
acknowledgement of the caller's settings they are at least 55."""

KAFKA_MIN, KAFKA_MAX = 24, 128
"""Bytes of the first request (ApiVersions) of a node or client of Kafka, which waits for the answer. A TLS
client's first message has more."""

_NETLINK_SOCK_DIAG = 4
_TCP_ENDED = 1 << 0 | 1 << 2  # SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY
_MESSAGE = struct.Struct("=IHHII")  # nlmsghdr
_SOCKET = struct.Struct("!4xHH16s16s")  # inet_diag_msg: family, state, timer, retransmits; ports, addresses
_SOCKET_BYTES = 72
_ATTRIBUTE = struct.Struct("=HH")
_INET_DIAG_INFO = 2
_RECEIVED_AT = 128  # tcp_info.tcpi_bytes_received
_SENT_AT = 200  # tcp_info.tcpi_bytes_sent, tcpi_bytes_retrans


def ended_connection(message: bytes) -> tuple[int, str, int, int] | None:
    """(local port, peer, bytes received, bytes sent) of a connection that ended; None if the message is about
    something else, or the kernel does not count sent bytes (before 4.19)."""
    if len(message) < _MESSAGE.size + _SOCKET_BYTES:
        return None
    family = message[_MESSAGE.size]
    port, peer_port, _, peer = _SOCKET.unpack_from(message, _MESSAGE.size)
    position = _MESSAGE.size + _SOCKET_BYTES
    while position + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, position)
        if length < _ATTRIBUTE.size:
            return None
        if kind == _INET_DIAG_INFO and length >= _ATTRIBUTE.size + _SENT_AT + 16:
            (received,) = struct.unpack_from("=Q", message, position + _ATTRIBUTE.size + _RECEIVED_AT)
            sent, again = struct.unpack_from("=QQ", message, position + _ATTRIBUTE.size + _SENT_AT)
            return port, _peer_text(family, peer, peer_port), received, sent - again
        position += (length + 3) & ~3
    return None


def _peer_text(family: int, packed: bytes, port: int) -> str:
    if family == socket.AF_INET:
        return f"{ipaddress.IPv4Address(packed[:4])}:{port}"
    address = ipaddress.IPv6Address(packed)
    return f"{address.ipv4_mapped}:{port}" if address.ipv4_mapped else f"[{address}]:{port}"


def log_ended(message: bytes, ports: Collection[int], refused: RefusedCallers) -> None:
    """Logs the peer if the connection was to one of `ports` and did not speak HTTP/2."""
    ended = ended_connection(message)
    if ended is None:
        return
    port, peer, received, sent = ended
    # The FIN counts as a byte.
    if port in ports and received > 1 and sent <= GREETING_MAX:
        what = (
            "it may speak Kafka's protocol (this port is of gRPC: give it a broker's listener for clients)"
            if KAFKA_MIN <= received <= KAFKA_MAX
            else "it may speak TLS (leave it out there, or name SSL for this listener in"
            " listener.security.protocol.map)"
        )
        text = f"{{peer}} did not speak HTTP/2 on port {port}, which is without TLS: {what}"
        refused.log(peer, text)


def ended_connections() -> socket.socket | None:
    """A socket that receives one message for each TCP connection of this machine that ends; None if the
    kernel does not support it or refuses it."""
    ended = netlink_socket(_NETLINK_SOCK_DIAG)
    if ended is None:
        return None
    try:
        ended.bind((0, _TCP_ENDED))
    except OSError as error:
        ended.close()
        _log.debug("the kernel does not report which connections end: %s", error)
        return None
    return ended


def watch_plain_callers(ports: Collection[int], refused: RefusedCallers) -> None:
    """Starts a thread that watches `ports` until the process ends."""
    ended = ended_connections() if ports else None
    if ended is None:
        return

    def read() -> None:
        while True:
            try:
                message = ended.recv(65_536)
            except OSError:  # more messages than were read: lost ones are not reported
                continue
            log_ended(message, ports, refused)

    threading.Thread(target=read, name="plain-callers", daemon=True).start()


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
        """Logs a failed handshake of a server; `rpc.reach` covers this node's own attempts to
        connect."""
        problem = None if _OF_A_CLIENT in arguments else handshake_text(error)
        peer = _PEER.search(arguments)
        if problem is not None and peer is not None:
            self._refused.log(peer[1], "TLS handshake with {peer} failed: " + problem)


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
