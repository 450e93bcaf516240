"""Detects clients that speak something other than HTTP/2 on a listener without TLS: most likely TLS.

Owns reading this from the kernel. Does not see the connections: gRPC closes such a connection without a log
line. But Linux reports every TCP connection that ends (sock_diag(7), shown by `ss --events`), with the number
of bytes received and sent. HTTP/2 servers acknowledge a caller's settings before anything else, so a
connection that received bytes and sent only this server's settings did not speak HTTP/2, unless its client
died at once. On other systems, and if the kernel refuses the subscription, nothing is logged.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import struct
import sys
import threading
from collections.abc import Collection

from metaquorum.runtime.rpc.refused_callers import RefusedCallers

_log = logging.getLogger(__name__)

GREETING_MAX = 54
"""The most bytes sent to a caller that does not speak HTTP/2. This server's settings are 46 bytes; with the
acknowledgement of the caller's settings they are at least 55."""

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
    at = _MESSAGE.size + _SOCKET_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            return None
        if kind == _INET_DIAG_INFO and length >= _ATTRIBUTE.size + _SENT_AT + 16:
            (received,) = struct.unpack_from("=Q", message, at + _ATTRIBUTE.size + _RECEIVED_AT)
            sent, again = struct.unpack_from("=QQ", message, at + _ATTRIBUTE.size + _SENT_AT)
            return port, _peer_text(family, peer, peer_port), received, sent - again
        at += (length + 3) & ~3
    return None


def _peer_text(family: int, packed: bytes, port: int) -> str:
    if family == socket.AF_INET:
        return f"{ipaddress.IPv4Address(packed[:4])}:{port}"
    address = ipaddress.IPv6Address(packed)
    return f"{address.ipv4_mapped}:{port}" if address.ipv4_mapped else f"[{address}]:{port}"


def tell_of(message: bytes, ports: Collection[int], refused: RefusedCallers) -> None:
    """Logs the peer if the connection was to one of `ports` and did not speak HTTP/2."""
    ended = ended_connection(message)
    if ended is None:
        return
    port, peer, received, sent = ended
    # The FIN counts as a byte.
    if port in ports and received > 1 and sent <= GREETING_MAX:
        refused.tell(
            peer,
            f"{{peer}} did not speak HTTP/2 on port {port}, which is without TLS: it may speak TLS (leave it"
            " out there, or name SSL for this listener in listener.security.protocol.map)",
        )


def ended_connections() -> socket.socket | None:
    """A socket that receives one message for each TCP connection of this machine that ends; None if the
    kernel does not support it or refuses it."""
    if not sys.platform.startswith("linux"):
        return None
    ended = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
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
            tell_of(message, ports, refused)

    threading.Thread(target=read, name="plain-callers", daemon=True).start()
