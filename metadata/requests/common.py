"""Requests to the active controller and their responses, as values.

They follow Kafka's messages of the same names; `None` means absent, durations are in ms. A request that fails
as a whole is answered with an `ApiError` instead of a response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.broker_ids import IdSource
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.records.control import Voter, VoterEndpoint
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature
from metaquorum.metadata.requests.partitions import (
    AlterReassignmentsRequest,
    AlterReassignmentsResponse,
    PartitionsRequest,
    PartitionsResponse,
)
from metaquorum.metadata.requests.settings import SettingsAnswer, SettingsRequest
from metaquorum.storage.files.known_committed import CommittedLoss

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage


# Requests that change the quorum's voters, as values (KIP-853).
# `cluster_id` None accepts any cluster. A change is answered with `Done` when it is committed, and with
# REQUEST_TIMED_OUT if that takes longer than `timeout_ms`: it may still be committed later.

DEFAULT_CHANGE_TIMEOUT_MS = 30_000


NO_BROKER = -1
"""The broker id of a request that a client sent directly, or a broker that does not name itself."""
BROKERS, CONTROLLERS = 1, 2
"""The endpoint types in DescribeCluster (KIP-919)."""


class AddRaftVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Makes an observing controller a voter (AddRaftVoter, key 80). `voter` has its directory, its
    endpoints and the levels of kraft.version that it supports. `validate_only`: the node's identity is
    checked, and nothing is changed."""

    voter: Voter
    cluster_id: str | None = None
    timeout_ms: int = DEFAULT_CHANGE_TIMEOUT_MS
    validate_only: bool = False


class RemoveRaftVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a voter an observer, the leader included (RemoveRaftVoter, key 81)."""

    voter_id: int
    voter_directory_id: bytes
    cluster_id: str | None = None
    timeout_ms: int = DEFAULT_CHANGE_TIMEOUT_MS


class UpgradeKRaftVersionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Raises kraft.version to `kraft_version`. `voters` are the configured ones, each with its directory, its
    endpoints and what it supports."""

    kraft_version: int
    voters: tuple[Voter, ...]
    timeout_ms: int = DEFAULT_CHANGE_TIMEOUT_MS


RaftVoterRequest = AddRaftVoterRequest | RemoveRaftVoterRequest | UpgradeKRaftVersionRequest


def runs_with_static_voters(node_id: int, where: str) -> ApiError:
    """Why a node that leads or follows a quorum from its own configuration cannot be added to this one."""
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"node {node_id} at {where} runs with static voters: replace controller.quorum.voters with"
        " controller.quorum.bootstrap.servers there, format it with --no-initial-controllers, and start it",
    )


# Requests about broker ids (S0): allocating an id, and binding keys to ids.
# They have no counterpart in Kafka's protocol, and know nothing of the entries in the log that remember
# ids (`metadata.broker_ids`). A request that fails is answered with an `ApiError`.


class AllocateBrokerIdRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Sent by a broker that finds its id neither in its configuration nor in any of its directories.

    `request_id` (16 bytes) is the same in every repetition of one start and never used by another.
    `binding_key` is None if the broker has no stable name. `reuse_missing`: it may take over the only id that
    partitions name and no broker has (S0.7, S0.12). `cluster_id` is None if it does not know its cluster yet.
    """

    request_id: bytes
    cluster_id: str | None = None
    binding_key: str | None = None
    reuse_missing: bool = False


class AllocateBrokerIdResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The id and where it came from, and the cluster's id. With `broker_id` None, the broker must repeat the
    request after `retry_after_ms` because of `waiting_for`."""

    cluster_id: str
    broker_id: int | None = None
    source: IdSource | None = None
    retry_after_ms: int = 0
    waiting_for: str = ""


class BindBrokerIdRequest(msgspec.Struct, frozen=True, kw_only=True):
    """From now on a broker that starts with this key and without an id is `broker_id` (S0.15). Other keys of
    the same id are no longer bound: an id has one home."""

    key: str
    broker_id: int


class UnbindBrokerIdRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Removes the binding of a key."""

    key: str


BrokerIdRequest = AllocateBrokerIdRequest | BindBrokerIdRequest | UnbindBrokerIdRequest


class RegisterBrokerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-631 BrokerRegistration (key 62). `previous_broker_epoch` is None if unknown. `binding_key`: the key
    by which the cluster should remember this id (S0.13), or None."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    endpoints: tuple[BrokerEndpoint, ...]
    features: tuple[BrokerFeature, ...]
    rack: str | None
    directories: tuple[bytes, ...]
    previous_broker_epoch: int | None = None
    binding_key: str | None = None


class RegisterBrokerResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The new broker epoch, and how long a lease lasts without a heartbeat (S2.11)."""

    broker_epoch: int
    session_timeout_ms: int


class BrokerHeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-631 BrokerHeartbeat (key 63). `applied_offset` (exclusive) is the end of the broker's image."""

    broker_id: int
    broker_epoch: int
    applied_offset: int
    want_fence: bool = False
    want_shutdown: bool = False
    offline_directories: tuple[bytes, ...] = ()
    min_insync_replicas: int = 0
    """min.insync.replicas of its file, which no record has; 0 from an earlier release."""


class BrokerHeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True):
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    in_controlled_shutdown: bool
    session_timeout_ms: int


class UnregisterBrokerRequest(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: int


class NewTopic(msgspec.Struct, frozen=True, kw_only=True):
    """`assignments` (replica lists by partition) or `partitions` with `replication_factor`; None means
    default. `configs`: the topic's initial configuration, as (key, value)."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    assignments: tuple[tuple[int, ...], ...] | None = None
    configs: tuple[tuple[str, str], ...] = ()


class CreateTopicsRequest(msgspec.Struct, frozen=True, kw_only=True):
    topics: tuple[NewTopic, ...]
    validate_only: bool = False


class DeleteTopicsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Each topic by name or by id (16 bytes)."""

    topics: tuple[str | bytes, ...]


class TopicResult(msgspec.Struct, frozen=True, kw_only=True):
    """One topic of a request: `error` NONE and an id, or the refusal and its text. For a new topic: its size,
    and the `configs` set on it, by key. `note`: which of them have no effect yet."""

    name: str | None
    topic_id: bytes | None
    error: ErrorCode
    message: str | None = None
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()
    note: str | None = None


class TopicsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`throttle_ms`: how long the client must wait because of its quota."""

    results: tuple[TopicResult, ...]
    throttle_ms: int = 0


class ReadImageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Reads the committed image: linearizably on the active controller, or this node's current one."""

    linearizable: bool = True


class ReadImageResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The image, with everything below `offset`."""

    image: MetadataImage
    offset: int


class DescribeQuorumRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-836 DescribeQuorum (key 55), answered by the leader."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`last_fetch_ms` and `last_caught_up_ms` are Unix times; None means never, or the leader itself.
    `is_alive`: the leader has heard from it recently; None if not reported. Endpoints and levels of
    kraft.version are those of the voters' record or those that it registered, or the endpoint that the active
    controller's configuration has; no endpoints and a highest level of 0 mean unknown."""

    node_id: int
    directory_id: bytes
    log_end_offset: int
    lag: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None
    status: str
    is_alive: bool | None = None
    endpoints: tuple[VoterEndpoint, ...] = ()
    min_kraft_version: int = 0
    max_kraft_version: int = 0


class DescribeQuorumResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`voters_offset` is that of the newest voters' record; None if the voters are configured (kraft.version
    0) or, from a broker, not reported. Until it is below the high watermark, it is a pending change.
    `new_voter_lag_max`: an observer can become a voter if it lags by at most this many records."""

    cluster_id: str
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaStatus, ...]
    observers: tuple[ReplicaStatus, ...]
    losses: tuple[CommittedLoss, ...] = ()
    kraft_version: int = 0
    voters_offset: int | None = None
    new_voter_lag_max: int = 0

    @property
    def open_change(self) -> int | None:
        """The offset of a voters' record that is not committed yet; None if no change is pending."""
        offset = self.voters_offset
        return offset if offset is not None and offset >= self.high_watermark else None


class TransferLeadershipRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Resign in favour of `target_id` (None: the most caught-up voter)."""

    target_id: int | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The request was carried out; there is nothing else to return."""


AnsweredByNode = ReadImageRequest | DescribeQuorumRequest | TransferLeadershipRequest | RaftVoterRequest
"""Requests that need no decision of the active controller: they read, or are Raft's."""

ControllerRequest = (
    AnsweredByNode
    | RegisterBrokerRequest
    | BrokerHeartbeatRequest
    | UnregisterBrokerRequest
    | CreateTopicsRequest
    | DeleteTopicsRequest
    | SettingsRequest
    | PartitionsRequest
    | BrokerIdRequest
    | AlterReassignmentsRequest
)
ControllerResponse = (
    RegisterBrokerResponse
    | BrokerHeartbeatResponse
    | TopicsResponse
    | ReadImageResponse
    | DescribeQuorumResponse
    | Done
    | SettingsAnswer
    | PartitionsResponse
    | AllocateBrokerIdResponse
    | AlterReassignmentsResponse
)


# A request as it reaches a controller node, and the node's answer to it.
# What is known about a request beside its content: the time, the caller, the quota it counts against.


class Mutator(msgspec.Struct, frozen=True, kw_only=True):
    """A client whose changes of partitions count against its quota (KIP-599). `strict`: it understands a
    refusal; others have to wait after their change."""

    user: str
    client_id: str
    strict: bool


class RequestArrived(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a client or broker. `arrived_ms` was taken on arrival, before any queue. `mutator` None:
    no quota applies. `cause`: the caller (None: unknown)."""

    key: int
    arrived_ms: int
    request: ControllerRequest
    mutator: Mutator | None = None
    cause: BatchCause | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer the client request `key`. Released only when what it reports is committed."""

    key: int
    response: ControllerResponse | ApiError
