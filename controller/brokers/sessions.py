"""Broker sessions: the active controller's soft state. Never logged, gone with leadership."""

from __future__ import annotations

import heapq
from itertools import islice

import msgspec
from msgspec.structs import replace

UNKNOWN_OFFSET = -1


class BrokerHeartbeatState(msgspec.Struct, frozen=True, kw_only=True):
    """One broker's lease. Times are monotonic ms; offsets are exclusive (everything below is applied).

    `unfence_from_offset`: it must have applied everything below before it may be unfenced: in particular the
    record that fenced it, so that a broker that makes no progress does not bounce between the two states.
    `moves_end_offset`: where its leaders' moves ended in the log, once it led nothing. `was_heard`: the
    broker itself sent a request at `contact_ms`. `min_insync_replicas`: that of its file; 0: unknown.
    """

    broker_epoch: int
    contact_ms: int
    deadline_ms: int
    applied_offset: int = UNKNOWN_OFFSET
    standing_since_ms: int | None = None
    unfence_from_offset: int = 0
    moves_end_offset: int | None = None
    expires: bool = True
    should_shut_down: bool = False
    was_heard: bool = True
    min_insync_replicas: int = 0

    def closed(self) -> BrokerHeartbeatState:
        """The lease is given up: another incarnation may register at once. Offsets are kept."""
        return replace(self, expires=False) if self.expires else self

    def with_applied(
        self, applied_offset: int, committed_offset: int, arrived_ms: int
    ) -> BrokerHeartbeatState:
        """The session with the progress that a heartbeat reports (S2.21)."""
        if applied_offset > self.applied_offset:
            return replace(self, applied_offset=applied_offset, standing_since_ms=None)
        since_ms = None
        if applied_offset < committed_offset:
            since_ms = arrived_ms if self.standing_since_ms is None else self.standing_since_ms
        return self if since_ms == self.standing_since_ms else replace(self, standing_since_ms=since_ms)


class Sessions:
    """Sessions by broker id, expiry in the order of deadlines.

    One heap entry per session; a heartbeat only moves its deadline, and an entry that comes up too early is
    pushed again. So a heartbeat costs O(1) and a tick looks only at what is due.
    """

    def __init__(self, session_timeout_ms: int, lag_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.lag_timeout_ms = lag_timeout_ms
        self.fencing: dict[int, int] = {}
        """Broker id to epoch: its fencing has begun and every decision treats it as fenced."""
        self.failing: dict[int, frozenset[bytes]] = {}
        """Broker id to directories whose failure is being written: every decision treats them as offline."""
        self.recreated: dict[tuple[bytes, int, int], bytes] = {}
        """Where a broker has recreated a replica, by topic id, partition and broker: the log names the
        directory that is gone, because no other replica was in sync. The broker repeats it until it is
        settled."""
        self.expired_count = 0
        """Unfenced brokers whose session expired."""
        self._sessions: dict[int, BrokerHeartbeatState] = {}
        self._heap: list[tuple[int, int]] = []
        self._queued: set[int] = set()
        self._overdue: dict[int, None] = {}
        """Brokers whose deadline has passed, oldest first; a session is here or in the heap."""
        self._hold_until_ms = 0
        self._horizon_ms = 0

    # ---- live brokers

    def __len__(self) -> int:
        """Brokers that have sent a request since this node leads, including those whose lease has ended."""
        return len(self._sessions)

    def get(self, broker_id: int) -> BrokerHeartbeatState | None:
        return self._sessions.get(broker_id)

    def min_insync_replicas(self) -> dict[int, int]:
        """By broker, of those that have sent a heartbeat; 0 from an earlier release."""
        return {
            broker_id: session.min_insync_replicas
            for broker_id, session in self._sessions.items()
            if session.was_heard
        }

    def clear(self) -> None:
        """Leadership is lost or new: nothing that was known is still valid."""
        self._sessions.clear()
        self._heap.clear()
        self._queued.clear()
        self._overdue.clear()
        self.fencing.clear()
        self.failing.clear()
        self.recreated.clear()

    def fresh(self, broker_epoch: int, now_ms: int) -> BrokerHeartbeatState:
        """A session that begins now; `put` makes it known."""
        return BrokerHeartbeatState(
            broker_epoch=broker_epoch, contact_ms=now_ms, deadline_ms=now_ms + self.session_timeout_ms
        )

    def unheard(self, broker_epoch: int, now_ms: int) -> BrokerHeartbeatState:
        """A session that a new leader gives a broker that may be alive: it has not sent anything yet."""
        return replace(self.fresh(broker_epoch, now_ms), was_heard=False)

    def put(self, broker_id: int, session: BrokerHeartbeatState) -> None:
        """Makes this the broker's session."""
        self._sessions[broker_id] = session
        self._overdue.pop(broker_id, None)
        if session.expires:
            self._queue(broker_id, session.deadline_ms)

    def _queue(self, broker_id: int, deadline_ms: int) -> None:
        if broker_id not in self._queued:
            self._queued.add(broker_id)
            heapq.heappush(self._heap, (deadline_ms, broker_id))

    def forget(self, broker_id: int) -> None:
        """The broker is no longer registered, or is registered as another incarnation."""
        self._sessions.pop(broker_id, None)
        self._overdue.pop(broker_id, None)
        self.fencing.pop(broker_id, None)
        for key in [key for key in self.recreated if key[2] == broker_id]:
            del self.recreated[key]

    def remaining_ms(self, broker_id: int, now_ms: int) -> int:
        """How long the lease still runs; 0 if there is none."""
        session = self._sessions.get(broker_id)
        if session is None or not session.expires:
            return 0
        return max(0, session.deadline_ms - now_ms)

    def touched(self, broker_id: int, broker_epoch: int, arrived_ms: int) -> BrokerHeartbeatState:
        """The session after a heartbeat or registration that arrived then: the lease starts over."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return self.fresh(broker_epoch, arrived_ms)
        deadline_ms = arrived_ms + self.session_timeout_ms
        if not session.expires:
            return BrokerHeartbeatState(
                broker_epoch=broker_epoch,
                contact_ms=arrived_ms,
                deadline_ms=deadline_ms,
                unfence_from_offset=session.unfence_from_offset,
                applied_offset=session.applied_offset,
                standing_since_ms=session.standing_since_ms,
                min_insync_replicas=session.min_insync_replicas,
            )
        if arrived_ms <= session.contact_ms:
            return session
        return replace(session, contact_ms=arrived_ms, deadline_ms=deadline_ms, was_heard=True)

    # ---- progress

    def is_paused(self, session: BrokerHeartbeatState, arrived_ms: int) -> bool:
        """Behind, and without progress for the lag timeout."""
        since = session.standing_since_ms
        return since is not None and arrived_ms - since >= self.lag_timeout_ms

    def applied_offset(self, broker_id: int) -> int:
        """The offset in its last heartbeat; -1 if there was none since this node leads."""
        session = self._sessions.get(broker_id)
        return UNKNOWN_OFFSET if session is None else session.applied_offset

    # ---- when a session may count as expired

    def note_gap(self, until_ms: int) -> None:
        """The process was paused: heartbeats may wait unread, and no broker counts as silent until then."""
        self._hold_until_ms = until_ms

    def carry(self, by_ms: int) -> None:
        """The clock was set forward by so much at once: how long brokers have been silent stays as it is."""
        for broker_id, session in self._sessions.items():
            since_ms = session.standing_since_ms
            self._sessions[broker_id] = replace(
                session,
                contact_ms=session.contact_ms + by_ms,
                deadline_ms=session.deadline_ms + by_ms,
                standing_since_ms=None if since_ms is None else since_ms + by_ms,
            )

    def note_arrival(self, arrived_ms: int) -> None:
        """Requests are handled in the order of arrival: everything that arrived before this one is in."""
        self._horizon_ms = max(self._horizon_ms, arrived_ms)

    def note_time(self, now_ms: int, *, drained: bool) -> None:
        """Time has passed. `drained`: the inbox is empty, so everything that arrived so far is in.

        A session is overdue only if everything that arrived up to its deadline has been handled, and the
        process has recovered from its last gap.
        """
        if now_ms < self._hold_until_ms:
            return
        if drained:
            self._horizon_ms = max(self._horizon_ms, now_ms)
        while self._heap and self._heap[0][0] <= self._horizon_ms:
            _, broker_id = heapq.heappop(self._heap)
            self._queued.discard(broker_id)
            session = self._sessions.get(broker_id)
            if session is None or not session.expires:
                continue
            if session.deadline_ms > self._horizon_ms:
                self._queue(broker_id, session.deadline_ms)
            else:
                self._overdue[broker_id] = None

    def overdue(self, now_ms: int, at_most: int) -> list[int]:
        """Brokers whose session has to expire, oldest first, as of the last `note_time`."""
        return [] if now_ms < self._hold_until_ms else list(islice(self._overdue, at_most))

    def expire(self, broker_id: int) -> None:
        """Ends the lease of an overdue broker."""
        del self._overdue[broker_id]
        self._sessions[broker_id] = self._sessions[broker_id].closed()

    def next_deadline_ms(self) -> int | None:
        """When a session may be overdue. An entry that is too early costs one look."""
        if self._overdue:
            return self._hold_until_ms
        return max(self._heap[0][0], self._hold_until_ms) if self._heap else None
