"""What a fork of the process has of its test clusters: nothing that keeps their ports taken, or the
connections of clients open.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterable, Iterator

OPEN_FILES = "/dev/fd"
"""A directory with the numbers of this process's open files, on every system that forks."""


def let_go(descriptors: Iterable[int], ports: Collection[int]) -> None:
    """This process no longer has what these descriptors are of, nor sockets at these ports. Their numbers
    stay taken: objects of the clusters still have them, and may close them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in {*descriptors, *_sockets_at(ports)}:
        with contextlib.suppress(OSError):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _sockets_at(ports: Collection[int]) -> Iterator[int]:
    for name in os.listdir(OPEN_FILES):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and _port_of(int(name)) in ports:
                yield int(name)


def _port_of(descriptor: int) -> int | None:
    """Its own port; None if it has none."""
    opened = socket.socket(fileno=descriptor)
    try:
        address = opened.getsockname()
    finally:
        opened.detach()
    return address[1] if isinstance(address, tuple) else None
