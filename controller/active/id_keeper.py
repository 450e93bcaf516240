"""Broker ids at the active controller: who asked when, who has been away for how long, and the collection.

Owns the soft state behind the decisions of `broker_ids` (Presence) and brings them to the workbench. All of
it is lost with leadership, and every wait then begins anew: that makes a newcomer wait longer and never
gives away an id earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from metaquorum.controller.active.workbench import Workbench
from metaquorum.controller.brokers import broker_ids as decide
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import BrokersImage, MetadataImage
from metaquorum.metadata.requests.broker_ids import (
    AllocateBrokerIdRequest,
    BindBrokerIdRequest,
    BrokerIdRequest,
    UnbindBrokerIdRequest,
)
from metaquorum.metadata.requests.common import RegisterBrokerRequest

CLAIM_MS = 30_000
"""An id that was handed out is kept so long for its start to register."""

ASKED_MAX = 1_000
"""Requests whose first arrival is remembered; the oldest are forgotten and wait anew."""


class IdKeeper:
    """See the module. Times are monotonic ms."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._began_ms = 0
        self._asked: dict[bytes, int] = {}
        self._seen_brokers: BrokersImage | None = None
        self._present: frozenset[int] = frozenset()
        self._away_since: dict[int, int] = {}
        self._seen_entries: Mapping[str, str] | None = None
        self._claims: dict[int, tuple[str, int]] = {}
        self._collect_at_ms = 0

    def begin(self, now_ms: int) -> None:
        """This leadership is active from now on: nothing that came before is known."""
        self._began_ms = now_ms
        self._collect_at_ms = now_ms + self._bench.config.broker_id_gc_interval_ms

    # ---- requests

    def handle(self, arrived: RequestArrived, request: BrokerIdRequest, now_ms: int) -> None:
        """Decides one request; its answer goes out now or with a commit."""
        self._look(now_ms)
        image, config = self._bench.ledger.newest, self._bench.config
        match request:
            case AllocateBrokerIdRequest():
                asked_ms = self._first_asked(request.request_id, arrived.arrived_ms)
                presence = _Presence(self, arrived.arrived_ms, asked_ms)
                result = decide.decide_allocation(image, request, config, presence)
            case BindBrokerIdRequest():
                result = decide.decide_bind(image, request, self._bench.port.voters)
            case UnbindBrokerIdRequest():
                result = decide.decide_unbind(image, request)
            case _:
                assert_never(request)
        self._bench.finish(arrived.key, result, now_ms)

    def registered(
        self, request: RegisterBrokerRequest, result: ControllerResult, arrived_ms: int
    ) -> ControllerResult:
        """A registration's result, with what is to be remembered of it (S0.13)."""
        if isinstance(result.response, ApiError):
            return result
        image = self._bench.ledger.newest
        more = decide.remember_registration(image, request, self._is_live(image, arrived_ms))
        return replace(result, records=(*result.records, *more)) if more else result

    def _is_live(self, image: MetadataImage, now_ms: int) -> Callable[[int], bool]:
        sessions = self._bench.sessions

        def live(broker_id: int) -> bool:
            known = image.brokers.get(broker_id)
            return known is not None and (not known.fenced or sessions.remaining_ms(broker_id, now_ms) > 0)

        return live

    def _first_asked(self, request_id: bytes, arrived_ms: int) -> int:
        asked_ms = self._asked.setdefault(request_id, arrived_ms)
        if len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        return asked_ms

    # ---- time

    def tick(self, now_ms: int) -> None:
        """Notes who came and went, and collects what is garbage when it is time."""
        self._look(now_ms)
        interval_ms = self._bench.config.broker_id_gc_interval_ms
        if interval_ms <= 0 or now_ms < self._collect_at_ms:
            return
        self._collect_at_ms = now_ms + interval_ms
        lapsed = [broker_id for broker_id in self._claims if self.claim_ms(broker_id, now_ms) == 0]
        records = decide.collect(self._bench.ledger.newest, lapsed)
        if records:
            self._bench.append(records, [], now_ms)

    def next_deadline_ms(self) -> int | None:
        """When `tick` may have something to collect; None: nothing is remembered."""
        if self._bench.config.broker_id_gc_interval_ms <= 0 or not ids.remembered(self._bench.ledger.newest):
            return None
        return self._collect_at_ms

    def _look(self, now_ms: int) -> None:
        """O(brokers), and only when brokers or their configuration changed since the last look."""
        image = self._bench.ledger.newest
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

    # ---- what is known of an id

    @property
    def voters(self) -> frozenset[int]:
        return self._bench.port.voters

    def lease_ms(self, broker_id: int, now_ms: int) -> int:
        """Also a broker that was fenced when this leadership began and has not been heard of yet may live:
        it has one session's time to say so."""
        sessions = self._bench.sessions
        known = self._bench.ledger.newest.brokers.get(broker_id)
        if known is None:
            return 0
        if sessions.get(broker_id) is None and broker_id not in sessions.fencing:
            return max(0, self._began_ms + sessions.session_timeout_ms - now_ms)
        return sessions.remaining_ms(broker_id, now_ms)

    def heard_ms(self, broker_id: int) -> int | None:
        """When the id's holder was last heard of in this leadership."""
        session = self._bench.sessions.get(broker_id)
        return None if session is None else session.contact_ms

    def claim_ms(self, broker_id: int, now_ms: int) -> int:
        claim = self._claims.get(broker_id)
        return 0 if claim is None else max(0, claim[1] + CLAIM_MS - now_ms)

    def absent_ms(self, broker_id: int, now_ms: int) -> int:
        if broker_id in self._present:
            return 0
        since_ms = max(self._began_ms, self._away_since.get(broker_id, 0), self.heard_ms(broker_id) or 0)
        return max(0, now_ms - since_ms)


@dataclass(frozen=True, slots=True)
class _Presence:
    """`decide.Presence` for one request."""

    _keeper: IdKeeper
    _arrived_ms: int
    _asked_ms: int

    @property
    def voters(self) -> frozenset[int]:
        return self._keeper.voters

    def lease_ms(self, broker_id: int) -> int:
        return self._keeper.lease_ms(broker_id, self._arrived_ms)

    def heard_since_asked(self, broker_id: int) -> bool:
        heard_ms = self._keeper.heard_ms(broker_id)
        return heard_ms is not None and heard_ms > self._asked_ms

    def claim_ms(self, broker_id: int) -> int:
        return self._keeper.claim_ms(broker_id, self._arrived_ms)

    def absent_ms(self, broker_id: int) -> int:
        return self._keeper.absent_ms(broker_id, self._arrived_ms)
