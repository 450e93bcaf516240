"""Fetches of the metadata log over Kafka's protocol: which are taken, as which values, and their answers."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.clients.kafka.quorum import answer_of, request_of
from metaquorum.controller.server.kafka import ControllersOf, MetadataReads
from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.access.table import CHECKS_OF_CONTROLLERS
from metaquorum.listeners.metadata_fetch import fetch_answer, fetch_of, snapshot_answer, snapshot_fetch_of
from metaquorum.listeners.services import Client, EndConnection, Offered
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.image import MetadataImage
from metaquorum.raft.events import RaftRequestAbandoned, RaftRequestArrived
from metaquorum.raft.messages import FetchRequest, FetchResponse, FetchSnapshotResponse, RaftError
from metaquorum.rpc.raft_server import RaftService
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


@pytest.mark.parametrize("version", range(12, 19))
def test_a_fetch_and_its_answer_arrive_in_every_version(version: int) -> None:
    header = codec.RequestHeader(1, version, 1)
    frame = b"".join(codec.encode_request(header, request_of(ASKED)))
    body = codec.decode_request(frame).body
    wanted = ASKED if version >= 17 else replace(ASKED, replica_directory_id=READER)
    wanted = wanted if version >= 18 else replace(wanted, high_watermark=5)
    assert fetch_of(body, version, READER, "other") == wanted
    for answer in (
        FETCHED,
        replace(FETCHED, records=b"", snapshot=LogPosition(3, 8)),
        replace(FETCHED, records=b"", diverging=LogPosition(3, 8)),
        replace(FETCHED, records=b"", error=RaftError.FENCED_LEADER_EPOCH),
    ):
        encoded = b"".join(codec.encode_response(1, version, 1, fetch_answer(answer, version)))
        assert answer_of(codec.decode_response(1, version, encoded).body) == answer


def test_what_kafka_refuses_is_refused(shared_data: Path) -> None:
    """The recorded error cases of Fetch that need no log: their requests are not taken, or are right."""
    refused, taken = set(), set()
    with gzip.open(shared_data / "kafka-3.7-wire" / "M-error-cases.jsonl.gz") as lines:
        for row in map(json.loads, lines):
            if row["api"] not in ("Fetch", "FetchSnapshot") or not row["to"].startswith("controller"):
                continue
            body = codec.decode_request(base64.b64decode(row["request"])).body
            found: Any = (
                fetch_of(body, row["api_version"], READER, CLUSTER)
                if row["api"] == "Fetch"
                else snapshot_fetch_of(body, READER, CLUSTER)
            )
            (refused if found is None else taken).add(row["label"])
    assert {
        "Raft Fetch: other topic id",
        "Raft Fetch: partition 5",
        "FetchSnapshot: unknown topic",
    } <= refused
    assert "Raft Fetch: null cluster id" in taken and "FetchSnapshot: the whole" in taken
    assert "Raft Fetch: last fetched epoch unknown (diverging epoch)" in refused


def test_errors_of_the_request_are_no_partitions() -> None:
    for error in (RaftError.INCONSISTENT_CLUSTER_ID, RaftError.INVALID_REQUEST):
        assert fetch_answer(replace(FETCHED, error=error), 16) == wire.FetchResponse(error_code=error)
        chunk = FetchSnapshotResponse(error=error, epoch=1, leader_id=1)
        assert snapshot_answer(chunk) == wire.FetchSnapshotResponse(error_code=error)


class Raft:
    """In the place of the core."""

    voters = (1, 2, 3)
    leader_id = 2


class Sink:
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.is_open = True

    def __call__(self, event: Any) -> bool:
        self.events.append(event)
        return self.is_open


def reads() -> tuple[MetadataReads, RaftService, Sink]:
    sink = Sink()
    service = RaftService(sink)
    return MetadataReads(CLUSTER, Raft(), service, READER, MetadataImage), service, sink  # type: ignore[arg-type]


def request(body: Any, version: int = 16) -> codec.Request:
    return codec.Request(codec.RequestHeader(1, version, 1), body, 0)


async def test_a_fetch_waits_for_the_core_and_is_abandoned_with_its_connection() -> None:
    handlers, service, sink = reads()
    waiting = asyncio.ensure_future(handlers.fetch(request(request_of(ASKED)), CLIENT))
    await asyncio.sleep(0)
    (event,) = sink.events
    assert isinstance(event, RaftRequestArrived) and isinstance(event.request, FetchRequest)
    assert event.request.fetch_offset == 5
    service.respond(event.key, FETCHED)
    assert answer_of(await waiting) == FETCHED
    given_up = asyncio.ensure_future(handlers.fetch(request(request_of(ASKED)), CLIENT))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0.01)
    assert sink.events[-1] == RaftRequestAbandoned(key=sink.events[-2].key)
    service.respond(sink.events[-2].key, FETCHED)  # nothing waits for it


async def test_nothing_that_names_a_voter_counts_as_one() -> None:
    handlers, _, sink = reads()
    body = request_of(replace(ASKED, replica_id=2))
    assert (await handlers.fetch(request(body), CLIENT)).error_code == 42
    chunk = wire.FetchSnapshotRequest(replica_id=2)
    assert (await handlers.fetch_snapshot(request(chunk), CLIENT)).error_code == 42
    assert sink.events == []


async def test_connections_are_different_readers() -> None:
    handlers, _, sink = reads()
    body = request_of(replace(ASKED, replica_directory_id=bytes(16)))
    tasks = [
        asyncio.ensure_future(handlers.fetch(request(body), replace(CLIENT, connection=number)))
        for number in (1, 2)
    ]
    await asyncio.sleep(0)
    assert len({event.request.replica_directory_id for event in sink.events}) == 2
    for task in tasks:
        task.cancel()


async def test_a_stopping_node_ends_the_connection() -> None:
    handlers, _, sink = reads()
    sink.is_open = False
    with pytest.raises(EndConnection):
        await handlers.fetch(request(request_of(ASKED)), CLIENT)


async def test_the_log_is_for_those_with_cluster_action() -> None:
    authorizer = Authorizer(super_users=["User:admin"], allow_everyone=False)
    rights = Rights(authorizer=authorizer, image=MetadataImage, checks=CHECKS_OF_CONTROLLERS)
    handler = Offered(12, 18, lambda request, client: fetch_answer(FETCHED, 16))
    guard = guarded({"Fetch": handler}, rights)["Fetch"].handle
    for principal, code in (("User:alice", 31), ("User:admin", 0)):
        found = guard(request(request_of(ASKED)), replace(CLIENT, principal=principal))
        assert found.error_code == code


def test_only_controllers_are_described() -> None:
    found = ControllersOf(CLUSTER, Raft(), MetadataImage)  # type: ignore[arg-type]
    asked = request(wire.DescribeClusterRequest(endpoint_type=1), 1)
    assert found.describe(asked, CLIENT).error_code == 114
    asked = request(wire.DescribeClusterRequest(endpoint_type=2), 1)
    assert (found.describe(asked, CLIENT).controller_id, found.describe(asked, CLIENT).brokers) == (2, ())
