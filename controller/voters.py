"""Changes of the quorum's voters (KIP-853): translated between clients' requests and Raft's, and a
controller's own request to be made a voter.
"""

from __future__ import annotations

from metaquorum.controller.answers import not_controller
from metaquorum.controller.settings.feature_levels import unsupported_by
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KRAFT_VERSION, metadata_version_name, needed_metadata_version
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    DescribeQuorumResponse,
    Done,
    RaftVoterRequest,
    RemoveRaftVoterRequest,
    UpgradeKRaftVersionRequest,
)
from metaquorum.raft import messages
from metaquorum.raft.core import RaftCore
from metaquorum.raft.voters import Endpoint, VersionRange, VoterNode, VoterSet
from metaquorum.storage.uuids import ZERO_UUID, uuid_to_text

VOTER_CHANGES = (AddRaftVoterRequest, RemoveRaftVoterRequest, UpgradeKRaftVersionRequest)

CHANGE_TIMEOUT_MAX_MS = 600_000
"""The longest time that a caller may wait."""


def raft_request(request: RaftVoterRequest, config: ControllerConfig) -> messages.VoterChangeRequest:
    """The request to Raft. A request that names no cluster means this node's."""
    cluster_id = config.cluster_id
    timeout_ms = max(0, min(request.timeout_ms, CHANGE_TIMEOUT_MAX_MS))
    match request:
        case AddRaftVoterRequest():
            return messages.AddVoterRequest(
                cluster_id=request.cluster_id or cluster_id,
                voter=voter_node(request.voter),
                timeout_ms=timeout_ms,
            )
        case RemoveRaftVoterRequest():
            return messages.RemoveVoterRequest(
                cluster_id=request.cluster_id or cluster_id,
                voter_id=request.voter_id,
                voter_directory_id=request.voter_directory_id,
                timeout_ms=timeout_ms,
            )
        case UpgradeKRaftVersionRequest():
            return messages.UpgradeRequest(
                cluster_id=cluster_id,
                kraft_version=request.kraft_version,
                voters=VoterSet(voter_node(voter) for voter in request.voters),
                timeout_ms=timeout_ms,
            )


def upgrade_request(
    level: int, image: MetadataImage, raft_core: RaftCore
) -> UpgradeKRaftVersionRequest | ApiError:
    """The request that raises kraft.version to `level`: the configured voters, each with its registered
    values and the directory that it votes from; or why it cannot be raised yet."""
    if not raft_core.is_leader:
        return not_controller(raft_core.node_id, raft_core.leader_id)
    if level <= raft_core.kraft_version:
        return UpgradeKRaftVersionRequest(kraft_version=level, voters=())
    needed, ids = needed_metadata_version(KRAFT_VERSION, level), frozenset(raft_core.voters)
    problem = unsupported_by(image, KRAFT_VERSION, level, raft_core.node_id, ids)
    if image.features.metadata_version < needed:
        problem = f"it needs metadata.version {metadata_version_name(needed)}: upgrade that first"
    voters = []
    for known in () if problem else raft_core.describe(now_ms=0):
        if not known.is_voter:
            continue
        voter = _registered(image, known.node_id, known.directory_id)
        problem = problem or (voter if isinstance(voter, str) else None)
        if isinstance(voter, Voter):
            voters.append(voter)
    if problem is not None:
        return ApiError(ErrorCode.INVALID_UPDATE_VERSION, problem)
    return UpgradeKRaftVersionRequest(kraft_version=level, voters=tuple(voters))


def _registered(image: MetadataImage, node_id: int, directory_id: bytes) -> Voter | str:
    """A voter's entry in the first voters' record, or why there is none yet."""
    registration = image.controllers.get(node_id)
    if registration is None:
        return f"controller {node_id} has not registered: start it, then retry"
    if not directory_id:
        return f"controller {node_id} has not fetched from this leader yet: start it, then retry"
    nowhere = [each.host for each in registration.endpoints if each.host in ("", "0.0.0.0", "::")]
    if nowhere or not registration.endpoints:
        return (
            f"controller {node_id} listens on every interface and names no host: set its advertised.listeners"
            " and restart it, then retry"
        )
    supported = next((each for each in registration.features if each.name == KRAFT_VERSION), None)
    low, high = (
        (0, 0)
        if supported is None
        else (
            supported.min_supported_version,
            supported.max_supported_version,
        )
    )
    endpoints = tuple(
        VoterEndpoint(each.name.upper(), each.host, each.port) for each in registration.endpoints
    )
    return Voter(node_id, directory_id, endpoints, KRaftVersionFeature(low, high))


def voter_node(voter: Voter) -> VoterNode:
    """A voter in Raft's form."""
    supported = voter.kraft_version_feature
    return VoterNode(
        node_id=voter.voter_id,
        directory_id=voter.voter_directory_id,
        endpoints=tuple(Endpoint(each.name, each.host, each.port) for each in voter.endpoints),
        versions=VersionRange(supported.min_supported_version, supported.max_supported_version),
    )


def answer_of(response: messages.RaftResponse) -> Done | ApiError:
    """The answer for the client."""
    if response.error is messages.RaftError.NONE:
        return Done()
    message = response.message if isinstance(response, messages.VoterChangeResponse) else None
    code = ErrorCode(response.error)
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        code = ErrorCode.NOT_CONTROLLER
    return ApiError(code, message or code.name, response.leader_id)


# Whether an observing controller requests to be made a voter, and which request it sends.
# Ensures that the entry of a directory that this node lost is removed first, as in Kafka 4.2, and, unlike
# there, that it is not removed while that directory is in use: otherwise two machines with one id would
# replace each other forever.


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


def voter_record(voter: VoterNode) -> Voter:
    """A voter in the form of records and requests; the inverse of `voter_node`."""
    endpoints = tuple(VoterEndpoint(each.name, each.host, each.port) for each in voter.endpoints)
    supported = KRaftVersionFeature(voter.versions.lowest, voter.versions.highest)
    return Voter(voter.node_id, voter.directory_id or ZERO_UUID, endpoints, supported)


_MEANS = {
    ErrorCode.NOT_CONTROLLER: "the leader has just changed",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the leader has just changed",
    ErrorCode.DUPLICATE_VOTER: "the leader has a voter with this id, of which this controller's log does not"
    " tell yet",
    ErrorCode.VOTER_NOT_FOUND: "the voters have just changed",
    ErrorCode.REQUEST_TIMED_OUT: "this controller has not caught up, or another change is not committed",
    ErrorCode.UNSUPPORTED_VERSION: "voters can be changed once kraft.version is 1, by a leader that knows it:"
    " metaquorum features upgrade kraft.version=1",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "allow its principal Alter and Describe on the cluster, or name"
    " it in super.users",
    ErrorCode.INVALID_REQUEST: "the leader finds fault with its listeners or its release",
}
"""What a leader's refusal says to a node that asks again by itself. Apache Kafka's messages may be empty."""


def not_yet(node_id: int, error: ApiError) -> str:
    """A refusal of this node's request to be a voter, in one line."""
    means = _MEANS.get(error.code)
    return f"controller {node_id} is not a voter yet: {error}" + (f" ({means})" if means else "")


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
        self, now_ms: int, quorum: DescribeQuorumResponse | None, *, answers: bool
    ) -> AddRaftVoterRequest | RemoveRaftVoterRequest | str:
        """One change, which removes the entry or adds this node; or why it has to wait, in one line. If there
        is an entry, `quorum` is the leader's description, and `answers` says whether the entry's voter
        itself answers where it listens."""
        identity, entry = self._raft.state.identity, self.entry
        if entry is None:
            voter = voter_record(identity.as_voter)
            return AddRaftVoterRequest(
                voter=voter, cluster_id=identity.cluster_id, timeout_ms=self._timeout_ms
            )
        problem = self._why_it_stays(entry, now_ms, quorum, answers=answers)
        return problem or RemoveRaftVoterRequest(
            voter_id=entry.node_id,
            voter_directory_id=entry.directory_id or ZERO_UUID,
            cluster_id=identity.cluster_id,
            timeout_ms=self._timeout_ms,
        )

    def _why_it_stays(
        self, entry: VoterNode, now_ms: int, quorum: DescribeQuorumResponse | None, *, answers: bool
    ) -> str | None:
        here = f"controller {entry.node_id}"
        voters = () if quorum is None else quorum.voters
        voter = next((one for one in voters if entry.is_replica(one.node_id, one.directory_id)), None)
        if quorum is None or voter is None:
            self._silent = None
            return f"{here} is not a voter yet: the voters have just changed"
        directory = uuid_to_text(voter.directory_id)
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
