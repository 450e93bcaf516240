"""Fetches of the metadata log over Kafka's protocol: which are taken, as which values, and their answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.clients.kafka.quorum import answer_of
from metaquorum.clients.kafka.raft_messages import request_body, response_body, response_of
from metaquorum.controller.server.kafka import (
    ASKED_BY_VOTERS,
    CONNECTIONS_MAX,
    ControllersOf,
    RaftRequests,
    RoundsRepeated,
)
from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.rights import CHECKS_OF_CONTROLLERS
from metaquorum.listeners.services import Client, EndConnection, Later, Offered
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.image import MetadataImage
from metaquorum.raft.events import RaftRequestAbandoned, RaftRequestArrived
from metaquorum.raft.messages import (
    UNSTATED,
    FetchRequest,
    FetchResponse,
    RaftError,
    VoteRequest,
    VoteResponse,
)
from metaquorum.rpc.transport import RaftService
from metaquorum.storage.types import LogPosition
from metaquorum.wire import codec
from metaquorum.wire import messages as wire

CLUSTER, READER = "d2lyZS1jYXB0dXJlLTM3MA", b"r" * 16
CLIENT = Client(listener="KAFKA", address="127.0.0.1", connection=7)
ASKED = FetchRequest(
    cluster_id=CLUSTER,
    replica_id=-1,
    replica_directory_id=b"d" * 16,
    epoch=7,
    fetch_offset=5,
    last_fetched_epoch=4,
    high_watermark=3,
    max_wait_ms=9,
    max_bytes=100,
)
FETCHED = FetchResponse(
    error=RaftError.NONE, epoch=7, leader_id=3, high_watermark=9, log_start_offset=2, records=b"bytes"
)


class Raft:
    """In the place of the core."""

    node_id = 2
    voters = (1, 2, 3)
    leader_id = 2


class Sink:
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.is_open = True

    def __call__(self, event: Any) -> bool:
        self.events.append(event)
        return self.is_open


def reads(*, voters_ask: bool = False) -> tuple[RaftRequests, RaftService, Sink]:
    sink = Sink()
    service = RaftService(sink)
    raft: Any = Raft()
    handlers = RaftRequests(CLUSTER, raft, service, READER, MetadataImage, voters_ask=voters_ask)
    return handlers, service, sink


def request(body: Any, version: int = 16) -> codec.Request:
    return codec.Request(codec.RequestHeader(1, version, 1), body, 0)


async def test_a_fetch_waits_for_the_core_and_is_abandoned_with_its_connection() -> None:
    handlers, service, sink = reads()
    waiting = asyncio.ensure_future(handlers.answer(request(request_body(ASKED, 16)), CLIENT))
    await asyncio.sleep(0)
    (event,) = sink.events
    assert isinstance(event, RaftRequestArrived) and isinstance(event.request, FetchRequest)
    assert event.request.fetch_offset == 5
    service.respond(event.key, FETCHED)
    assert answer_of(await waiting, 16) == FETCHED
    given_up = asyncio.ensure_future(handlers.answer(request(request_body(ASKED, 16)), CLIENT))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0.01)
    assert sink.events[-1] == RaftRequestAbandoned(key=sink.events[-2].key)
    service.respond(sink.events[-2].key, FETCHED)  # nothing waits for it


def test_nothing_that_names_a_voter_counts_as_one() -> None:
    handlers, _, sink = reads()
    body = request_body(replace(ASKED, replica_id=2), 16)
    answer: Any = handlers.answer(request(body), CLIENT)
    assert answer.error_code == 42
    chunk = wire.FetchSnapshotRequest(replica_id=2)
    assert handlers.answer(request(chunk), CLIENT).error_code == 42
    assert sink.events == []


async def test_a_fetch_that_waits_has_no_task() -> None:
    """A leader holds one of every voter and broker."""
    handlers, service, sink = reads()
    tasks = asyncio.all_tasks()
    waiting = handlers.answer(request(request_body(ASKED, 16)), CLIENT)
    assert asyncio.all_tasks() == tasks and type(waiting) is Later
    service.respond(sink.events[0].key, FETCHED)
    assert answer_of(waiting.finish(waiting.deferred.result()), 16) == FETCHED


async def test_connections_are_different_readers() -> None:
    handlers, _, sink = reads()
    body = request_body(replace(ASKED, replica_directory_id=b""), 16)
    tasks = [
        asyncio.ensure_future(handlers.answer(request(body), replace(CLIENT, connection=number)))
        for number in (1, 2)
    ]
    await asyncio.sleep(0)
    assert len({event.request.replica_directory_id for event in sink.events}) == 2
    for task in tasks:
        task.cancel()


def test_a_stopping_node_ends_the_connection() -> None:
    handlers, _, sink = reads()
    sink.is_open = False
    with pytest.raises(EndConnection):
        handlers.answer(request(request_body(ASKED, 16)), CLIENT)


async def test_the_log_is_for_those_with_cluster_action() -> None:
    authorizer = Authorizer(super_users=["User:admin"], allow_everyone=False)
    rights = Rights(authorizer=authorizer, image=MetadataImage, checks=CHECKS_OF_CONTROLLERS)
    handler = Offered(12, 18, lambda request, client: response_body(FETCHED, 16))
    guard = guarded({"Fetch": handler}, rights)["Fetch"].handle
    for principal, code in (("User:alice", 31), ("User:admin", 0)):
        found: Any = guard(request(request_body(ASKED, 16)), replace(CLIENT, principal=principal))
        assert found.error_code == code


def test_only_controllers_are_described() -> None:
    found = ControllersOf(CLUSTER, Raft(), MetadataImage)  # type: ignore[arg-type]
    asked = request(wire.DescribeClusterRequest(endpoint_type=1), 1)
    assert found.describe(asked, CLIENT).error_code == 114
    asked = request(wire.DescribeClusterRequest(endpoint_type=2), 1)
    assert (found.describe(asked, CLIENT).controller_id, found.describe(asked, CLIENT).brokers) == (2, ())


# ---- a quorum that speaks Kafka's protocol -------------------------------------------------------------

VOTE = VoteRequest(
    cluster_id=CLUSTER,
    epoch=8,
    candidate_id=1,
    candidate_directory_id=b"",
    voter_id=2,
    voter_directory_id=b"",
    last_position=LogPosition(7, 5),
    pre_vote=False,
)
GRANTED = VoteResponse(error=RaftError.NONE, epoch=8, leader_id=None, vote_granted=True, pre_vote=False)


def test_voters_are_answered_only_where_the_quorum_speaks_kafkas_protocol() -> None:
    closed, open_to_voters = reads()[0].offered(), reads(voters_ask=True)[0].offered()
    assert set(closed) == {"Fetch", "FetchSnapshot"}
    assert set(open_to_voters) - set(closed) == set(ASKED_BY_VOTERS)
    assert all(name in CHECKS_OF_CONTROLLERS for name in open_to_voters)


async def test_a_voter_of_kafka_votes_and_fetches_as_itself() -> None:
    handlers, service, sink = reads(voters_ask=True)
    vote = asyncio.ensure_future(handlers.answer(request(request_body(VOTE, 0), 0), CLIENT))
    fetch = asyncio.ensure_future(
        handlers.answer(request(request_body(replace(ASKED, replica_id=1), 16)), CLIENT)
    )
    await asyncio.sleep(0)
    asked, fetched = (event.request for event in sink.events)
    assert asked == VOTE
    assert fetched == replace(ASKED, replica_id=1, replica_directory_id=b"", high_watermark=UNSTATED)
    service.respond(sink.events[0].key, GRANTED)
    service.respond(sink.events[1].key, FETCHED)
    assert response_of(await vote, 0, VOTE) == GRANTED
    assert answer_of(await fetch, 16) == FETCHED


def test_what_has_no_form_is_refused_before_the_core() -> None:
    handlers, _, sink = reads(voters_ask=True)
    topic = wire.VoteRequest.TopicData(topic_name="err", partitions=(wire.VoteRequest.PartitionData(),))
    assert handlers.answer(request(wire.VoteRequest(topics=(topic,)), 0), CLIENT).error_code == 42
    unsound = request_body(replace(VOTE, epoch=7), 0)
    assert handlers.answer(request(unsound, 0), CLIENT).error_code == 42
    assert sink.events == []


async def test_the_voters_apis_need_cluster_action() -> None:
    authorizer = Authorizer(super_users=["User:admin"], allow_everyone=False)
    rights = Rights(authorizer=authorizer, image=MetadataImage, checks=CHECKS_OF_CONTROLLERS)
    handlers, _, sink = reads(voters_ask=True)
    for api, body in (
        ("Vote", request_body(VOTE, 0)),
        ("BeginQuorumEpoch", wire.BeginQuorumEpochRequest()),
        ("EndQuorumEpoch", wire.EndQuorumEpochRequest()),
        ("UpdateRaftVoter", wire.UpdateRaftVoterRequest()),
    ):
        handle = guarded(handlers.offered(), rights)[api].handle
        found: Any = handle(request(body, 0), replace(CLIENT, principal="User:alice"))
        assert found.error_code == 31
    assert sink.events == []


def test_a_fetch_repeats_the_round_of_the_last_answer_on_its_connection() -> None:
    """Kafka's voters do not say it: what they send on a connection follows the answer there."""
    rounds, fetch = RoundsRepeated(), replace(ASKED, replica_id=1)
    assert rounds.asked(7, fetch).read_round == 0
    rounds.answered(7, replace(FETCHED, read_round=4))
    assert rounds.asked(8, fetch).read_round == 0  # another connection: it may have been sent before
    assert rounds.asked(7, fetch).read_round == 4
    assert rounds.asked(7, fetch).read_round == 0  # sent after one answer only
    rounds.answered(7, replace(FETCHED, read_round=4))
    assert rounds.asked(7, replace(fetch, epoch=8)).read_round == 0  # another leader's rounds
    rounds.answered(7, replace(FETCHED, read_round=4))
    assert rounds.asked(7, replace(fetch, read_round=3)).read_round == 3  # ours says it


def test_the_rounds_of_connections_are_bounded() -> None:
    rounds = RoundsRepeated()
    for connection in range(CONNECTIONS_MAX + 1):
        rounds.answered(connection, replace(FETCHED, read_round=4))
    assert rounds.asked(0, ASKED).read_round == 0 and rounds.asked(1, ASKED).read_round == 4
