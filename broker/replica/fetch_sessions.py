"""Fetch sessions as the leader keeps them (KIP-227): what a fetcher requests, and what it last got.

If an answer gave a partition something that needs a reaction (records, an error, where logs diverge), the
partition is not looked at again before the fetcher has that answer, that is before its next request. If that
request does not name it, it is answered from the same position again, as in Kafka.
"""

from __future__ import annotations

import random

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import CONSUMER, FetchPartition, FetchRequest, PartitionKey

EVICTION_MS = 120_000
"""A session that was unused for this long may be evicted for any other; a younger one only for a more
important one.
"""

Head = tuple[int, int, int]
"""High watermark, last stable offset, log start."""

NO_SESSION = 0
FINAL_EPOCH = -1
FIRST_EPOCH = 0
LAST_EPOCH = 2**31 - 1


class FetchSession:
    """`partitions`: those it requests now. `fresh`: those that have to be looked at, in the order in which
    they are served. `late`: looked at, with only another high watermark or log start to report, which can
    wait for the next answer. `last_answered`: the head of a partition (`ReadPlan.head`) as last answered. A
    fetch without a session has one of its own, with id 0, for as long as it lasts."""

    __slots__ = (
        "created_ms",
        "fresh",
        "is_follower",
        "last_answered",
        "late",
        "next_epoch",
        "partitions",
        "paused",
        "replica_id",
        "session_id",
        "used_ms",
    )

    def __init__(self, session_id: int, replica_id: int, now_ms: int) -> None:
        self.session_id = session_id
        self.replica_id = replica_id
        self.is_follower = replica_id > CONSUMER
        self.next_epoch = 1
        self.partitions: dict[PartitionKey, FetchPartition] = {}
        self.fresh: dict[PartitionKey, None] = {}
        self.late: dict[PartitionKey, None] = {}
        self.paused: dict[PartitionKey, None] = {}
        self.last_answered: dict[PartitionKey, Head] = {}
        self.created_ms = now_ms
        self.used_ms = now_ms

    def name(self, parts: tuple[FetchPartition, ...]) -> None:
        """Partitions that are new or have another position: they are looked at first."""
        for part in parts:
            self.partitions[part.key] = part
            self.paused.pop(part.key, None)
            self.fresh[part.key] = None

    def resume(self) -> None:
        """The fetcher has the last answer."""
        self.fresh.update(self.paused)
        self.paused.clear()

    def forget(self, key: PartitionKey) -> None:
        self.partitions.pop(key, None)
        self.fresh.pop(key, None)
        self.late.pop(key, None)
        self.last_answered.pop(key, None)
        self.paused.pop(key, None)

    def is_content(self, key: PartitionKey) -> bool:
        """Whether it holds everything a partition had when it last fetched."""
        return key in self.partitions and key not in self.fresh and key not in self.paused

    def mark_changed(self, key: PartitionKey) -> bool:
        """Something moved in a partition. Returns whether the session has to look at it."""
        if key in self.paused or key not in self.partitions:
            return False
        self.fresh[key] = None
        return True

    def looked(self, key: PartitionKey, head: Head) -> None:
        """There was nothing to read; `head`: the current one."""
        if self.last_answered.get(key) == head:
            self.late.pop(key, None)
        else:
            self.late[key] = None

    def answered(self, key: PartitionKey, last_answered: Head, *, pause: bool) -> None:
        self.late.pop(key, None)
        self.last_answered[key] = last_answered
        if pause:
            self.paused[key] = None

    def put_off(self, key: PartitionKey) -> None:
        """It was not looked at because the answer is full: it waits behind the others."""
        self.fresh.pop(key, None)
        self.fresh[key] = None

    def go_first(self, keys: list[PartitionKey]) -> None:
        """They were looked at and had no room in the answer: the next answer begins with them."""
        self.fresh = dict.fromkeys(keys) | self.fresh

    def advance(self) -> None:
        self.next_epoch = 1 if self.next_epoch == LAST_EPOCH else self.next_epoch + 1


class SessionCache:
    """At most `slots` sessions."""

    def __init__(self, slots: int, rng: random.Random) -> None:
        self._slots = slots
        self._rng = rng
        self._sessions: dict[int, FetchSession] = {}
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, request: FetchRequest) -> FetchSession | ApiError:
        """The session that an incremental request continues with; its epoch is not advanced yet."""
        session = self._sessions.get(request.session_id)
        if session is None or session.replica_id != request.replica_id:
            text = f"fetch session {request.session_id} is unknown or was evicted: start a new one"
            return ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, text)
        if request.session_epoch != session.next_epoch:
            text = (
                f"fetch session {request.session_id} is at epoch {session.next_epoch}, not "
                f"{request.session_epoch}: start a new one"
            )
            return ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, text)
        return session

    def begin(self, request: FetchRequest, now_ms: int) -> tuple[FetchSession | None, FetchSession | None]:
        """A new session for a request that begins one, and the session evicted for it. The first is None if
        there is no slot: the request is answered without a session."""
        evicted = None
        if len(self._sessions) >= self._slots:
            evicted = self._evictable(request, now_ms)
            if evicted is None:
                return None, None
            del self._sessions[evicted.session_id]
            self.evictions += 1
        session_id = self._rng.randrange(1, LAST_EPOCH)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, LAST_EPOCH)
        session = FetchSession(session_id, request.replica_id, now_ms)
        self._sessions[session_id] = session
        return session, evicted

    def remove(self, session_id: int, replica_id: int) -> FetchSession | None:
        session = self._sessions.get(session_id)
        if session is None or session.replica_id != replica_id:
            return None
        return self._sessions.pop(session_id)

    def _evictable(self, request: FetchRequest, now_ms: int) -> FetchSession | None:
        """KIP-227: the session unused for longest, if that is long enough; else the least important one that
        is old enough: a client's before a follower's, a smaller one before a larger one."""
        if not self._sessions:
            return None
        oldest = min(self._sessions.values(), key=lambda each: each.used_ms)
        if now_ms - oldest.used_ms > EVICTION_MS:
            return oldest
        wanted = (request.replica_id > CONSUMER, len(request.partitions))
        least = min(self._sessions.values(), key=_importance)
        if least.is_follower == wanted[0] and now_ms - least.created_ms <= EVICTION_MS:
            return None
        return least if _importance(least) < wanted else None


def _importance(session: FetchSession) -> tuple[bool, int]:
    return session.is_follower, len(session.partitions)
