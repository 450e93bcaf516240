"""Who is asked whether partitions are in a transaction: its coordinator, on this broker or on another one."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.coordinator.transaction import AddPartitions
from metaquorum.broker.server.kafka.groups import partition_of
from metaquorum.broker.server.kafka.transactions.verification import TransactionVerifier
from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import NO_LEADER, MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from tests.unit.broker.manager_world import Cluster, topic_id
from tests.unit.kafka.test_data_answers import Site, Verifier, codes, in_transaction
from tests.unit.server.test_data_requests import ORDERS

TOPIC, PARTITIONS, HERE = "__transaction_state", 5, 1
ASKED = AddPartitions(
    transactional_id="t",
    producer_id=7,
    producer_epoch=2,
    partitions=(("orders", 0), ("orders", 3), ("payments", 1)),
    verify_only=True,
)


def image(leader: int) -> MetadataImage:
    """The coordinator of `t` is `leader`; that of everything else is broker 3."""
    cluster = Cluster()
    cluster.topic(TOPIC, partitions=PARTITIONS, leader=3)
    cluster.change((topic_id(TOPIC), partition_of("t", PARTITIONS)), leader=leader)
    return cluster.image()


class Asked:
    """This broker's coordinators, and other brokers; `answer` is of either, an exception is raised."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.here: list[core.CoordinatorRequest] = []
        self.others: list[tuple[int, AddPartitionsToTxnRequest, int]] = []

    async def begin(self, request: core.CoordinatorRequest) -> Any:
        self.here.append(request)
        return self._answer

    async def ask(self, broker_id: int, body: AddPartitionsToTxnRequest, *, version: int) -> Any:
        self.others.append((broker_id, body, version))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


async def verify(asked: Asked, known: MetadataImage, me: int = HERE) -> list[ErrorCode]:
    either: Any = asked
    verifier = TransactionVerifier(either, either, lambda: known, topic=TOPIC, broker_id=me)
    found = await verifier.verify(ASKED)
    assert tuple(found) == ASKED.partitions
    return [*found.values()]


@pytest.mark.parametrize("me", [0, 1, 2])
async def test_the_coordinator_of_this_broker_is_asked_here(me: int) -> None:
    told = [ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED]
    asked = Asked(core.CoordinatorResponse(body=told))
    assert await verify(asked, image(me), me) == told
    (request,) = asked.here
    assert (request.topic, request.partition, request.body) == (TOPIC, partition_of("t", PARTITIONS), ASKED)
    assert asked.others == []
    busy = Asked(ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "busy"))
    assert await verify(busy, image(me), me) == [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 3


@pytest.mark.parametrize("leader", [0, 2])
async def test_the_coordinator_of_another_broker_is_asked_there(leader: int) -> None:
    kinds = AddPartitionsToTxnResponse
    part = kinds.AddPartitionsToTxnPartitionResult
    topics = tuple(
        kinds.AddPartitionsToTxnTopicResult(
            name=name,
            results_by_partition=tuple(
                part(partition_index=at, partition_error_code=code) for at, code in parts
            ),
        )
        for name, parts in (("payments", ((1, 53),)), ("orders", ((3, 48),)))
    )
    result = kinds.AddPartitionsToTxnResult(transactional_id="t", topic_results=topics)
    asked = Asked(AddPartitionsToTxnResponse(results_by_transaction=(result,)))
    assert await verify(asked, image(leader)) == [
        ErrorCode.NETWORK_EXCEPTION,  # it said nothing of this one
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ]
    ((to, body, version),) = asked.others
    (one,) = body.transactions
    assert (to, version, asked.here) == (leader, 4, [])
    assert (one.transactional_id, one.producer_id, one.producer_epoch, one.verify_only) == ("t", 7, 2, True)
    assert [(each.name, each.partitions) for each in one.topics] == [("orders", (0, 3)), ("payments", (1,))]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ConnectionFailed("gone"), ErrorCode.NETWORK_EXCEPTION),
        (TimeoutError(), ErrorCode.NETWORK_EXCEPTION),
        (AddPartitionsToTxnResponse(error_code=31), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
async def test_a_coordinator_that_does_not_say(answer: Any, code: ErrorCode) -> None:
    assert await verify(Asked(answer), image(2)) == [code] * 3


@pytest.mark.parametrize("known", [MetadataImage(), image(NO_LEADER)])
async def test_no_coordinator_is_there(known: MetadataImage) -> None:
    asked = Asked(None)
    assert await verify(asked, known) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
    assert asked.here == [] and asked.others == []


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not now"), ErrorCode.NOT_ENOUGH_REPLICAS),
        (ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (None, ErrorCode.INVALID_TXN_STATE),
    ],
)
async def test_where_nothing_may_be_written_nothing_is(
    refusal: ApiError | None, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitions cannot say what the coordinator has to be asked about, or it says no to all."""
    monkeypatch.setattr(Verifier, "codes", {("orders", at): ErrorCode.INVALID_TXN_STATE for at in range(3)})
    guards = tuple(core.VerificationGuard(key=(ORDERS, at), guard=9) for at in range(3))
    site = Site()
    response = await site.ask(
        "produce", 9, in_transaction(), refusal or core.VerificationBegun(guards=guards)
    )
    assert codes(response) == [code] * 3
    assert isinstance(site.asked, core.BeginVerification)
