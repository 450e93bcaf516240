"""What the active controller knows about the use of broker ids: when each was requested, and how long it was
absent.

Owns the facts behind the decisions of `broker_ids` (its `Presence`), and must not make them: facts change
when records have been appended. All of it is lost with leadership, and every wait then starts over: a
newcomer then waits longer, and no id is given away early.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from metaquorum.controller.brokers.sessions import Sessions
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.image import BrokersImage, MetadataImage

CLAIM_MS = 30_000
"""How long an allocated id is kept for its broker to register."""

ASKED_MAX = 1_000
"""Requests whose first arrival is remembered; the oldest are forgotten and wait again."""


class BrokerIdPresence:
    """Times are monotonic ms. Nothing before `now_ms` is known."""

    def __init__(self, sessions: Sessions, image: MetadataImage, now_ms: int) -> None:
        self._sessions = sessions
        self._began_ms = now_ms
        self._asked: dict[bytes, int] = {}
        self._seen_brokers: BrokersImage | None = None
        self._present: frozenset[int] = frozenset()
        self._away_since: dict[int, int] = {}
        self._seen_entries: Mapping[str, str] | None = None
        self._claims: dict[int, tuple[str, int]] = {}
        self.look(image, now_ms)

    def look(self, image: MetadataImage, now_ms: int) -> None:
        """Notes which brokers came and went. O(brokers), and only if brokers or their configuration changed
        since the last look."""
        if image.brokers is not self._seen_brokers:
            self._seen_brokers = image.brokers
            present = frozenset(broker_id for broker_id, known in image.brokers.items() if not known.fenced)
            for broker_id in self._present - present:
                self._away_since[broker_id] = now_ms
            self._present = present
        entries = ids.remembered(image)
        if entries is not self._seen_entries:
            self._seen_entries = entries
            before, self._claims = self._claims, {}
            for broker_id, value in ids.claimed_values(entries).items():
                known_value, since_ms = before.get(broker_id, ("", now_ms))
                self._claims[broker_id] = (value, since_ms if known_value == value else now_ms)
                self._away_since[broker_id] = max(
                    self._away_since.get(broker_id, 0), self._claims[broker_id][1]
                )

    def note_asked(self, request_id: bytes, arrived_ms: int) -> None:
        """Remembers when a request first arrived."""
        self._asked.setdefault(request_id, arrived_ms)
        if len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]

    def at(
        self, image: MetadataImage, voters: frozenset[int], request_id: bytes, arrived_ms: int
    ) -> PresenceAtRequest:
        """The presence when a request arrived."""
        asked_ms = self._asked.get(request_id, arrived_ms)
        return PresenceAtRequest(self, image.brokers, voters, arrived_ms, asked_ms)

    def lapsed_claims(self, now_ms: int) -> list[int]:
        """Ids that were allocated, but whose broker did not register in time."""
        return [broker_id for broker_id in self._claims if self.claim_ms(broker_id, now_ms) == 0]

    # ---- facts about an id

    def lease_ms(self, brokers: BrokersImage, broker_id: int, now_ms: int) -> int:
        """A broker that was fenced when this leadership began and has sent nothing yet may also be alive: it
        has one session timeout to send a heartbeat."""
        sessions = self._sessions
        if brokers.get(broker_id) is None:
            return 0
        if sessions.get(broker_id) is None and broker_id not in sessions.fencing:
            return max(0, self._began_ms + sessions.session_timeout_ms - now_ms)
        return sessions.remaining_ms(broker_id, now_ms)

    def heard_ms(self, broker_id: int) -> int | None:
        """When the id's holder last sent a request in this leadership."""
        session = self._sessions.get(broker_id)
        return session.contact_ms if session is not None and session.was_heard else None

    def claim_ms(self, broker_id: int, now_ms: int) -> int:
        claim = self._claims.get(broker_id)
        return 0 if claim is None else max(0, claim[1] + CLAIM_MS - now_ms)

    def absent_ms(self, broker_id: int, now_ms: int) -> int:
        if broker_id in self._present:
            return 0
        since_ms = max(self._began_ms, self._away_since.get(broker_id, 0), self.heard_ms(broker_id) or 0)
        return max(0, now_ms - since_ms)


class PresenceAtRequest(msgspec.Struct, frozen=True):
    """`broker_ids.Presence` for one request."""

    _seen: BrokerIdPresence
    _brokers: BrokersImage
    voters: frozenset[int]
    _arrived_ms: int
    _asked_ms: int

    def lease_ms(self, broker_id: int) -> int:
        return self._seen.lease_ms(self._brokers, broker_id, self._arrived_ms)

    def heard_since_asked(self, broker_id: int) -> bool:
        heard_ms = self._seen.heard_ms(broker_id)
        return heard_ms is not None and heard_ms > self._asked_ms

    def claim_ms(self, broker_id: int) -> int:
        return self._seen.claim_ms(broker_id, self._arrived_ms)

    def absent_ms(self, broker_id: int) -> int:
        return self._seen.absent_ms(broker_id, self._arrived_ms)
