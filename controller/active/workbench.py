"""The active controller's tools: append and answer in the right order, and work that goes in slices.

Owns the order between records, answers and commits on the deciding side. Decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from metaquorum.controller.active.work import (
    BalanceLeaders,
    ElectLeaders,
    FailDirectories,
    ForgetEligible,
    MoveLeaders,
    RemoveBroker,
    Work,
    next_slice,
)
from metaquorum.controller.brokers.sessions import Sessions
from metaquorum.controller.config import ControllerConfig
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.ledger import Ledger, Reply
from metaquorum.controller.partitions.effective import UNCLEAN_LEADER_ELECTION_ENABLE, rules_of
from metaquorum.controller.partitions.partition_change import MayLead, Rules
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ApiError, ErrorCode, RecordEncodeError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.requests.common import ControllerResponse, Done
from metaquorum.storage.errors import BatchError

PENDING_BATCHES_MAX = 16
"""Work in slices waits while so many batches are uncommitted."""

BROKERS_TOLD_MS = 100
"""While a broker is being removed in slices, the others are told of what is committed so often, and with the
last slice: hundreds of answers for each slice would take longer than the slices."""


class Port(Protocol):
    """What the active controller needs of its node. `wall_ms` is Unix time as of the step; `voters` are the
    ids of all controllers; `incarnation_id` is this process's."""

    wall_ms: int
    incarnation_id: bytes

    @property
    def voters(self) -> frozenset[int]: ...

    def append(self, records: Sequence[Record], replies: list[Reply], *, wake_observers: bool = True) -> int:
        """Replays and appends one batch; its end offset (exclusive). Raises BatchError when too large."""

    def reply(self, key: int, response: ControllerResponse | ApiError) -> None:
        """Answers now."""

    def warn(self, message: str) -> None:
        """Tells operators, before what is appended after it."""


def too_large_for_a_batch() -> ControllerResult:
    """The refusal of a request whose answer has no place for one by one."""
    text = "the request would write more than the 8 MiB that one batch holds: split it into several"
    return ControllerResult(response=ApiError(ErrorCode.POLICY_VIOLATION, text), depends_on_image=False)


class Workbench:
    """What a decision needs to take effect. `on_unparked` decides a request that waited for a fencing."""

    def __init__(
        self,
        config: ControllerConfig,
        ledger: Ledger,
        sessions: Sessions,
        port: Port,
        on_unparked: Callable[[RequestArrived, int], None],
    ) -> None:
        self.config = config
        unclean = "true" if config.unclean_leader_election_enable else "false"
        self._topic_defaults = {UNCLEAN_LEADER_ELECTION_ENABLE: unclean}
        self.ledger = ledger
        self.sessions = sessions
        self.port = port
        self.on_unparked = on_unparked
        self.work: dict[tuple[type[Work], int | None], Work] = {}
        self.last_append_ms = 0

    def start_removal(self, broker_id: int, epoch: int) -> RemoveBroker:
        """From now on the broker counts as fenced and its lease is over; the batches follow."""
        self.sessions.fencing[broker_id] = epoch
        self.sessions.close(broker_id)
        self.work.pop((MoveLeaders, broker_id), None)
        work = self.work.get((RemoveBroker, broker_id))
        if not isinstance(work, RemoveBroker):
            work = RemoveBroker(broker_id=broker_id, epoch=epoch)
            self.work[RemoveBroker, broker_id] = work
        return work

    def start_failing(self, broker_id: int, epoch: int, directories: frozenset[bytes]) -> FailDirectories:
        """From now on replicas in these directories count as offline; the batches follow."""
        work = self.work.get((FailDirectories, broker_id))
        if isinstance(work, FailDirectories) and work.epoch == epoch:
            work.add(directories)
        else:
            work = FailDirectories(broker_id=broker_id, epoch=epoch, directories=directories)
            self.work[FailDirectories, broker_id] = work
        self.sessions.failing[broker_id] = work.directories
        return work

    def add(self, work: MoveLeaders | ElectLeaders | BalanceLeaders | ForgetEligible) -> None:
        """Something to do in later steps; a no-op if it is known already."""
        self.work.setdefault((type(work), work.broker_id), work)

    def may_step(self) -> bool:
        """Whether there is work, and what was written gets committed: slices must not outrun the quorum."""
        return bool(self.work) and len(self.ledger.pending) < PENDING_BATCHES_MAX

    def step(self, work: Work, now_ms: int) -> None:
        """One slice of `work`."""
        image = self.ledger.newest
        batch = next_slice(work, image, self.rules(image), self.config.records_per_slice_max)
        keys = work.unregister_keys if batch.done and isinstance(work, RemoveBroker) else []
        replies: list[Reply] = [(key, Done()) for key in keys]
        if batch.records:
            end_offset = self._append_slice(work, batch.records, replies, now_ms, is_last=batch.done)
        else:
            end_offset = self.ledger.newest_state.end_offset
            for key, response in replies:
                self.finish(key, ControllerResult(response=response), now_ms)
        if not batch.done:
            return
        del self.work[type(work), work.broker_id]
        if isinstance(work, FailDirectories):
            self.sessions.failing.pop(work.broker_id, None)
        elif isinstance(work, RemoveBroker):
            self._end_removal(work, end_offset, now_ms)

    def _append_slice(
        self, work: Work, records: Sequence[Record], replies: list[Reply], now_ms: int, *, is_last: bool
    ) -> int:
        tell = True
        if isinstance(work, RemoveBroker):  # its last slice has a record; that of other work may have none
            work.told_ms = now_ms if work.told_ms is None else work.told_ms
            tell = is_last or now_ms - work.told_ms >= BROKERS_TOLD_MS
            work.told_ms = now_ms if tell else work.told_ms
        self.last_append_ms = now_ms
        return self.port.append(records, replies, wake_observers=tell)

    def _end_removal(self, work: RemoveBroker, end_offset: int, now_ms: int) -> None:
        self.sessions.fencing.pop(work.broker_id, None)
        session = self.sessions.get(work.broker_id)
        if work.unregister:
            self.sessions.forget(work.broker_id)
        elif session is not None:
            session.unfence_from_offset = end_offset
        for arrived in work.parked:
            self.on_unparked(arrived, now_ms)

    def may_lead(self, image: MetadataImage) -> MayLead:
        """Unfenced, not shutting down, and not being fenced."""
        is_active = image.brokers.is_active
        fencing = self.sessions.fencing
        if not fencing:
            return is_active
        return lambda broker_id: is_active(broker_id) and broker_id not in fencing

    def rules(self, image: MetadataImage) -> Rules:
        """What holds for changes of partitions on `image` now."""
        failing = frozenset[bytes]().union(*self.sessions.failing.values())
        begun_anew = self.sessions.begun_anew
        return rules_of(image, self.may_lead(image), failing, self._topic_defaults, begun_anew)

    # ---- answers

    def append(self, records: Sequence[Record], replies: list[Reply], now_ms: int) -> int:
        self.last_append_ms = now_ms
        return self.port.append(records, replies)

    def finish(
        self,
        key: int,
        result: ControllerResult,
        now_ms: int,
        too_large: Callable[[], ControllerResult] = too_large_for_a_batch,
    ) -> bool:
        """Writes the records; the answer goes out when what it says is committed (DESIGN 6).

        False: no batch can hold them, and that was the answer: that of `too_large`, which has no records, or
        that the request holds a value which no record can carry.
        """
        if result.records:
            try:
                self.append(result.records, [(key, result.response)], now_ms)
            except BatchError:
                self.finish(key, too_large(), now_ms)
                return False
            except RecordEncodeError as error:
                self.port.reply(key, ApiError(ErrorCode.INVALID_REQUEST, f"{error}: correct the request"))
                return False
        elif self._holds_already(result):
            self.port.reply(key, result.response)
        else:
            self.ledger.wait((key, result.response))
        return True

    def _holds_already(self, result: ControllerResult) -> bool:
        ledger = self.ledger
        if not ledger.pending or not result.depends_on_image:
            return True
        broker_id = result.depends_on_broker
        if broker_id is None:
            return False
        newest, committed = ledger.newest.brokers, ledger.committed.image.brokers
        return newest.get(broker_id) == committed.get(broker_id) and newest.registration_offset(
            broker_id
        ) == committed.registration_offset(broker_id)


def busy(what: str) -> ApiError:
    """The request was not looked at. Kafka's retriable code whose meaning is 'later', and which never leaves
    open whether the request was carried out (REQUEST_TIMED_OUT would)."""
    return ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"the controller is busy: {what}; retry in a moment")
