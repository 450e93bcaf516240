"""Lines that people meet: each says what is so, once, and what to do."""

from __future__ import annotations

import pytest

from metaquorum.broker.server.kafka.transactions.verification import _later
from metaquorum.cli.admin import partitions
from metaquorum.cli.admin.topics import describe_json, describe_text
from metaquorum.cli.text.quorum import broker_state
from metaquorum.cli.text.settings import feature_line
from metaquorum.clients.admin.cluster import list_brokers
from metaquorum.clients.admin.topics import DescribedPartition, DescribedTopic
from metaquorum.controller.partitions.plans import plan_size
from metaquorum.listeners.sasl import InvalidCredentials, ScramExchange
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import FeatureDescription
from metaquorum.metadata.requests.partitions import ReassignmentResult
from metaquorum.metadata.settings.scram import Mechanism
from metaquorum.wire.messages import DescribeClusterResponse


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_a_fenced_producer_is_told_so(code: ErrorCode, answer: ErrorCode) -> None:
    error = _later(code)
    assert error.code is answer
    assert "another producer with its transactional.id took over, or the transaction timed out" in str(error)


def test_a_partition_that_is_not_in_the_transaction_has_to_be_added() -> None:
    assert str(_later(ErrorCode.INVALID_TXN_STATE)).endswith("add it to the transaction first")


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"n,,n=alice,r=abc", "there is no user of that name with a credential for SCRAM-SHA-512"),
        (b"n,,n=id,r=abc,tokenauth=true", "there is no token of that name"),
    ],
)
def test_a_login_without_a_credential_names_the_mechanism(first: bytes, says: str) -> None:
    exchange = ScramExchange(Mechanism.SCRAM_SHA_512, lambda *_: None, "nonce")
    with pytest.raises(InvalidCredentials) as raised:
        exchange.respond(first, 0)
    assert str(raised.value) == says


@pytest.mark.parametrize(("level", "title"), [(0, "3.0-IV1"), (1, "3.0-IV1"), (19, "3.7-IV4")])
def test_a_log_without_levels_is_at_the_first(level: int, title: str) -> None:
    found = FeatureDescription(name="metadata.version", min_level=1, max_level=29, finalized_level=level)
    assert f"FinalizedVersionLevel: {title}\t" in feature_line(found, 5)


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ((ErrorCode.NONE, ErrorCode.NONE), "1 partitions change, 1 replicas are copied"),
        (
            (ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            "1 partitions change, 1 replicas are copied",
        ),
        ((ErrorCode.INVALID_REPLICA_ASSIGNMENT,) * 2, None),
    ],
)
def test_copies_are_announced_only_of_what_is_taken(
    capsys: pytest.CaptureFixture[str], errors: tuple[ErrorCode, ...], said: str | None
) -> None:
    results = tuple(
        ReassignmentResult(topic="t", partition=at, error=error, message=None)
        for at, error in enumerate(errors)
    )
    partitions._report_moves(
        results, "is being reassigned", plan_size({("t", 0): (1,)}, {("t", 0): (2,)}), False
    )
    printed = capsys.readouterr().out
    assert ("copied" in printed) == (said is not None) and (said or "") in printed


def test_partitions_are_described_by_their_number() -> None:
    fields = {"leader": 1, "leader_epoch": 0, "replicas": (1,), "isr": (1,), "offline": ()}
    found = DescribedTopic(
        name="t",
        topic_id=None,
        partitions=tuple(DescribedPartition(index=at, **fields) for at in (2, 10, 0, 1)),  # type: ignore[arg-type]
    )
    assert [each["partition"] for each in describe_json(found)["partitions"]] == [0, 1, 2, 10]
    lines = describe_text(found).splitlines()[1:]
    assert [line.split("\t")[2] for line in lines] == [f"Partition: {at}" for at in (0, 1, 2, 10)]


@pytest.mark.parametrize(
    ("fenced", "states"), [(False, ["running", "running"]), (True, ["fenced", "unknown"])]
)
async def test_states_that_a_fenced_broker_knew_last_are_unknown(fenced: bool, states: list[str]) -> None:
    Broker = DescribeClusterResponse.DescribeClusterBroker

    class Client:
        async def ask(self, body: object) -> DescribeClusterResponse:
            brokers = (Broker(broker_id=1, is_fenced=fenced), Broker(broker_id=2))
            return DescribeClusterResponse(controller_id=1, brokers=brokers)

        def refuse(self, code: int, message: str | None) -> None:
            assert code == 0

    assert [broker_state(each) for each in await list_brokers(Client())] == states  # type: ignore[arg-type]
