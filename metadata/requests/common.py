"""Requests to the active controller and their responses, as values.

Owns the requests about brokers, topics, the image and the quorum, and the unions of all requests to a
controller; other subjects are in modules beside it. Knows no encoding (`runtime.api` and Kafka's protocol
have one each) and no error codes, which are in `errors`.

They follow Kafka's messages of the same names; `None` means absent, durations are in ms. A request that fails
as a whole is answered with an `ApiError` instead of a response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.records.parts import BrokerEndpoint, BrokerFeature
from metaquorum.metadata.requests.broker_ids import AllocateBrokerIdResponse, BrokerIdRequest
from metaquorum.metadata.requests.partitions import PartitionsRequest, PartitionsResponse
from metaquorum.metadata.requests.reassignments import AlterReassignmentsRequest, AlterReassignmentsResponse
from metaquorum.metadata.requests.settings import SettingsAnswer, SettingsRequest
from metaquorum.metadata.requests.voters import RaftVoterRequest
from metaquorum.storage.files.known_committed import CommittedLoss

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage


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
    """The image, with everything below `offset`. `leader_id` is the leader known to this node."""

    image: MetadataImage
    offset: int
    leader_id: int | None
    epoch: int


class DescribeQuorumRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-836 DescribeQuorum (key 55), answered by the leader."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`last_fetch_ms` and `last_caught_up_ms` are Unix times; None means never, or the leader itself.
    `is_alive`: the leader has heard from it recently; None if not reported. Endpoints and levels of
    kraft.version are those of the voters' record or, for an observer, those that it registered; no endpoints
    and a highest level of 0 mean unknown."""

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


ControllerRequest = (
    RegisterBrokerRequest
    | BrokerHeartbeatRequest
    | UnregisterBrokerRequest
    | CreateTopicsRequest
    | DeleteTopicsRequest
    | ReadImageRequest
    | DescribeQuorumRequest
    | TransferLeadershipRequest
    | RaftVoterRequest
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
