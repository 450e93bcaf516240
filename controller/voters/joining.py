"""Whether an observing controller requests to be made a voter, and which request it sends.

Owns the choice between adding this node and removing an old entry of it. Knows no clock and no connections:
`server.joining` sends. Pure: from Raft's state here and the answers of others to one request at a time.
Ensures that the entry of a directory that this node lost is removed first, as in Kafka 4.2, and, unlike
there, that it is not removed while that directory is in use: otherwise two machines with one id would replace
each other forever.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.requests.common import DescribeQuorumResponse
from metaquorum.metadata.requests.controller_status import NodeStatus
from metaquorum.metadata.requests.voters import AddRaftVoterRequest, RemoveRaftVoterRequest
from metaquorum.raft.config import Identity
from metaquorum.raft.core import RaftCore
from metaquorum.raft.voters.voter_set import VoterNode
from metaquorum.storage.uuids import ZERO_UUID, uuid_to_text


def observes(raft: RaftCore) -> bool:
    """This node follows a leader without a vote, and has everything that it knows to be committed."""
    return raft.is_observer and raft.leader_id is not None and 0 <= raft.high_watermark <= raft.log_end_offset


def may_join(raft: RaftCore) -> bool:
    """It observes, and voters are records."""
    return observes(raft) and raft.kraft_version >= 1


def how_to_join(raft: RaftCore) -> str:
    """For an observer that does not request it automatically: how to make it a voter, in one line."""
    node_id = raft.node_id
    if raft.kraft_version == 0:
        return (
            f"controller {node_id} only observes, because the voters are configured (kraft.version 0): "
            f"upgrade kraft.version to 1, then metaquorum quorum add-voter {node_id} makes it a voter"
        )
    return f"controller {node_id} only observes; metaquorum quorum add-voter {node_id} changes that"


def _as_voter(identity: Identity) -> Voter:
    endpoints = tuple(VoterEndpoint(each.name, each.host, each.port) for each in identity.endpoints)
    supported = KRaftVersionFeature(identity.versions.lowest, identity.versions.highest)
    return Voter(identity.node_id, identity.directory_id, endpoints, supported)


class Joiner:
    """The requests of an observing controller. A new leader has received no fetches yet, so a directory is
    lost when it has been silent for `silent_ms` under one leader. Requests wait for `timeout_ms`."""

    def __init__(self, raft: RaftCore, *, silent_ms: int, timeout_ms: int) -> None:
        self._raft = raft
        self._silent_ms = silent_ms
        self._timeout_ms = timeout_ms
        self._silent: tuple[int, bytes | None] | None = None
        self._since_ms = 0

    @property
    def entry(self) -> VoterNode | None:
        """The entry of the voters' record for this node's id with another directory; None if there is
        none."""
        return self._raft.voters.get(self._raft.node_id)

    def wanted(
        self, now_ms: int, quorum: DescribeQuorumResponse | None, found: Sequence[NodeStatus]
    ) -> AddRaftVoterRequest | RemoveRaftVoterRequest | str:
        """One change, which removes the entry or adds this node; or why it has to wait, in one line. If there
        is an entry, `quorum` is the leader's description, and `found` are the nodes that answer at the
        endpoints of the entry's voter."""
        identity, entry = self._raft.state.identity, self.entry
        if entry is None:
            return AddRaftVoterRequest(
                voter=_as_voter(identity), cluster_id=identity.cluster_id, timeout_ms=self._timeout_ms
            )
        problem = self._why_it_stays(entry, now_ms, quorum, found)
        return problem or RemoveRaftVoterRequest(
            voter_id=entry.node_id,
            voter_directory_id=entry.directory_id or ZERO_UUID,
            cluster_id=identity.cluster_id,
            timeout_ms=self._timeout_ms,
        )

    def _why_it_stays(
        self,
        entry: VoterNode,
        now_ms: int,
        quorum: DescribeQuorumResponse | None,
        found: Sequence[NodeStatus],
    ) -> str | None:
        here = f"controller {entry.node_id}"
        voters = () if quorum is None else quorum.voters
        voter = next((one for one in voters if entry.is_replica(one.node_id, one.directory_id)), None)
        if quorum is None or voter is None:
            self._silent = None
            return f"{here} is not a voter yet: the voters have just changed"
        directory = uuid_to_text(voter.directory_id)
        own = (quorum.cluster_id, voter.node_id, voter.directory_id)
        answers = any((one.cluster_id, one.node_id, one.directory_id) == own for one in found)
        if voter.is_alive or answers:
            self._silent = None
            return (
                f"{here} does not become a voter: a voter with the same id runs, with directory {directory}; "
                "give this one another node.id and format it again, or stop the other"
            )
        silent = (quorum.leader_epoch, entry.directory_id)
        if self._silent != silent:
            self._silent, self._since_ms = silent, now_ms
        if now_ms - self._since_ms < self._silent_ms:
            return f"{here} waits until directory {directory} has been silent for {self._silent_ms} ms"
        return None
