"""Bounds the connections of a gRPC port, although gRPC accepts them by itself.

gRPC does not tell what it accepts and has no bound for it. So the port's queue is watched: soon after a
connection has arrived, the descriptors of the process are looked through for sockets of this port. Where the
kernel can (Linux), a connection that sends nothing does not even arrive. What has sent bytes but made no
admitted call is new in the sense of `sockets.limits`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from typing import NamedTuple

from metaquorum.metadata.text.addresses import plain_host
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.platforms import folder_of_descriptors, keep_silent_ones_away
from metaquorum.storage.disk.descriptors import DESCRIPTORS

SOON_S = 0.02
"""How long after an arrival the connections are counted."""
SILENT_S = 5
"""How long the kernel keeps a connection that sends nothing before it arrives all the same (Linux)."""

Identity = tuple[int, int]
"""A descriptor's number, and that of its socket."""


class _Arrival(NamedTuple):
    """A connection that is not counted yet; older ones have lower inodes. `where`: HOST:PORT, `peer`: that
    in gRPC's form."""

    inode: int
    descriptor: int
    address: str
    where: str
    peer: str


class Arrivals:
    """See the module. Call `open` once gRPC listens on the port."""

    def __init__(self, port: int, *, name: str, limits: ConnectionLimits, refused: RefusedCallers) -> None:
        self._port, self._name = port, name
        self._limits, self._refused = limits, refused
        self._folder = folder_of_descriptors()
        self._listening: socket.socket | None = None
        self._places: dict[Identity, tuple[ConnectionSlot, str]] = {}
        self._others: set[Identity] = set()
        self._proven_peers: set[str] = set()
        self._soon: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Starts watching; does nothing on a system that does not list a process's descriptors."""
        for descriptor, _ in self._sockets():
            own_socket = _socket(descriptor)
            if own_socket is None:
                continue
            if self._is_here(own_socket) and own_socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                self._listening = own_socket
                break
            own_socket.close()
        if self._listening is None:
            return
        keep_silent_ones_away(self._listening, SILENT_S)
        self._watch()

    def close(self) -> None:
        """Stops watching; the connections stay."""
        if self._soon is not None:
            self._soon.cancel()
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def known(self, peer: str) -> None:
        """A call of this peer, in gRPC's form, was admitted."""
        if peer in self._proven_peers:
            return
        self._proven_peers.add(peer)
        for place, other in self._places.values():
            if other == peer:
                place.known()

    def _watch(self) -> None:
        self._soon = None
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._arrived)

    def _arrived(self) -> None:
        loop = asyncio.get_running_loop()
        if self._listening is not None and self._soon is None:
            loop.remove_reader(self._listening)
            self._soon = loop.call_later(SOON_S, self._count)

    def _count(self) -> None:
        """Admits what is new among the process's sockets, and forgets what is gone."""
        try:
            present = dict(self._sockets())
        except OSError:
            present = {}
        if present:
            seen = set(present.items())
            for gone in self._places.keys() - seen:
                self._places.pop(gone)[0].leave()
            self._others &= seen
            arrived = [self._arrival(each) for each in seen - self._places.keys() - self._others]
            for each in sorted(
                filter(None, arrived), key=lambda each: (each.peer not in self._proven_peers, each)
            ):
                self._admit(each)
            self._proven_peers &= {peer for _, peer in self._places.values()}
        DESCRIPTORS.refill()
        self._watch()

    def _arrival(self, identity: Identity) -> _Arrival | None:
        own_socket = _socket(identity[0])
        if own_socket is None:
            return None
        with own_socket:
            peer = self._peer(own_socket)
        if peer is None:
            self._others.add(identity)
            return None
        address, where, text = peer
        return _Arrival(identity[1], identity[0], address, where, text)

    def _admit(self, arrival: _Arrival) -> None:
        slot = self._limits.admit(self._name, arrival.address)
        if isinstance(slot, str):
            self._end(arrival.descriptor, arrival.peer)
            self._refused.log(arrival.where, f"closed the connection of {{peer}} to {self._name}: {slot}")
            return
        slot.end = lambda _: self._end(arrival.descriptor, arrival.peer)
        if arrival.peer in self._proven_peers:
            slot.known()
        self._places[arrival.descriptor, arrival.inode] = slot, arrival.peer

    def _end(self, descriptor: int, text: str) -> None:
        """Ends a connection, if the descriptor is still its."""
        own_socket = _socket(descriptor)
        if own_socket is not None:
            with own_socket:
                peer = self._peer(own_socket)
                if peer is not None and peer[2] == text:
                    with contextlib.suppress(OSError):
                        own_socket.shutdown(socket.SHUT_RDWR)

    def _is_here(self, candidate: socket.socket) -> bool:
        inet = candidate.family in (socket.AF_INET, socket.AF_INET6) and candidate.type == socket.SOCK_STREAM
        return inet and candidate.getsockname()[1] == self._port

    def _peer(self, candidate: socket.socket) -> tuple[str, str, str] | None:
        """(address, HOST:PORT, gRPC's form) of a connection to this port; None for any other socket."""
        with contextlib.suppress(OSError):
            if self._is_here(candidate):
                host, port = candidate.getpeername()[:2]
                plain = plain_host(host)
                if ":" in plain:
                    return plain, f"[{plain}]:{port}", f"ipv6:%5B{plain}%5D:{port}"
                return plain, f"{plain}:{port}", f"ipv4:{plain}:{port}"
        return None

    def _sockets(self) -> Iterator[Identity]:
        folder = self._folder
        if folder is None:
            return
        for name in DESCRIPTORS.use(lambda: os.listdir(folder)):
            with contextlib.suppress(OSError, ValueError):
                found = os.fstat(int(name))
                if stat.S_ISSOCK(found.st_mode):
                    yield int(name), found.st_ino


def _socket(descriptor: int) -> socket.socket | None:
    """A socket object of its own for a descriptor that is another's."""
    copy = -1
    try:
        copy = DESCRIPTORS.use(lambda: os.dup(descriptor))
        return socket.socket(fileno=copy)
    except OSError:
        if copy >= 0:
            os.close(copy)
        return None
