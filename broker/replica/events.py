"""The inputs and outputs of a broker's replica manager, as values."""

from __future__ import annotations

from msgspec import Struct

from metaquorum.broker.channel import ControllerReported, SendToController
from metaquorum.broker.replica.disk_work import DiskReport, DiskWork
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.data import DataRequest, DataResponse, FetchRequest, FetchResponse
from metaquorum.raft.effects import Warn
from metaquorum.raft.events import Stop

# ---- in ------------------------------------------------------------------------------------------


class DataRequestArrived(Struct, frozen=True, kw_only=True):
    """A request; it gets one `DataRespond` with the same key, unless it is cancelled."""

    key: object
    request: DataRequest


class DataRequestCancelled(Struct, frozen=True, kw_only=True):
    """The caller is gone: no answer is needed (what was appended stays)."""

    key: object


class PeerFetched(Struct, frozen=True, kw_only=True):
    """The answer to a `SendFetch`."""

    target: int
    correlation_id: int
    response: FetchResponse | ApiError


class PeerFetchFailed(Struct, frozen=True, kw_only=True):
    """A `SendFetch` timed out or could not be sent."""

    target: int
    correlation_id: int
    reason: str


class UpkeepRequested(Struct, frozen=True):
    """Retention, compaction and the check of ISRs are due now."""


DataEvent = (
    DataRequestArrived
    | DataRequestCancelled
    | PeerFetched
    | PeerFetchFailed
    | ControllerReported
    | DiskReport
    | UpkeepRequested
)

# ---- out -----------------------------------------------------------------------------------------


class DataRespond(Struct, frozen=True, kw_only=True):
    key: object
    response: DataResponse | ApiError


class UpkeepDone(Struct, frozen=True):
    """The work of `UpkeepRequested` was given to the directories."""


class SendFetch(Struct, frozen=True, kw_only=True):
    """Send to broker `target`, at the endpoint that the newest image names, and report once."""

    target: int
    host: str
    port: int
    correlation_id: int
    request: FetchRequest
    timeout_ms: int


class SendTxnMarkers(Struct, frozen=True, kw_only=True):
    """A transaction is decided: write its marker to every partition (topic name, index), and then report to
    the coordinator in `partition` of __transaction_state. Ends the one in progress for the same transactional
    id."""

    partition: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: tuple[tuple[str, int], ...]


class OfflineDirectoriesChanged(Struct, frozen=True, kw_only=True):
    """The set of failed directories grew: the next heartbeat must report it at once."""

    directories: tuple[bytes, ...]


DataEffect = (
    DataRespond
    | SendFetch
    | SendToController
    | SendTxnMarkers
    | OfflineDirectoriesChanged
    | UpkeepDone
    | DiskWork
    | Warn
    | Stop
)
