"""Where controllers are reached, by node id: what the log or a leader says, else what is configured.

Owns the order of those sources, and the ids below 0 under which bootstrap servers are asked (KIP-853). Looks
at Raft's state whenever it is asked, so that voters may come, go and move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metaquorum.raft.core import RaftCore
from metaquorum.raft.voters.voter_set import Endpoint, VoterSet
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.rpc.raft_client import PeerAddress, RaftClient


class Controllers:
    """A live view for those who call controllers. Iterates over the ids to ask, rising: of the voters in
    force, or, where none is known, of bootstrap servers. `in`: whether an id can be reached."""

    def __init__(self, config: NodeConfig, raft: RaftCore) -> None:
        self._raft = raft
        self._listener = config.controller_listener
        self._configured = {voter.node_id: PeerAddress(voter.host, voter.port) for voter in config.voters}
        servers = zip(config.raft.bootstrap_ids, config.bootstrap_servers, strict=True)
        self._quorum: tuple[VoterSet, int | None] | None = None
        self._servers = {node_id: PeerAddress(*server) for node_id, server in servers}

    def get(self, node_id: int) -> PeerAddress | None:
        """Where this one listens; None: no one has said."""
        endpoints = self._raft.endpoints_of(node_id)
        if endpoints:
            return address_of(endpoints, self._listener)
        return self._configured.get(node_id) or self._servers.get(node_id)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._raft.voters or self._servers))

    def __contains__(self, node_id: object) -> bool:
        return isinstance(node_id, int) and self.get(node_id) is not None

    def let_go(self, client: RaftClient) -> None:
        """Ends connections that are not worth keeping: to bootstrap servers once a leader is known, and to
        nodes that no longer vote. Call it after every step: it costs nothing where nothing changed."""
        quorum = self._raft.voters, self._raft.leader_id
        if quorum != self._quorum:
            self._quorum = voters, leader_id = quorum
            client.retain(frozenset(voters).union(self._servers if leader_id is None else (leader_id,)))

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """All that may be asked for the leader, (host, port): the voters in force, then bootstrap servers."""
        found = [self.get(node_id) for node_id in (*self._raft.voters, *self._servers)]
        return tuple(dict.fromkeys((each.host, each.port) for each in found if each is not None))


def address_of(endpoints: Sequence[Endpoint], listener: str) -> PeerAddress:
    """The endpoint of the controllers' listener, whose name Kafka writes in upper case; else the first."""
    named = [each for each in endpoints if each.name.upper() == listener.upper()]
    chosen = (named or endpoints)[0]
    return PeerAddress(chosen.host, chosen.port)
