"""Every value of a transaction's request reaches its coordinator, and every value of an answer the client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.broker.coordinator.transaction import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitializedProducer,
    InitProducer,
    ListTransactions,
    TransactionDescription,
)
from metaquorum.broker.server.kafka.transactions.verification import TransactionOffsets
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.unit.kafka.test_transaction_answers import CLIENT, Coordinators, ask, image

NONE, MOVED = ErrorCode.NONE, ErrorCode.NOT_COORDINATOR
PLACES = (("orders", 1), ("orders", 0))
ADDED = AddPartitions(transactional_id="t", producer_id=5, producer_epoch=6, partitions=PLACES)


def added_topics() -> tuple[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic, ...]:
    return (AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="orders", partitions=(1, 0)),)


def many(verify_only: bool) -> AddPartitionsToTxnRequest:
    one = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id="t", producer_id=5, producer_epoch=6, verify_only=verify_only, topics=added_topics()
    )
    return AddPartitionsToTxnRequest(transactions=(one,))


def results(*codes: ErrorCode) -> tuple[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult, ...]:
    kind = AddPartitionsToTxnResponse
    parts = tuple(
        kind.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        for index, code in zip((1, 0), codes, strict=True)
    )
    return (kind.AddPartitionsToTxnTopicResult(name="orders", results_by_partition=parts),)


def of_many(*codes: ErrorCode) -> AddPartitionsToTxnResponse:
    one = AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
        transactional_id="t", topic_results=results(*codes)
    )
    return AddPartitionsToTxnResponse(results_by_transaction=(one,))


DESCRIBED = TransactionDescription(
    transactional_id="t",
    state="Ongoing",
    timeout_ms=7,
    start_ms=8,
    producer_id=5,
    producer_epoch=6,
    partitions=(("orders", 1), ("bills", 2), ("orders", 0)),
)
SHOWN = DescribeTransactionsResponse.TransactionState(
    transactional_id="t",
    transaction_state="Ongoing",
    transaction_timeout_ms=7,
    transaction_start_time_ms=8,
    producer_id=5,
    producer_epoch=6,
    topics=(
        DescribeTransactionsResponse.TopicData(topic="orders", partitions=(1, 0)),
        DescribeTransactionsResponse.TopicData(topic="bills", partitions=(2,)),
    ),
)


@pytest.mark.parametrize(
    ("api", "version", "body", "asked", "answer", "response"),
    [
        (
            "init_producer_id",
            4,
            InitProducerIdRequest(
                transactional_id="t", transaction_timeout_ms=7, producer_id=5, producer_epoch=6
            ),
            InitProducer(transactional_id="t", timeout_ms=7, producer_id=5, producer_epoch=6),
            InitializedProducer(5, 9),
            InitProducerIdResponse(producer_id=5, producer_epoch=9),
        ),
        (
            "init_producer_id",
            4,
            InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=7),
            InitProducer(transactional_id="t", timeout_ms=7),
            MOVED,
            InitProducerIdResponse(error_code=MOVED, producer_id=-1, producer_epoch=-1),
        ),
        (
            "add_partitions_to_txn",
            3,
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="t",
                v3_and_below_producer_id=5,
                v3_and_below_producer_epoch=6,
                v3_and_below_topics=added_topics(),
            ),
            ADDED,
            (NONE, ErrorCode.INVALID_TXN_STATE),
            AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=results(NONE, ErrorCode.INVALID_TXN_STATE)
            ),
        ),
        (
            "add_partitions_to_txn",
            4,
            many(verify_only=True),
            replace(ADDED, verify_only=True),
            (ErrorCode.INVALID_TXN_STATE, NONE),
            of_many(ErrorCode.INVALID_TXN_STATE, NONE),
        ),
        ("add_partitions_to_txn", 4, many(verify_only=False), ADDED, MOVED, of_many(MOVED, MOVED)),
        (
            "add_offsets_to_txn",
            3,
            AddOffsetsToTxnRequest(transactional_id="t", producer_id=5, producer_epoch=6, group_id="g"),
            replace(ADDED, partitions=(("__consumer_offsets", ord("g") % 50),)),
            MOVED,
            AddOffsetsToTxnResponse(error_code=MOVED),
        ),
        (
            "end_txn",
            3,
            EndTxnRequest(transactional_id="t", producer_id=5, producer_epoch=6, committed=True),
            EndTransaction(transactional_id="t", producer_id=5, producer_epoch=6, committed=True),
            NONE,
            EndTxnResponse(),
        ),
        (
            "end_txn",
            3,
            EndTxnRequest(transactional_id="t", producer_id=5, producer_epoch=6, committed=False),
            EndTransaction(transactional_id="t", producer_id=5, producer_epoch=6, committed=False),
            MOVED,
            EndTxnResponse(error_code=MOVED),
        ),
        (
            "describe_transactions",
            0,
            DescribeTransactionsRequest(transactional_ids=("t",)),
            DescribeTransaction("t"),
            DESCRIBED,
            DescribeTransactionsResponse(transaction_states=(SHOWN,)),
        ),
    ],
)
async def test_a_coordinator_gets_what_the_client_sends(
    api: str, version: int, body: Any, asked: Any, answer: Any, response: Any
) -> None:
    it = Coordinators(answer)
    assert await ask(api, version, body, it) == response
    assert (it.names, it.asked) == (["t"], [asked])


async def test_every_partition_that_is_led_here_is_asked_for_its_transactions() -> None:
    body = ListTransactionsRequest(
        state_filters=("Ongoing", "Strange"), producer_id_filters=(5, 9), duration_filter=7
    )
    other = replace(DESCRIBED, transactional_id="u", producer_id=8, state="Empty")
    it = Coordinators((DESCRIBED,), (other,))
    response = await ask("list_transactions", 1, body, it)
    asked = ListTransactions(
        states=frozenset({"Ongoing", "Strange"}), producer_ids=frozenset({5, 9}), min_duration_ms=7
    )
    assert (it.names, it.asked) == ([0, 3], [asked, asked])
    kind = ListTransactionsResponse.TransactionState
    assert response == ListTransactionsResponse(
        unknown_state_filters=("Strange",),
        transaction_states=(
            kind(transactional_id="t", producer_id=5, transaction_state="Ongoing"),
            kind(transactional_id="u", producer_id=8, transaction_state="Empty"),
        ),
    )
    moved = await ask("list_transactions", 1, ListTransactionsRequest(), Coordinators(MOVED, (other,)))
    assert [each.transactional_id for each in moved.transaction_states] == ["u"] and moved.error_code == 0


# ---- TxnOffsetCommit


class Verifier:
    def __init__(self, code: ErrorCode) -> None:
        self.code = code
        self.asked: list[AddPartitions] = []

    async def verify(self, asked: AddPartitions) -> dict[Any, ErrorCode]:
        self.asked.append(asked)
        return dict.fromkeys(asked.partitions, self.code)


def committing(*names: str, **fields: Any) -> TxnOffsetCommitRequest:
    kind = TxnOffsetCommitRequest
    topics = tuple(
        kind.TxnOffsetCommitRequestTopic(
            name=name,
            partitions=tuple(
                kind.TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=10 + index,
                    committed_leader_epoch=20 + index,
                    committed_metadata=f"m{index}",
                )
                for index in (1, 7, 0)
            ),
        )
        for name in names or ("orders", "nobody")
    )
    given = {"transactional_id": "t", "group_id": "g", "producer_id": 5, "producer_epoch": 6, **fields}
    return kind(topics=topics, **given)


async def commit(
    body: TxnOffsetCommitRequest, version: int, verified: ErrorCode, *answers: Any
) -> tuple[TxnOffsetCommitResponse, Verifier, Coordinators]:
    verifier, it = Verifier(verified), Coordinators(*answers)
    handlers = TransactionOffsets(it, verifier, image, lambda group: (f"of {group}", 4))  # type: ignore[arg-type]
    frame = b"".join(codec.encode_request(codec.RequestHeader(28, version, 1), body))
    response = await asyncio.wait_for(handlers.txn_offset_commit(codec.decode_request(frame), CLIENT), 20)
    codec.encode_response(28, version, 1, response)
    return response, verifier, it


def codes(response: TxnOffsetCommitResponse) -> dict[str, list[tuple[int, int]]]:
    return {
        topic.name: [(part.partition_index, part.error_code) for part in topic.partitions]
        for topic in response.topics
    }


NOWHERE = [(1, 3), (7, 3), (0, 3)]


async def test_offsets_of_partitions_that_exist_go_to_the_groups_coordinator() -> None:
    body = committing()
    stored = (NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    response, verifier, it = await commit(body, 3, NONE, stored)
    assert codes(response) == {"orders": [(1, 0), (7, 3), (0, 12)], "nobody": NOWHERE}
    assert verifier.asked == [
        AddPartitions(
            transactional_id="t",
            producer_id=5,
            producer_epoch=6,
            partitions=(("of g", 4),),
            verify_only=True,
        )
    ]
    orders = body.topics[0]
    kept = replace(orders, partitions=(orders.partitions[0], orders.partitions[2]))
    assert (it.names, it.asked) == (["g"], [replace(body, topics=(kept,))])


async def test_offsets_of_unknown_partitions_only_need_no_coordinator() -> None:
    response, verifier, it = await commit(committing("nobody"), 3, NONE)
    assert codes(response) == {"nobody": NOWHERE}
    assert verifier.asked == [] and it.asked == []


LOADING, ABSENT = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("version", "verified", "answers", "code"),
    [
        (3, NONE, [MOVED], MOVED),
        (2, NONE, [LOADING], LOADING),
        (1, NONE, [LOADING], ABSENT),
        *((3, each, [], LOADING) for each in (MOVED, ABSENT, ErrorCode.NETWORK_EXCEPTION)),
        (3, ErrorCode.CONCURRENT_TRANSACTIONS, [], LOADING),
        (1, ErrorCode.CONCURRENT_TRANSACTIONS, [], ABSENT),
        (3, ErrorCode.PRODUCER_FENCED, [], ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, ErrorCode.INVALID_TXN_STATE, [], ErrorCode.INVALID_TXN_STATE),
    ],
)
async def test_a_refusal_is_that_of_every_partition(
    version: int, verified: ErrorCode, answers: list[ErrorCode], code: ErrorCode
) -> None:
    """The client did not ask the transaction's coordinator: where it may retry, it does so here."""
    response, _, it = await commit(committing("orders"), version, verified, *answers)
    assert codes(response) == {"orders": [(1, code), (7, 3), (0, code)]}
    assert len(it.asked) == len(answers)


@pytest.mark.parametrize(("transaction", "group", "code"), [("", "g", 42), ("t", "", 24), ("", "", 24)])
async def test_offsets_name_their_group_and_transaction(transaction: str, group: str, code: int) -> None:
    body = committing("orders", transactional_id=transaction, group_id=group)
    response, verifier, it = await commit(body, 3, NONE)
    assert codes(response) == {"orders": [(1, code), (7, 3), (0, code)]}
    assert verifier.asked == [] and it.asked == []


@pytest.mark.parametrize("version", [0, 3, 4])
async def test_partitions_are_added_to_a_transaction_with_an_id(version: int) -> None:
    body = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="",
        v3_and_below_producer_id=5,
        v3_and_below_producer_epoch=6,
        v3_and_below_topics=added_topics(),
    )
    if version == 4:
        one = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id="", producer_id=5, producer_epoch=6, topics=added_topics()
        )
        body = AddPartitionsToTxnRequest(transactions=(one,))
    it = Coordinators()
    response = await ask("add_partitions_to_txn", version, body, it)
    refused = results(ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST)
    if version == 4:
        (found,) = response.results_by_transaction
        assert (found.transactional_id, found.topic_results) == ("", refused)
    else:
        assert response.results_by_topic_v3_and_below == refused
    assert it.asked == []
