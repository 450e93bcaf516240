"""What comes into a broker's replica manager and what goes out of it, as values.

`disk_work` has what concerns the log directories.
"""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.broker.replica.disk_work import DiskReport, DiskWork
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.data import DataRequest, DataResponse, FetchRequest, FetchResponse
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.raft.effects import Warn
from metaquorum.raft.events import Stop

# ---- in ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequestArrived:
    """A request; it is answered with one `DataRespond` of the same key, unless it is cancelled."""

    key: object
    request: DataRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequestCancelled:
    """The caller is gone: nothing needs to be answered (what was appended stays)."""

    key: object


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFetched:
    """The answer to a `SendFetch`."""

    target: int
    correlation_id: int
    response: FetchResponse | ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFetchFailed:
    """A `SendFetch` timed out or could not be sent."""

    target: int
    correlation_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerAnswered:
    """The answer to an `AskController`; an ApiError too where it was not reached (`reason` in its text)."""

    correlation_id: int
    response: AlterPartitionResponse | AssignReplicasToDirsResponse | AllocateProducerIdsResponse | ApiError


DataEvent = (
    DataRequestArrived
    | DataRequestCancelled
    | PeerFetched
    | PeerFetchFailed
    | ControllerAnswered
    | DiskReport
)

# ---- out -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRespond:
    key: object
    response: DataResponse | ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFetch:
    """Send to broker `target`, at the endpoint that the newest image names, and report once."""

    target: int
    host: str
    port: int
    correlation_id: int
    request: FetchRequest
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskController:
    """Send to the active controller (`target`: the best guess, None: any) and report once."""

    target: int | None
    correlation_id: int
    request: AlterPartitionRequest | AssignReplicasToDirsRequest | AllocateProducerIdsRequest
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTxnMarkers:
    """A transaction is decided: write its marker to every partition (topic name, index), and then tell the
    coordinator in `partition` of __transaction_state. One that is under way for the same transactional id
    ends."""

    partition: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineDirectoriesChanged:
    """The set of bad directories grew: the next heartbeat must say so at once."""

    directories: tuple[bytes, ...]


DataEffect = (
    DataRespond
    | SendFetch
    | AskController
    | SendTxnMarkers
    | OfflineDirectoriesChanged
    | DiskWork
    | Warn
    | Stop
)
