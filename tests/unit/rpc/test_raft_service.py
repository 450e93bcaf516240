"""Who is answered first: peers at once, brokers a few in each turn of the loop, in order and all of them."""

from __future__ import annotations

import asyncio

import pytest

from metaquorum.network.deferred import Deferred
from metaquorum.raft.events import RaftRequestAbandoned, RaftRequestArrived
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    RaftError,
    RaftRequest,
    RaftResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.rpc import transport
from metaquorum.rpc.transport import OTHERS_BYTES_PER_TURN, OTHERS_PER_TURN, RaftService, TransportEvent
from metaquorum.storage.types import LogPosition

PEER = 3001
FIRST_BROKER = 100
VOTE = VoteRequest(
    cluster_id="c",
    epoch=2,
    candidate_id=FIRST_BROKER,
    candidate_directory_id=bytes(16),
    voter_id=1,
    voter_directory_id=bytes(16),
    last_position=LogPosition(1, 1),
    pre_vote=False,
)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are counted here, not milliseconds."""
    monkeypatch.setattr(transport, "OTHERS_PAUSE_MAX_S", 0)


def fetch(node_id: int) -> FetchRequest:
    return FetchRequest(
        cluster_id="c",
        replica_id=node_id,
        replica_directory_id=bytes(16),
        epoch=1,
        fetch_offset=0,
        last_fetched_epoch=0,
        high_watermark=-1,
        max_wait_ms=100,
        max_bytes=1000,
    )


def response(records: bytes = b"") -> FetchResponse:
    return FetchResponse(
        error=RaftError.NONE, epoch=1, leader_id=1, high_watermark=0, log_start_offset=0, records=records
    )


class Served:
    """A service whose callers each wait for one answer, and the order in which they were answered."""

    def __init__(self, *callers: int, accepts: bool = True) -> None:
        self.keys: list[int] = []
        self.abandoned: list[int] = []
        self.answered: list[int] = []
        self._accepts = accepts
        self.service = RaftService(self._take, frozenset({PEER}))
        self.waiting = [self.ask(node_id, fetch(node_id)) for node_id in callers]

    def ask(self, caller: int, request: RaftRequest) -> Deferred[RaftResponse] | None:
        waiting = self.service.ask(request)
        if waiting is not None:
            waiting.then(lambda _: self.answered.append(caller))
        return waiting

    def _take(self, event: TransportEvent) -> bool:
        if isinstance(event, RaftRequestArrived):
            self.keys.append(event.key)
        elif isinstance(event, RaftRequestAbandoned):
            self.abandoned.append(event.key)
        return self._accepts


async def settle(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_a_peer_does_not_wait_behind_brokers() -> None:
    brokers = range(FIRST_BROKER, FIRST_BROKER + 20 * OTHERS_PER_TURN)
    served = Served(*brokers, PEER)
    for key in served.keys:
        served.service.respond(key, response())
    assert served.answered == [PEER]
    await settle(5)
    assert OTHERS_PER_TURN < len(served.answered) < len(brokers)
    await settle(400)
    assert served.answered == [PEER, *brokers]


async def test_a_vote_does_not_wait_behind_brokers_whatever_node_asks_for_it() -> None:
    served = Served(*range(FIRST_BROKER, FIRST_BROKER + OTHERS_PER_TURN))
    served.ask(7, VOTE)
    for key in served.keys[:-1]:
        served.service.respond(key, response())
    granted = VoteResponse(error=RaftError.NONE, epoch=2, leader_id=None, vote_granted=True, pre_vote=False)
    served.service.respond(served.keys[-1], granted)
    assert served.answered == [7]


async def test_large_answers_are_fewer_in_a_turn() -> None:
    brokers = range(FIRST_BROKER, FIRST_BROKER + 12)
    served = Served(*brokers)
    for key in served.keys:
        served.service.respond(key, response(bytes(OTHERS_BYTES_PER_TURN // 2)))
    await settle(4)
    assert 2 <= len(served.answered) <= 8
    await settle(100)
    assert served.answered == list(brokers)


async def test_a_broker_that_went_away_is_passed_over_and_its_request_abandoned_once() -> None:
    brokers = range(FIRST_BROKER, FIRST_BROKER + 3 * OTHERS_PER_TURN)
    served = Served(*brokers)
    early, late = served.waiting[-3], served.waiting[-2]
    assert early is not None and late is not None
    early.cancel()
    assert served.abandoned == [served.keys[-3]]
    for key in served.keys:
        served.service.respond(key, response())
        served.service.respond(key, response())
    late.cancel()
    await settle(100)
    assert served.answered == [broker for broker in brokers if broker not in (brokers[-3], brokers[-2])]
    assert served.abandoned == [served.keys[-3]], "what was answered is not abandoned"


async def test_a_request_that_the_node_does_not_take_has_no_answer_to_wait_for() -> None:
    served = Served(PEER, accepts=False)
    assert served.waiting == [None]
    served.service.respond(served.keys[0], response())
