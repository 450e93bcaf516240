"""Sockets of an attacker: raw and TLS connections, many at once, held until a time."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.attacks.site import Target

CONNECT_S = 2.0
STRIKE_S = 4.0
"""How long an attack keeps going unless it is over earlier."""


def raw(target: Target, port: str) -> socket.socket | None:
    """A TCP connection without blocking from now on; None if it was refused or not accepted in time."""
    try:
        connection = socket.create_connection(target.address(port), CONNECT_S)
    except OSError:
        return None
    connection.setblocking(False)
    return connection


def tls_context(target: Target, certificate: str | None = None) -> ssl.SSLContext:
    """A client's context that checks nothing; `certificate`: a name in the target's folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(Path(target.folder) / f"{certificate}.pem")
    return context


def secure(
    target: Target, port: str, certificate: str | None = None, *, alpn: str | None = None
) -> ssl.SSLSocket | None:
    """A TLS connection (blocking, with a timeout of CONNECT_S); None if there is none."""
    context = tls_context(target, certificate)
    if alpn is not None:
        context.set_alpn_protocols([alpn])
    try:
        connection = socket.create_connection(target.address(port), CONNECT_S)
    except OSError:
        return None
    try:
        return context.wrap_socket(connection)
    except OSError:
        connection.close()
        return None


def send(connection: socket.socket, data: bytes) -> bool:
    """Sends what there is room for; False if the other end has closed the connection."""
    try:
        connection.send(data)
    except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError, TimeoutError):
        return True
    except OSError:
        return False
    return True


def frame(body: bytes, announced: int | None = None) -> bytes:
    """A frame of Kafka's protocol; `announced`: the length that it claims."""
    return struct.pack(">i", len(body) if announced is None else announced) + body


@contextlib.contextmanager
def flood(target: Target, port: str, count: int) -> Iterator[list[socket.socket]]:
    """As many raw connections as the other end takes, up to `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            connection = raw(target, port)
            if connection is None:
                break
            held.append(connection)
        yield held
    finally:
        for connection in held:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def for_a_while(rng: random.Random, work: Callable[[], None], until_s: float = STRIKE_S) -> None:
    """Calls `work` again and again with short pauses."""
    deadline = time.monotonic() + until_s
    while time.monotonic() < deadline:
        work()
        time.sleep(rng.uniform(0, 0.02))
