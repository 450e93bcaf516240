"""Every order of two requests that are pipelined on one connection: when the second begins."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from metaquorum.listeners.services import Client, Features, Offered, Services
from metaquorum.wire import codec
from metaquorum.wire import messages as kinds
from metaquorum.wire.table import API_BY_NAME
from tests.unit.kafka.test_connection import Caller, Server, calling, serving, until

FETCH_POSITION = kinds.FetchRequest(max_bytes=9, min_bytes=1, max_wait_ms=9)
PLAIN, FIRST, SECOND = (
    kinds.ProduceRequest(acks=-1, timeout_ms=9, transactional_id=name) for name in (None, "first", "second")
)
REQUESTS: dict[str, tuple[int, Any]] = {
    "Produce": (9, PLAIN),
    "Produce in a transaction": (9, FIRST),
    "Produce in another transaction": (9, SECOND),
    "Fetch": (12, FETCH_POSITION),
    "ListOffsets": (7, kinds.ListOffsetsRequest()),
    "OffsetForLeaderEpoch": (3, kinds.OffsetForLeaderEpochRequest()),
    "DeleteRecords": (2, kinds.DeleteRecordsRequest()),
    "Metadata": (9, kinds.MetadataRequest()),
    "FindCoordinator": (3, kinds.FindCoordinatorRequest()),
    "JoinGroup": (5, kinds.JoinGroupRequest()),
    "SyncGroup": (3, kinds.SyncGroupRequest()),
    "Heartbeat": (3, kinds.HeartbeatRequest()),
    "LeaveGroup": (3, kinds.LeaveGroupRequest()),
    "OffsetCommit": (8, kinds.OffsetCommitRequest()),
    "OffsetFetch": (7, kinds.OffsetFetchRequest()),
    "OffsetDelete": (0, kinds.OffsetDeleteRequest()),
    "DescribeGroups": (5, kinds.DescribeGroupsRequest()),
    "DeleteGroups": (2, kinds.DeleteGroupsRequest()),
    "InitProducerId": (3, kinds.InitProducerIdRequest()),
    "AddPartitionsToTxn": (3, kinds.AddPartitionsToTxnRequest()),
    "AddPartitionsToTxn of a broker": (4, kinds.AddPartitionsToTxnRequest()),
    "AddOffsetsToTxn": (3, kinds.AddOffsetsToTxnRequest()),
    "TxnOffsetCommit": (3, kinds.TxnOffsetCommitRequest()),
    "EndTxn": (3, kinds.EndTxnRequest()),
    "WriteTxnMarkers": (1, kinds.WriteTxnMarkersRequest()),
    "CreateTopics": (5, kinds.CreateTopicsRequest()),
    "DeleteTopics": (5, kinds.DeleteTopicsRequest()),
    "CreatePartitions": (2, kinds.CreatePartitionsRequest()),
    "DescribeConfigs": (2, kinds.DescribeConfigsRequest()),
    "IncrementalAlterConfigs": (1, kinds.IncrementalAlterConfigsRequest()),
    "ElectLeaders": (2, kinds.ElectLeadersRequest()),
    "ApiVersions": (3, kinds.ApiVersionsRequest(client_software_name="x", client_software_version="1")),
}
OVERLAP = [
    {"Produce"},
    {"Produce in a transaction"},
    {"Produce in another transaction"},
    {"ListOffsets"},
    {"OffsetForLeaderEpoch"},
    {"FindCoordinator"},
    {"OffsetFetch"},
    {"DescribeGroups"},
    {"WriteTxnMarkers", "AddPartitionsToTxn of a broker"},
]
AT_ONCE = "ApiVersions"
"""The services answer it themselves."""


def api(name: str) -> str:
    return name.split(" ", maxsplit=1)[0]


class Gated(Server):
    """Every API is answered when the test lets it go; `begun_apis`: what has begun, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.begun_apis: list[int] = []
        self.held: list[asyncio.Future[Any]] = []
        names = {api(name) for name in REQUESTS} - {AT_ONCE}
        offered = {name: Offered(0, 20, self.handle) for name in names}
        features = Features(supported={}, finalized={}, epoch=0)
        self.services = Services(offered, lambda: features)

    async def handle(self, request: codec.Request, client: Client) -> Any:
        self.begun_apis.append(request.header.api_key)
        gate = asyncio.get_running_loop().create_future()
        self.held.append(gate)
        return await gate


def send(caller: Caller, number: int, name: str) -> None:
    version, body = REQUESTS[name]
    caller.send(API_BY_NAME[api(name)].key, version, number, body)


def answer_of(name: str) -> Any:
    return getattr(kinds, f"{api(name)}Response")()


async def receive(caller: Caller, name: str) -> int:
    response = await caller.receive(API_BY_NAME[api(name)].key, REQUESTS[name][0])
    return response.correlation_id


@pytest.mark.parametrize("first", [name for name in REQUESTS if name != AT_ONCE])
async def test_a_request_begins_when_those_before_it_are_answered_unless_they_may_overlap(first: str) -> None:
    async with serving(Gated()) as server:
        for second in REQUESTS:
            async with calling(server) as caller:
                server.begun_apis.clear()
                server.held.clear()
                send(caller, 1, first)
                send(caller, 2, second)
                overlap = any({first, second} <= group for group in OVERLAP)
                await until(lambda: len(server.held) == (2 if overlap else 1))  # noqa: B023
                for _ in range(3):  # what could begin has begun
                    await asyncio.sleep(0)
                assert len(server.begun_apis) == (2 if overlap else 1), (first, second)
                server.held[0].set_result(answer_of(first))
                assert await receive(caller, first) == 1
                if second != AT_ONCE:
                    await until(lambda: len(server.held) == 2)
                    server.held[1].set_result(answer_of(second))
                assert await receive(caller, second) == 2


async def test_a_third_waits_for_both_that_overlap() -> None:
    for second, third in product(["Produce"], ["ListOffsets", "DeleteRecords", "Fetch"]):
        async with serving(Gated()) as server, calling(server) as caller:
            for number, name in enumerate(("Produce", second, third), 1):
                send(caller, number, name)
            await until(lambda: len(server.held) == 2)
            server.held[1].set_result(answer_of(second))
            await asyncio.sleep(0)
            assert len(server.held) == 2, "the first is not answered yet"
            server.held[0].set_result(answer_of("Produce"))
            await until(lambda: len(server.held) == 3)
            server.held[2].set_result(answer_of(third))
            for number, name in enumerate(("Produce", second, third), 1):
                assert await receive(caller, name) == number
