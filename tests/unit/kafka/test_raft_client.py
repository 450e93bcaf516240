"""Raft between voters over Kafka's protocol: both sides on loopback, and peers of other releases."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from metaquorum.clients.kafka.connection import CLOSED_AFTER_TLS, NodeConnection
from metaquorum.clients.kafka.raft_client import NO_LOGIN, NOT_BY_GRPC, KafkaRaftClient, KafkaWay
from metaquorum.config.security import Credentials
from metaquorum.listeners.services import Offered
from metaquorum.raft.events import (
    RaftRequestAbandoned,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
)
from metaquorum.raft.messages import FetchRequest, FetchSnapshotRequest, RaftError, VoteRequest, VoteResponse
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.transport import IN_FLIGHT_MAX, PeerAddress
from metaquorum.storage.types import LogPosition
from metaquorum.wire.messages import VoteResponse as WireVoteResponse
from tests.conformance.exchanges import EXCHANGES, PATIENT_MS, Sink, fetch, fetched
from tests.unit.kafka.raft_pair import HOST, Caller, Voter, caller_of
from tests.unit.server.certificates import certificate_files
from tests.unit.server.test_servers import material

VOTE = VoteRequest(
    cluster_id="c",
    epoch=7,
    candidate_id=1,
    candidate_directory_id=bytes(range(16)),
    voter_id=2,
    voter_directory_id=b"",
    last_position=LogPosition(6, 5),
    pre_vote=True,
)
GRANTED = VoteResponse(error=RaftError.NONE, epoch=7, leader_id=None, vote_granted=True, pre_vote=True)


@asynccontextmanager
async def pair(offered: dict[str, Offered] | None = None) -> AsyncIterator[tuple[Caller, Voter]]:
    voter = await Voter(offered).start()
    caller = Caller(voter.port)
    yield caller, voter
    await caller.client.close()
    voter.kill()
    await asyncio.sleep(0)


FETCHES = [pair for pair in EXCHANGES if isinstance(pair[0], FetchRequest | FetchSnapshotRequest)]


@pytest.mark.parametrize("exchange", FETCHES, ids=lambda pair: type(pair[1]).__name__)
async def test_a_vote_does_not_wait_behind_a_fetch_that_the_leader_holds(exchange: tuple[Any, Any]) -> None:
    request, response = exchange
    async with pair() as (caller, voter):
        caller.client.send(2, 1, request, PATIENT_MS)
        held = await voter.sink.next(RaftRequestArrived)
        caller.client.send(2, 2, VOTE, PATIENT_MS)
        assert await voter.answer(GRANTED) == VOTE
        answer = await caller.sink.next(RaftResponseArrived)
        assert (answer.correlation_id, answer.response) == (2, GRANTED)
        voter.service.respond(held.key, response)
        assert (await caller.sink.next(RaftResponseArrived)).correlation_id == 1


async def test_a_crashed_peer_fails_everything_outstanding_refuses_and_is_reached_again() -> None:
    async with pair() as (caller, voter):
        caller.client.send(2, 1, fetch(), PATIENT_MS)
        caller.client.send(2, 2, VOTE, PATIENT_MS)
        for _ in range(2):
            await voter.sink.next(RaftRequestArrived)
        voter.kill()
        failed = [await caller.sink.next(RaftRequestFailed) for _ in range(2)]
        assert {each.correlation_id for each in failed} == {1, 2}
        caller.client.send(2, 3, fetch(), PATIENT_MS)
        refused = await caller.sink.next(RaftRequestFailed)
        assert f"cannot reach node 2 at {HOST}:{voter.port}" in refused.reason
        again = await Voter(port=voter.port).start()
        again.becomes_older()
        number = 4
        while again.sink.events.empty():
            caller.client.send(2, number, fetch(), PATIENT_MS)
            number += 1
            done = asyncio.ensure_future(caller.sink.events.get())
            arrived = asyncio.ensure_future(again.sink.events.get())
            await asyncio.wait({done, arrived}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
            if arrived.done():
                again.service.respond(arrived.result().key, fetched(7))
                assert (await asyncio.wait_for(done, 60)).response == fetched(7)
                break
            arrived.cancel()
        again.kill()


async def test_a_request_without_an_answer_in_time_ends_its_connection() -> None:
    """Its late answer would hold up the next one."""
    async with pair() as (caller, voter):
        caller.client.send(2, 5, fetch(), 300)
        late = await voter.sink.next(RaftRequestArrived)
        failure = await caller.sink.next(RaftRequestFailed)
        assert (failure.correlation_id, failure.reason) == (5, "no answer within 300 ms")
        assert await voter.sink.next(RaftRequestAbandoned) == RaftRequestAbandoned(key=late.key)
        caller.client.send(2, 6, fetch(), PATIENT_MS)
        await voter.answer(fetched())
        assert (await caller.sink.next(RaftResponseArrived)).correlation_id == 6


async def test_a_voter_logs_in_again_before_its_session_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Sessions as short as a second: no request fails, so that no follower looks for another leader. It holds
    for the connection that is always in use and for the one that is idle in between."""
    voter = await Voter(session_ms=1_000).start()
    caller = Caller(voter.port, Credentials(mechanism="PLAIN", user="node", password="secret"))
    number = 0
    while voter.logins < 6:
        number += 1
        caller.client.send(2, number, fetch(), PATIENT_MS)
        await voter.answer(fetched())
        assert (await caller.sink.next(RaftResponseArrived)).correlation_id == number
        if number % 20 == 0:
            caller.client.send(2, -number, VOTE, PATIENT_MS)
            await voter.answer(GRANTED)
            assert (await caller.sink.next(RaftResponseArrived)).correlation_id == -number
        await asyncio.sleep(0.02)
    assert caller.sink.events.empty()
    assert not [each for each in caplog.records if "session" in each.getMessage()]
    assert len(voter.open) <= 2, "the connections whose sessions end are closed"
    await caller.client.close()
    voter.kill()


async def test_a_session_that_ends_costs_no_request_that_waits() -> None:
    voter = await Voter(session_ms=3_600_000).start()
    caller = Caller(voter.port, Credentials(mechanism="PLAIN", user="node", password="secret"))
    caller.client.send(2, 1, fetch(), PATIENT_MS)
    held = await voter.sink.next(RaftRequestArrived)
    connection = caller.client._peers[2]._fetches._connection
    assert connection is not None
    connection._replaced_s = 0.0
    caller.client.send(2, 2, fetch(), PATIENT_MS)
    voter.service.respond(held.key, fetched())
    await voter.answer(fetched())
    answered = [(await caller.sink.next(RaftResponseArrived)).correlation_id for _ in range(2)]
    assert (answered, voter.logins) == ([1, 2], 1)
    caller.client.send(2, 3, fetch(), PATIENT_MS)
    await voter.answer(fetched())
    assert (await caller.sink.next(RaftResponseArrived)).correlation_id == 3
    assert voter.logins == 2
    await caller.client.close()
    voter.kill()


async def test_a_peer_that_does_not_accept_the_certificate_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It closes the connection after a handshake that has ended for the caller (TLS 1.3)."""
    authority = certificate_files(tmp_path, "authority", None)
    certificate_files(tmp_path, "node", authority)
    certificate_files(tmp_path, "stranger", certificate_files(tmp_path, "other-authority", None))
    voter = await Voter(tls=material(tmp_path, "node").server_context("required")).start()
    context = material(tmp_path, "stranger").client_context()
    caller = Caller(voter.port, tls=context)
    for number in range(3):
        caller.client.send(2, number, VOTE, PATIENT_MS)
        await caller.sink.next(RaftRequestFailed)
    told = [each.getMessage() for each in caplog.records if "cannot be asked" in each.getMessage()]
    assert len(told) == 1 and CLOSED_AFTER_TLS in told[0]
    assert voter.sink.events.empty()
    await caller.client.close()
    voter.kill()


async def test_a_caller_that_closes_abandons_its_requests_without_an_event() -> None:
    async with pair() as (caller, voter):
        caller.client.send(2, 1, fetch(), PATIENT_MS)
        arrived = await voter.sink.next(RaftRequestArrived)
        await caller.client.close()
        assert await voter.sink.next(RaftRequestAbandoned) == RaftRequestAbandoned(key=arrived.key)
        assert caller.sink.events.empty()


async def test_a_peer_that_moved_is_asked_where_it_is_now_and_one_that_left_is_let_go() -> None:
    async with pair() as (caller, voter):
        other = await Voter().start()
        caller.client.send(2, 1, fetch(), PATIENT_MS)
        await voter.sink.next(RaftRequestArrived)
        caller.addresses[2] = PeerAddress(HOST, other.port)
        caller.client.send(2, 2, fetch(), PATIENT_MS)
        moved = await caller.sink.next(RaftRequestFailed)
        assert (moved.correlation_id, moved.reason) == (1, f"node 2 moved to {HOST}:{other.port}")
        await other.sink.next(RaftRequestArrived)
        caller.client.retain({2})
        assert caller.sink.events.empty()
        caller.client.retain(())
        assert (await caller.sink.next(RaftRequestFailed)).correlation_id == 2
        other.kill()


async def test_an_unknown_peer_and_a_flood_fail_without_a_call_back_inside_send() -> None:
    async with pair() as (caller, _):
        caller.client.send(8, 3, fetch(), PATIENT_MS)
        assert caller.sink.events.empty()
        failure = await caller.sink.next(RaftRequestFailed)
        assert (failure.target, failure.reason) == (8, "node 8 has no known address")
        for number in range(IN_FLIGHT_MAX + 2):
            caller.client.send(2, number, fetch(), PATIENT_MS)
        failed = [await caller.sink.next(RaftRequestFailed) for _ in range(2)]
        assert {each.correlation_id for each in failed} == {IN_FLIGHT_MAX, IN_FLIGHT_MAX + 1}


def answering(body: Any) -> Any:
    return lambda request, client: body


async def test_a_release_without_pre_votes_is_not_asked_for_one() -> None:
    """Kafka 3.7 has Vote 0: the core learns that the voter has no pre-vote."""
    async with pair({"Vote": Offered(0, 0, answering(WireVoteResponse()))}) as (caller, voter):
        caller.client.send(2, 1, VOTE, PATIENT_MS)
        answer = await caller.sink.next(RaftResponseArrived)
        assert answer.response.error is RaftError.UNSUPPORTED_VERSION
        assert answer.response.pre_vote and not answer.response.vote_granted
        assert voter.sink.events.empty()


async def test_a_peer_that_does_not_allow_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with pair({"Vote": Offered(0, 2, answering(WireVoteResponse(error_code=31)))}) as (caller, _):
        for number in range(3):
            caller.client.send(2, number, VOTE, PATIENT_MS)
            failure = await caller.sink.next(RaftRequestFailed)
            assert "allow this node's principal ClusterAction" in failure.refusal
    told = [each.getMessage() for each in caplog.records if "cannot be asked" in each.getMessage()]
    assert len(told) == 1 and "CLUSTER_AUTHORIZATION_FAILED" in told[0]


async def test_a_peer_without_the_api_is_told_and_fails() -> None:
    async with pair({}) as (caller, _):
        caller.client.send(2, 1, VOTE, PATIENT_MS)
        assert "does not offer Vote" in (await caller.sink.next(RaftRequestFailed)).reason


async def test_an_answer_about_nothing_fails_its_request() -> None:
    async with pair({"Vote": Offered(0, 2, answering(WireVoteResponse()))}) as (caller, _):
        caller.client.send(2, 1, VOTE, PATIENT_MS)
        assert "names no partition" in (await caller.sink.next(RaftRequestFailed)).reason


async def test_a_node_that_does_not_change_to_grpc_says_what_to_correct(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a broker does: it would follow one log, and register by another listener."""
    server = new_server()
    port = bind(server, HOST, 0, None)
    await server.start()
    caller = Caller(port)
    way = KafkaWay(client_id="raft-client-1")
    client = KafkaRaftClient(caller.addresses, caller.sink, way, random.Random(1))
    for number in range(3):
        client.send(2, number, fetch(), PATIENT_MS)
        failed = await caller.sink.next(RaftRequestFailed)
        assert number or failed.refusal == NOT_BY_GRPC
    assert caplog.messages == [f"node 2 at {HOST}:{port} cannot be asked: {NOT_BY_GRPC}"]
    await client.close()
    await caller.client.close()
    await server.stop(None)


async def test_a_listener_that_wants_a_login_says_so_to_a_node_without_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    voter = await Voter(session_ms=60_000).start()
    caller = Caller(voter.port)
    for number in range(2):  # the first time, it may be about to stop
        caller.client.send(2, number, fetch(), PATIENT_MS)
        caller.client.send(2, 10 + number, fetch(), PATIENT_MS)
        failed = [await caller.sink.next(RaftRequestFailed) for _ in range(2)]
        assert [each.refusal for each in failed] == ([NO_LOGIN] * 2 if number else ["", ""])
    assert f"node 2 at {HOST}:{voter.port} cannot be asked: {NO_LOGIN}" in caplog.messages
    await caller.client.close()
    voter.kill()


async def test_a_peer_that_stops_twice_wants_no_login() -> None:
    """It closes a connection, is away for a while, and closes one again."""

    async def failure(*passed_over: str) -> RaftRequestFailed:
        while True:
            caller.client.send(2, 1, fetch(), PATIENT_MS)
            failed = await caller.sink.next(RaftRequestFailed)
            if not any(text in failed.reason for text in passed_over):
                return failed
            await asyncio.sleep(0.02)

    voter = await Voter(session_ms=60_000).start()
    caller = Caller(voter.port)
    assert "closed the connection" in (await failure()).reason
    voter.kill()
    assert "refused" in (await failure()).reason
    again = await Voter(port=voter.port, session_ms=60_000).start()
    second = await failure("next attempt", "refused")
    assert "closed the connection" in second.reason and second.refusal == ""
    await caller.client.close()
    again.kill()


async def test_a_request_that_timed_out_before_there_was_a_connection_is_not_sent() -> None:
    voter, sink, may_open = await Voter().start(), Sink(), asyncio.Event()
    usual = KafkaWay(client_id="raft-client-1")

    class Slow:
        login = None

        async def open(self, address: PeerAddress, **options: Any) -> NodeConnection:
            await may_open.wait()
            return await usual.open(address)

    client = caller_of({2: PeerAddress(HOST, voter.port)}, sink, Slow())
    client.send(2, 1, fetch(1), 20)
    client.send(2, 2, fetch(2), PATIENT_MS)
    assert (await sink.next(RaftRequestFailed)).reason == "no answer within 20 ms"
    may_open.set()
    assert (await voter.answer(fetched())).fetch_offset == 2
    assert (await sink.next(RaftResponseArrived)).correlation_id == 2
    await client.close()
    voter.kill()
    await asyncio.sleep(0)
