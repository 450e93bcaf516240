"""The transaction coordinator's decisions: what is stored, what is answered, when markers leave."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.broker.coordinator.state import Ask, BatchOrigin, Decision, Now, Reply
from metaquorum.broker.coordinator.transaction import (
    COMPLETION_WAIT_MS,
    EPOCH_MAX,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitializedProducer,
    InitProducer,
    ListTransactions,
    MarkersWritten,
    NeedsProducerId,
    TransactionState,
    TransactionStatus,
)
from metaquorum.broker.replica.events import SendTxnMarkers
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import TransactionConfig
from metaquorum.metadata.requests.data import CoordinatorRequest
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.wire.stored import StoredRecord, decode_stored, encode_stored

TOPIC = "__transaction_state"
GOLDEN = "kafka-3.7-wire/logs/broker-0-after-all-clients"
P0, P1 = ("orders", 0), ("orders", 1)
_SAID = re.compile(
    r"transactionalId=(\S+) payload: producerId:(\d+),producerEpoch:(\d+),state=(\w+),partitions=\[(.*?)\],"
    r"txnLastUpdateTimestamp=(\d+),txnTimeoutMs=(\d+)"
)


class Coordinator:
    """A state machine whose records are stored and committed at once, unless the test says otherwise."""

    def __init__(self) -> None:
        self.log: list[StoredRecord] = []
        self.markers: list[SendTxnMarkers] = []
        self.replies: list[Reply] = []
        self.now = Now(0, 1_000_000)
        self.state = TransactionState(3, TransactionConfig())
        self.next_id = 100
        self.state.loaded(MetadataImage(), self.now)

    def take(self, decision: Decision, *, refused: bool = False, settled: bool = True) -> list[Any]:
        if refused and decision.records:
            if decision.if_refused is not None:
                self.take(decision.if_refused(ErrorCode.NOT_ENOUGH_REPLICAS))
            return []
        for record in decision.records:
            again = decode_stored(TOPIC, *encode_stored(record))
            assert again == record
            self.log.append(record)
            self.state.replay(record, BatchOrigin())
        if settled:
            self.markers += decision.effects  # type: ignore[arg-type]
        elif decision.if_unsettled is not None:
            decision.if_unsettled()
        self.replies += decision.replies
        return [reply.body for reply in decision.replies]

    def ask(self, body: Any, *, key: str = "k", **how: bool) -> Any:
        asked = Ask(key, CoordinatorRequest(topic=TOPIC, partition=3, body=body))
        replies = self.take(self.state.decide(asked, self.now), **how)
        return replies[0] if replies else None

    def init(self, name: str = "t", producer: int = -1, epoch: int = -1, timeout_ms: int = 60_000) -> Any:
        body = InitProducer(
            transactional_id=name, timeout_ms=timeout_ms, producer_id=producer, producer_epoch=epoch
        )
        answer = self.ask(body)
        if isinstance(answer, NeedsProducerId):
            self.next_id += 1
            fresh = InitProducer(
                transactional_id=name,
                timeout_ms=timeout_ms,
                producer_id=producer,
                producer_epoch=epoch,
                fresh_id=self.next_id,
            )
            answer = self.ask(fresh)
        return answer

    def add(
        self,
        producer: InitializedProducer,
        *partitions: tuple[str, int],
        verify: bool = False,
        key: str = "k",
    ) -> Any:
        return self.ask(
            AddPartitions(
                transactional_id="t",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                partitions=partitions or (P0,),
                verify_only=verify,
            ),
            key=key,
        )

    def end(self, producer: InitializedProducer, *, committed: bool = True, **how: bool) -> Any:
        return self.ask(
            EndTransaction(
                transactional_id="t",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=committed,
            ),
            **how,
        )

    def written(self, sent: SendTxnMarkers) -> Any:
        return self.ask(
            MarkersWritten(
                transactional_id=sent.transactional_id,
                producer_id=sent.producer_id,
                producer_epoch=sent.producer_epoch,
            )
        )

    def let(self, ms: int) -> None:
        self.now = Now(self.now.ms + ms, self.now.wall_ms + ms)
        for _ in range(10):
            due_ms = self.state.next_deadline_ms()
            if due_ms is None or due_ms > self.now.ms:
                break
            self.take(self.state.tick(self.now))

    def status(self) -> str:
        return str(self.ask(DescribeTransaction("t")).state)

    def restarted(self) -> Coordinator:
        """The coordinator of the next leader, which has read this log."""
        other = Coordinator()
        other.now, other.next_id = self.now, self.next_id
        for record in self.log:
            other.state.replay(record, BatchOrigin())
        other.log = list(self.log)
        other.take(other.state.loaded(MetadataImage(), other.now))
        return other


def test_a_transaction_from_begin_to_end() -> None:
    it = Coordinator()
    producer = it.init()
    assert producer == InitializedProducer(101, 0) and it.status() == "Empty"
    assert it.add(producer, P0) is ErrorCode.NONE
    assert it.add(producer, P0, verify=True) == (ErrorCode.NONE,)
    assert it.add(producer, P1, verify=True) == (ErrorCode.INVALID_TXN_STATE,)
    size = len(it.log)
    assert it.add(producer, P0) is ErrorCode.NONE and len(it.log) == size, "it is in the transaction already"
    assert it.add(producer, P1) is ErrorCode.NONE
    assert it.end(producer) is ErrorCode.NONE and it.status() == "PrepareCommit"
    (sent,) = it.markers
    assert (sent.partition, sent.committed, sent.partitions) == (3, True, (P0, P1))
    assert it.end(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert it.end(producer, committed=False) is ErrorCode.INVALID_TXN_STATE
    assert it.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert it.written(sent) is ErrorCode.NONE and it.status() == "CompleteCommit"
    assert it.end(producer) is ErrorCode.NONE, "a repeated request"
    assert it.end(producer, committed=False) is ErrorCode.INVALID_TXN_STATE
    assert it.add(producer, P0, verify=True) == (ErrorCode.INVALID_TXN_STATE,)
    assert it.init() == InitializedProducer(101, 1)
    assert it.add(producer) is ErrorCode.PRODUCER_FENCED


def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    """Its partitions are stored in one batch with the completion, in that order."""
    it = Coordinator()
    producer = it.init()
    it.add(producer, P0)
    it.end(producer)
    (sent,) = it.markers
    size = len(it.log)
    assert it.add(producer, P0, key="first") is None and it.add(producer, P1, key="second") is None
    stranger = InitializedProducer(producer.producer_id, producer.producer_epoch + 1)
    assert it.add(stranger, P1) is ErrorCode.PRODUCER_FENCED, "who waits is who may"
    assert it.add(producer, P0, verify=True) == (ErrorCode.CONCURRENT_TRANSACTIONS,)
    assert len(it.log) == size and it.status() == "PrepareCommit"
    it.replies.clear()
    it.written(sent)
    states = [TransactionStatus(record.value.transaction_status) for record in it.log[size:]]
    assert states == [TransactionStatus.COMPLETE_COMMIT, TransactionStatus.ONGOING]
    assert {each.key: each.body for each in it.replies} == dict.fromkeys(
        ("k", "first", "second"), ErrorCode.NONE
    )
    assert it.add(producer, P0, P1, verify=True) == (ErrorCode.NONE, ErrorCode.NONE)
    assert it.end(producer, committed=False) is ErrorCode.NONE
    assert (it.markers[-1].committed, it.markers[-1].partitions) == (False, (P0, P1))


def test_it_does_not_wait_for_ever() -> None:
    it = Coordinator()
    producer = it.init()
    it.add(producer)
    it.end(producer)
    assert it.add(producer, P1, key="early") is None
    it.let(COMPLETION_WAIT_MS - 1)
    assert it.status() == "PrepareCommit" and "early" not in {each.key for each in it.replies}
    it.let(1)
    assert it.replies[-1] == Reply("early", ErrorCode.CONCURRENT_TRANSACTIONS)
    it.written(it.markers[-1])
    assert it.status() == "CompleteCommit", "who was refused has begun nothing"


def test_what_no_record_has_outlives_a_transaction_that_begins_at_once() -> None:
    """A repeated InitProducerId gets the same answer also after transactions that followed each other."""
    it = Coordinator()
    it.init()
    producer = it.init(producer=101, epoch=0)
    it.add(producer)
    it.end(producer)
    it.add(producer, P1)
    it.written(it.markers[-1])
    assert it.state.transactions["t"].last_epoch == 0 and it.status() == "Ongoing"


def test_who_is_unknown_begins_nothing() -> None:
    it = Coordinator()
    stranger = InitializedProducer(7, 0)
    assert it.add(stranger) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert it.end(stranger) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert it.ask(DescribeTransaction("t")).error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    it.init()
    assert it.add(stranger) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert it.end(it.init()) is ErrorCode.INVALID_TXN_STATE, "there is nothing to end"


@pytest.mark.parametrize("timeout_ms", [0, -5, 900_001])
def test_a_timeout_is_bounded(timeout_ms: int) -> None:
    assert Coordinator().init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_another_process_of_the_producer_ends_what_the_first_has_open() -> None:
    it = Coordinator()
    first = it.init()
    it.add(first)
    assert it.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    (sent,) = it.markers
    assert (sent.producer_epoch, sent.committed) == (1, False), "the marker fences the first one"
    assert it.end(first) is ErrorCode.PRODUCER_FENCED
    it.written(sent)
    assert it.init() == InitializedProducer(101, 2)


def test_a_producer_raises_its_own_epoch() -> None:
    """KIP-360: it names what it has; a request that is repeated gets the same answer."""
    it = Coordinator()
    it.init()
    assert it.init(producer=101, epoch=0) == InitializedProducer(101, 1)
    assert it.init(producer=101, epoch=0) == InitializedProducer(101, 1)
    assert it.init(producer=101, epoch=1) == InitializedProducer(101, 2)
    assert it.init(producer=101, epoch=0) is ErrorCode.PRODUCER_FENCED
    assert it.init(producer=55, epoch=0) is ErrorCode.PRODUCER_FENCED
    assert it.restarted().init(producer=101, epoch=1) is ErrorCode.PRODUCER_FENCED, "no record has it"


@pytest.mark.parametrize("named", [True, False])
def test_after_the_last_epoch_comes_a_new_id(named: bool) -> None:
    it = Coordinator()
    it.init()
    while it.state.transactions["t"].epoch < EPOCH_MAX:
        it.state.replay(_with_epoch(it.log[-1], EPOCH_MAX), BatchOrigin())
    who = {"producer": 101, "epoch": EPOCH_MAX} if named else {}
    assert it.init(**who) == InitializedProducer(102, 0)
    if named:
        assert it.init(**who) == InitializedProducer(102, 0), "a repeated request"
    assert it.add(InitializedProducer(101, EPOCH_MAX)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _with_epoch(record: StoredRecord, epoch: int) -> StoredRecord:
    import msgspec

    return msgspec.structs.replace(record, value=msgspec.structs.replace(record.value, producer_epoch=epoch))


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    it = Coordinator()
    producer = it.init(timeout_ms=5_000)
    it.add(producer)
    it.let(5_000)
    assert it.status() == "Ongoing"
    it.let(10_000)
    (sent,) = it.markers
    assert (it.status(), sent.committed, sent.producer_epoch) == ("PrepareAbort", False, 1)
    assert it.end(producer) is ErrorCode.PRODUCER_FENCED
    it.written(sent)
    assert it.status() == "CompleteAbort"


def test_an_id_that_is_not_used_is_forgotten() -> None:
    it = Coordinator()
    it.init()
    it.let(604_000_000)
    assert it.status() == "Empty"
    it.let(3_600_000)
    assert it.log[-1].value is None and not it.state.transactions
    assert not it.restarted().state.transactions


def test_no_marker_leaves_before_the_decision_is_committed() -> None:
    """A doubtful append is stored again; the markers leave when that is committed."""
    it = Coordinator()
    producer = it.init()
    it.add(producer)
    it.end(producer, settled=False)
    assert not it.markers and it.status() == "PrepareCommit"
    it.let(100)
    assert not it.markers
    it.let(1_000)
    (sent,) = it.markers
    assert sent.committed and it.log[-1].value.transaction_status == TransactionStatus.PREPARE_COMMIT


def test_the_next_coordinator_finishes_what_was_decided() -> None:
    it = Coordinator()
    producer = it.init()
    it.add(producer, P0, P1)
    it.end(producer)
    other = it.restarted()
    assert not other.markers
    decision = other.state.tick(other.now)
    assert decision.records, "stored once more: what it read may not be committed yet"
    other.take(decision, refused=True)
    assert not other.markers
    other.let(1_000)
    assert other.markers == it.markers
    other.written(other.markers[0])
    assert other.status() == "CompleteCommit"
    again = other.restarted()
    again.let(20_000)
    assert not again.markers


def test_lists_are_filtered() -> None:
    it = Coordinator()
    first = it.init()
    it.init("u")
    it.add(first)
    it.now = Now(5, it.now.wall_ms + 5_000)

    def listed(**fields: Any) -> list[str]:
        return sorted(one.transactional_id for one in it.ask(ListTransactions(**fields)))

    assert listed() == ["t", "u"]
    assert listed(states=frozenset({"Ongoing"})) == ["t"]
    assert listed(producer_ids=frozenset({102})) == ["u"]
    assert (listed(min_duration_ms=5_000), listed(min_duration_ms=5_001)) == (["t"], [])


@pytest.mark.parametrize("place", ["d1/__transaction_state-1", "d2/__transaction_state-0"])
def test_kafkas_log_gives_what_kafkas_tools_print(shared_data: Path, place: str) -> None:
    """Every record of Kafka's is replayed, and written again byte by byte."""
    state = TransactionState(0, TransactionConfig())
    count = 0
    expected: dict[str, tuple[Any, ...]] = {}
    for path in sorted((shared_data / GOLDEN / place).glob("*.log")):
        said = _SAID.findall(Path(f"{path}.dump.txt").read_text())
        records = [record for batch in iter_batches(path.read_bytes()) for record in batch.records()]
        assert len(said) == len(records)
        for text, record in zip(said, records, strict=True):
            name, producer, epoch, status, partitions, updated, timeout = text
            stored = decode_stored(TOPIC, record.key or b"", record.value)
            assert stored is not None
            state.replay(stored, BatchOrigin())
            one = state.transactions[name]
            found = (one.producer_id, one.epoch, one.status.shown, one.updated_ms, one.timeout_ms)
            assert found == (int(producer), int(epoch), status, int(updated), int(timeout))
            assert {f"{topic}-{index}" for topic, index in one.partitions} == set(
                filter(None, partitions.split(","))
            )
            key, value = encode_stored(one.record())
            assert key == record.key and value is not None and record.value is not None
            assert len(value) == len(record.value), "topics may stand in another order"
            if len({topic for topic, _ in one.partitions}) <= 1:
                again = decode_stored(TOPIC, key, value)
                assert again is not None and again.value.producer_id == stored.value.producer_id
            expected[name] = found
            count += 1
    assert count > 10 and expected.keys() == state.transactions.keys()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_any_history_decides_each_transaction_once(seed: int) -> None:
    """No marker leaves without a stored decision, no two processes get one epoch, and a fenced producer
    changes nothing, whatever is refused, doubtful, or handed to the next coordinator."""
    rng = random.Random(seed)
    it = Coordinator()
    held: list[InitializedProducer] = []
    for _ in range(60):
        what = rng.choice(["init", "add", "add", "end", "written", "let", "restart"])
        how = {"refused": rng.random() < 0.1, "settled": rng.random() < 0.8}
        newest = it.state.transactions.get("t")
        who = rng.choice(held) if held else None
        fenced = (
            who is not None
            and newest is not None
            and ((who.producer_id, who.producer_epoch) != (newest.producer_id, newest.epoch))
        )
        if what == "init":
            answer = it.init()
            if isinstance(answer, InitializedProducer):
                assert answer not in held, "no two processes have one epoch"
                held.append(answer)
        elif what == "add" and who is not None:
            before = len(it.log)
            answer = it.add(who, rng.choice([P0, P1]))
            assert not fenced or (answer is not ErrorCode.NONE and len(it.log) == before)
        elif what == "end" and who is not None:
            before = len(it.log)
            answer = it.end(who, committed=rng.random() < 0.5, **how)
            assert not fenced or (answer is not ErrorCode.NONE and len(it.log) == before)
        elif what == "written" and it.markers:
            it.written(rng.choice(it.markers))
        elif what == "let":
            it.let(rng.choice([10, 1_000, 100_000]))
        elif what == "restart":
            markers = it.markers
            it = it.restarted()
            it.markers = list(markers)
        for sent in it.markers:
            stored = [
                record.value.transaction_status
                for record in it.log
                if record.value is not None
                and (record.value.producer_id, record.value.producer_epoch)
                == (sent.producer_id, sent.producer_epoch)
            ]
            wanted = TransactionStatus.PREPARE_COMMIT if sent.committed else TransactionStatus.PREPARE_ABORT
            assert wanted in stored, "no marker without a stored decision"
