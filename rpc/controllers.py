"""The addresses of controllers by node id: from the log or the leader, otherwise from the configuration.

Reads Raft's state at every call, since voters may be added, removed and moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from metaquorum.config.node import NodeConfig
from metaquorum.metadata.image import GRPC_LISTENER, MetadataImage
from metaquorum.raft.core import RaftCore
from metaquorum.raft.voters import Endpoint, VoterSet
from metaquorum.rpc.transport import PeerAddress, RaftCaller


class Controllers:
    """A live view for clients of controllers. Iterates over ids in ascending order: those of the voters in
    force or, if none is known, of bootstrap servers. `in` tests whether an id has a known address."""

    def __init__(self, config: NodeConfig, raft: RaftCore) -> None:
        self._raft = raft
        name = config.controller_listener
        self._listener = name if config.quorum_speaks_kafka or _is_grpc(name) else GRPC_LISTENER
        self._configured = {voter.node_id: PeerAddress(voter.host, voter.port) for voter in config.voters}
        servers = zip(config.raft.bootstrap_ids, config.bootstrap_servers, strict=True)
        self._quorum: tuple[VoterSet, int | None] | None = None
        self._servers = {node_id: PeerAddress(*server) for node_id, server in servers}

    def get(self, node_id: int) -> PeerAddress | None:
        """The address of a controller; None if it is unknown. A voters' record may not name the listener that
        this node asks: a controller that was formatted with one address says the others later."""
        found = address_of(self._raft.endpoints_of(node_id), self._listener)
        return found or self._configured.get(node_id) or self._servers.get(node_id)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._raft.voters or self._servers))

    def __contains__(self, node_id: object) -> bool:
        return isinstance(node_id, int) and self.get(node_id) is not None

    def let_go(self, client: RaftCaller) -> None:
        """Closes connections that are no longer needed: to bootstrap servers once a leader is known, and to
        nodes that no longer vote. Call it after every step; it costs nothing if nothing changed."""
        quorum = self._raft.voters, self._raft.leader_id
        if quorum != self._quorum:
            self._quorum = voters, leader_id = quorum
            client.retain(frozenset(voters).union(self._servers if leader_id is None else (leader_id,)))

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of all nodes that may know the leader: the voters in force, then bootstrap servers."""
        found = [self.get(node_id) for node_id in (*self._raft.voters, *self._servers)]
        return tuple(dict.fromkeys((each.host, each.port) for each in found if each is not None))


class GrpcAddresses:
    """The controllers' gRPC listeners, as they have registered them, where the quorum's addresses are those
    of Kafka's protocol. `listener` None: they have none."""

    def __init__(self, listener: str | None, image: Callable[[], MetadataImage]) -> None:
        self._listener, self._image = listener, image

    def get(self, node_id: int) -> PeerAddress | None:
        """The address of a controller; None if it is unknown."""
        registered = self._image().controllers.get(node_id)
        places = () if registered is None else registered.endpoints
        found = next((at for at in places if at.name == self._listener), None)
        return None if found is None else PeerAddress(found.host, found.port)


def address_of(endpoints: Sequence[Endpoint], listener: str) -> PeerAddress | None:
    """The endpoint of the controllers' listener, whose name Kafka writes in upper case; otherwise the first
    that speaks the same, by its name, as does one that a leader named to this node (without a name)."""
    wanted = listener.upper()
    named = [each for each in endpoints if each.name.upper() == wanted]
    alike = [each for each in endpoints if not each.name or _is_grpc(each.name.upper()) == _is_grpc(wanted)]
    return next((PeerAddress(each.host, each.port) for each in named or alike), None)


def _is_grpc(name: str) -> bool:
    return name.startswith(GRPC_LISTENER)
