"""The transaction APIs before a core that the test answers for: versions, ids, and what is never asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaquorum.broker.coordinator.transaction import (
    AddPartitions,
    EndTransaction,
    InitializedProducer,
    NeedsProducerId,
    TransactionDescription,
)
from metaquorum.broker.server.kafka.transactions import handlers
from metaquorum.broker.server.kafka.transactions.handlers import TransactionHandlers
from metaquorum.listeners.services import Client, Offered
from metaquorum.listeners.slices import sliced
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from tests.unit.broker.manager_world import Cluster
from tests.unit.server.test_data_requests import Core

CLIENT = Client(listener="KAFKA", address="127.0.0.1")
KEYS = {
    "init_producer_id": 22,
    "add_partitions_to_txn": 24,
    "add_offsets_to_txn": 25,
    "end_txn": 26,
    "describe_transactions": 65,
    "list_transactions": 66,
}


def image() -> MetadataImage:
    cluster = Cluster()
    cluster.topic("orders", partitions=2)
    return cluster.image()


class Coordinators:
    """Says what the test wants, and keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.names: list[str | int] = []

    async def ask(self, name: str, body: Any, request: codec.Request, client: Client) -> Any:
        return self._answer(name, body, request, client)

    async def ask_partition(self, partition: int, body: Any, request: codec.Request, client: Client) -> Any:
        return self._answer(partition, body, request, client)

    def _answer(self, name: str | int, body: Any, request: codec.Request, client: Client) -> Any:
        assert request.header.correlation_id == 1 and client is CLIENT
        self.names.append(name)
        self.asked.append(body)
        return self.answers.pop(0)

    def led(self) -> list[int]:
        return [0, 3]


async def ask(api: str, version: int, body: Any, coordinators: Coordinators, ids: Any = None) -> Any:
    served = Core()
    served_by = TransactionHandlers(
        coordinators,  # type: ignore[arg-type]
        served.requests,
        image,
        ("__consumer_offsets", 50),
    )
    frame = b"".join(codec.encode_request(codec.RequestHeader(KEYS[api], version, 1), body))
    task = asyncio.ensure_future(getattr(served_by, api)(codec.decode_request(frame), CLIENT))
    if ids is not None:
        (event,) = await served.until(1)
        served.answer(event, ids)
    response = await task
    codec.encode_response(KEYS[api], version, 1, response)
    return response


async def test_producer_ids_without_a_transaction_need_no_coordinator() -> None:
    """Kafka gives a new id to each producer without transactions, whatever id and epoch it names."""
    body = InitProducerIdRequest(transactional_id=None)
    given = core.InitProducerIdResponse(producer_id=5, producer_epoch=1)
    for named in ((-1, -1), (0, 0), (4, 9), (10**12, 0)):
        body = InitProducerIdRequest(transactional_id=None, producer_id=named[0], producer_epoch=named[1])
        response = await ask("init_producer_id", 4, body, Coordinators(), given)
        assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 5, 1)
    for name in (None, "t"):
        for half in ((-1, 0), (0, -1)):
            body = InitProducerIdRequest(transactional_id=name, producer_id=half[0], producer_epoch=half[1])
            assert (await ask("init_producer_id", 4, body, Coordinators())).error_code == 42
    body = InitProducerIdRequest(transactional_id=None)
    for code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.BROKER_NOT_AVAILABLE):
        refused = ApiError(code, "no ids yet")
        assert (await ask("init_producer_id", 0, body, Coordinators(), refused)).error_code == 14
    empty = InitProducerIdRequest(transactional_id="")
    assert (await ask("init_producer_id", 4, empty, Coordinators())).error_code == 42


async def test_a_new_transactional_id_gets_a_fresh_producer_id() -> None:
    body = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=9)
    it = Coordinators(NeedsProducerId(), InitializedProducer(5, 0))
    given = core.InitProducerIdResponse(producer_id=5, producer_epoch=0)
    response = await ask("init_producer_id", 4, body, it, given)
    assert (response.error_code, response.producer_id) == (0, 5)
    assert [each.fresh_id for each in it.asked] == [None, 5]
    none = ApiError(ErrorCode.REQUEST_TIMED_OUT, "no block")
    assert (await ask("init_producer_id", 4, body, Coordinators(NeedsProducerId()), none)).error_code == 14


@pytest.mark.parametrize(("version", "code"), [(3, 47), (4, 90)])
async def test_older_clients_know_one_code_for_a_fenced_producer(version: int, code: int) -> None:
    body = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=9)
    it = Coordinators(ErrorCode.PRODUCER_FENCED)
    assert (await ask("init_producer_id", version, body, it)).error_code == code


@pytest.mark.parametrize(("version", "code"), [(1, 47), (2, 90)])
async def test_a_transaction_ends(version: int, code: int) -> None:
    body = EndTxnRequest(transactional_id="t", producer_id=5, producer_epoch=1, committed=True)
    it = Coordinators(ErrorCode.PRODUCER_FENCED)
    assert (await ask("end_txn", version, body, it)).error_code == code
    assert it.asked == [EndTransaction(transactional_id="t", producer_id=5, producer_epoch=1, committed=True)]


def topics(*names: str) -> tuple[Any, ...]:
    return tuple(
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=(0, 1)) for name in names
    )


async def test_partitions_are_added_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(*names: str) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=5,
            v3_and_below_producer_epoch=1,
            v3_and_below_topics=topics(*names),
        )

    def codes(response: Any) -> list[int]:
        return [
            part.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        ]

    it = Coordinators(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert codes(await ask("add_partitions_to_txn", 3, body("orders"), it)) == [51, 51]
    assert it.asked[0].partitions == (("orders", 0), ("orders", 1))
    turns = 0

    async def pause() -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr(handlers, "LOOKED_AT_ONCE", 2)
    monkeypatch.setattr(handlers, "pause", pause)
    none = Coordinators()
    assert codes(await ask("add_partitions_to_txn", 0, body("orders", "nobody"), none)) == [55, 55, 3, 3]
    assert turns == 2, "the loop serves others meanwhile"


async def test_brokers_ask_about_several_transactions() -> None:
    ones = tuple(
        AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=5, producer_epoch=1, verify_only=True, topics=topics("orders")
        )
        for name in ("t", "u")
    )
    it = Coordinators((ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE), ErrorCode.NOT_COORDINATOR)
    response = await ask("add_partitions_to_txn", 4, AddPartitionsToTxnRequest(transactions=ones), it)
    found = {
        one.transactional_id: [
            part.partition_error_code for topic in one.topic_results for part in topic.results_by_partition
        ]
        for one in response.results_by_transaction
    }
    assert found == {"t": [0, 48], "u": [16, 16]} and all(each.verify_only for each in it.asked)


@pytest.mark.parametrize(
    ("api", "body", "code"),
    [
        ("add_offsets_to_txn", AddOffsetsToTxnRequest(transactional_id="", group_id="g"), 42),
        ("add_offsets_to_txn", AddOffsetsToTxnRequest(transactional_id="t", group_id=""), 24),
        ("add_offsets_to_txn", AddOffsetsToTxnRequest(transactional_id="", group_id=""), 24),
        ("end_txn", EndTxnRequest(transactional_id=""), 42),
        ("init_producer_id", InitProducerIdRequest(transactional_id=""), 42),
    ],
)
async def test_who_names_nothing_is_refused_before_a_coordinator_is_asked(
    api: str, body: Any, code: int
) -> None:
    it = Coordinators()
    assert (await ask(api, 0, body, it)).error_code == code
    assert it.asked == []


async def test_offsets_belong_to_the_partition_of_their_group() -> None:
    body = AddOffsetsToTxnRequest(transactional_id="t", producer_id=5, producer_epoch=1, group_id="g")
    it = Coordinators(ErrorCode.NONE)
    assert (await ask("add_offsets_to_txn", 3, body, it)).error_code == 0
    assert it.asked == [
        AddPartitions(
            transactional_id="t",
            producer_id=5,
            producer_epoch=1,
            partitions=(("__consumer_offsets", ord("g") % 50),),
        )
    ]


async def test_transactions_are_described_and_listed() -> None:
    one = TransactionDescription(
        transactional_id="t",
        state="Ongoing",
        timeout_ms=9,
        start_ms=44,
        producer_id=5,
        producer_epoch=1,
        partitions=(("orders", 0), ("orders", 2)),
    )
    body = DescribeTransactionsRequest(transactional_ids=("t", "u", ""))
    response = await ask("describe_transactions", 0, body, Coordinators(one, ErrorCode.NOT_COORDINATOR))
    first, second, third = response.transaction_states
    assert (first.transaction_state, first.transaction_start_time_ms, first.producer_id) == ("Ongoing", 44, 5)
    assert [(each.topic, each.partitions) for each in first.topics] == [("orders", (0, 2))]
    assert (second.error_code, third.error_code) == (16, 42)
    nothing = DescribeTransactionsResponse.TransactionState(transactional_id="u", error_code=16)
    assert second == nothing, "no id that could be taken for a producer's"
    wanted = ListTransactionsRequest(state_filters=("Ongoing", "Strange"), duration_filter=7)
    listed = await ask("list_transactions", 1, wanted, Coordinators((one,), ()))
    assert listed.unknown_state_filters == ("Strange",)
    assert [each.transactional_id for each in listed.transaction_states] == ["t"]
    loading = Coordinators((one,), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert (await ask("list_transactions", 0, ListTransactionsRequest(), loading)).error_code == 14


async def test_a_long_request_is_cut_between_transactions_only() -> None:
    """A transaction gets all of its partitions or none: a part of it in another slice could fail alone."""
    kinds = AddPartitionsToTxnRequest
    topic = kinds.AddPartitionsToTxnTopic(name="t", partitions=(0, 1, 2))
    count, seen = codec.FEW_VALUES + 100, list[tuple[str, int]]()

    async def answer(request: codec.Request, client: Client) -> Any:
        results = []
        for each in request.body.transactions:
            seen.append((each.transactional_id, sum(len(one.partitions) for one in each.topics)))
            results.append(
                AddPartitionsToTxnResponse.AddPartitionsToTxnResult(transactional_id=each.transactional_id)
            )
        return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))

    body = kinds(
        transactions=tuple(
            kinds.AddPartitionsToTxnTransaction(transactional_id=f"x{at}", topics=(topic,))
            for at in range(count)
        )
    )
    frame = b"".join(codec.encode_request(codec.RequestHeader(24, 5, 1), body))
    offered = sliced({"AddPartitionsToTxn": Offered(0, 5, answer)})["AddPartitionsToTxn"]
    await offered.handle(codec.decode_request(frame), CLIENT)
    assert seen == [(f"x{at}", 3) for at in range(count)]
