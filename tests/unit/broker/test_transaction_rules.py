"""What a transaction coordinator answers in every state, to every producer; when it acts by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from metaquorum.broker.coordinator import transaction as under_test
from metaquorum.broker.coordinator.state import Ask, BatchOrigin, Decision, Now
from metaquorum.broker.coordinator.transaction import (
    COMPLETION_WAIT_MS,
    EPOCH_MAX,
    RESEND_MS,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitializedProducer,
    InitProducer,
    ListTransactions,
    MarkersWritten,
    NeedsProducerId,
    Transaction,
    TransactionState,
    TransactionStatus,
    of_record,
)
from metaquorum.broker.replica.events import SendTxnMarkers
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import TransactionConfig
from metaquorum.metadata.requests.data import CoordinatorRequest
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.stored import StoredRecord

STATUS = TransactionStatus
P0, P1 = ("a", 0), ("b", 0)
WALL = 5_000_000
CONFIG = TransactionConfig()
KNOWN = Transaction(
    transactional_id="t",
    producer_id=7,
    epoch=3,
    last_id=6,
    last_epoch=2,
    timeout_ms=100,
    partitions=frozenset({P0}),
    start_ms=WALL - 50,
    updated_ms=WALL - 40,
)
OPEN = (STATUS.ONGOING, STATUS.PREPARE_COMMIT, STATUS.PREPARE_ABORT)


def state_of(*known: Transaction) -> TransactionState:
    made = TransactionState(3, CONFIG)
    made.transactions = {each.transactional_id: each for each in known}
    return made


def ask(made: TransactionState, body: Any, key: object = "k", ms: int = 0) -> Decision:
    request = CoordinatorRequest(topic="", partition=3, body=body)
    return made.decide(Ask(key, request), Now(ms, WALL))


def markers(epoch: int, *, committed: bool) -> SendTxnMarkers:
    return SendTxnMarkers(
        partition=3,
        transactional_id="t",
        producer_id=7,
        producer_epoch=epoch,
        committed=committed,
        partitions=(P0,),
    )


def said(decision: Decision) -> Any:
    (reply,) = decision.replies
    return reply.body


def stored(made: TransactionState, decision: Decision) -> list[Transaction]:
    """What the records say, which are replayed."""
    for record in decision.records:
        made.replay(record, BatchOrigin())
    return [of_record(record) for record in decision.records]


def init(producer: int = -1, epoch: int = -1, fresh: int | None = None, timeout: int = 900) -> InitProducer:
    return InitProducer(
        transactional_id="t", timeout_ms=timeout, producer_id=producer, producer_epoch=epoch, fresh_id=fresh
    )


# ---- a producer begins ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [STATUS.EMPTY, STATUS.COMPLETE_COMMIT, STATUS.COMPLETE_ABORT, STATUS.DEAD])
@pytest.mark.parametrize(
    ("producer", "epoch", "begins"),
    [
        (-1, -1, (7, 4, -1)),  # another process: the next epoch
        (7, 3, (7, 4, 3)),  # the same producer raises its own
        (7, 2, (7, 3, 2)),  # and repeats that request
        (6, 2, (7, 3, 2)),
        (7, 4, None),
        (7, 1, None),
        (7, 0, None),
        (6, 3, None),
        (5, 3, None),
        (0, 3, None),
    ],
)
def test_who_begins_in_which_epoch(
    status: STATUS, producer: int, epoch: int, begins: tuple[int, int, int] | None
) -> None:
    made = state_of(replace(KNOWN, status=status))
    decision = ask(made, init(producer, epoch))
    if begins is None:
        assert (said(decision), decision.records) == (ErrorCode.PRODUCER_FENCED, ())
        return
    assert said(decision) == InitializedProducer(*begins[:2])
    (record,) = stored(made, decision)
    now = made.transactions["t"]
    assert (now.producer_id, now.epoch, now.last_epoch) == begins
    assert now.last_id == 6, "of an earlier id, which only a new id replaces"
    assert (now.status, now.timeout_ms, now.partitions) == (STATUS.EMPTY, 900, frozenset())
    assert (now.start_ms, now.updated_ms) == (-1, WALL)
    assert record == replace(now, last_epoch=-1, last_id=-1)


@pytest.mark.parametrize("status", OPEN)
@pytest.mark.parametrize(("producer", "epoch", "fenced"), [(-1, -1, False), (7, 3, False), (5, 3, True)])
def test_whoever_begins_while_one_is_open_ends_it_or_waits(
    status: STATUS, producer: int, epoch: int, fenced: bool
) -> None:
    made = state_of(replace(KNOWN, status=status))
    decision = ask(made, init(producer, epoch))
    assert said(decision) == (ErrorCode.PRODUCER_FENCED if fenced else ErrorCode.CONCURRENT_TRANSACTIONS)
    if fenced or status is not STATUS.ONGOING:
        assert decision.records == () == decision.effects
        return
    (record,) = stored(made, decision)
    assert (record.status, record.epoch, record.partitions) == (STATUS.PREPARE_ABORT, 4, {P0})
    assert decision.effects == (markers(4, committed=False),)


@pytest.mark.parametrize("timeout", [0, -1, CONFIG.max_timeout_ms + 1])
def test_a_timeout_without_bounds_is_refused(timeout: int) -> None:
    assert said(ask(state_of(), init(timeout=timeout))) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    for right in (1, CONFIG.max_timeout_ms):
        assert said(ask(state_of(), init(timeout=right))) == NeedsProducerId()


@pytest.mark.parametrize(("producer", "epoch"), [(-1, -1), (40, 9)])
def test_a_new_id_gets_what_the_shell_has_fetched_for_it(producer: int, epoch: int) -> None:
    made = state_of()
    assert said(ask(made, init(producer, epoch))) == NeedsProducerId()
    decision = ask(made, init(producer, epoch, fresh=0))
    assert said(decision) == InitializedProducer(0, 0)
    (record,) = stored(made, decision)
    assert (record.producer_id, record.epoch, record.updated_ms) == (0, 0, WALL)


@pytest.mark.parametrize(
    ("at", "producer", "epoch", "expected"),
    [
        (EPOCH_MAX - 1, -1, -1, InitializedProducer(7, EPOCH_MAX)),
        (EPOCH_MAX - 1, 7, EPOCH_MAX - 1, InitializedProducer(7, EPOCH_MAX)),
        (EPOCH_MAX, -1, -1, NeedsProducerId()),
        (EPOCH_MAX, 7, EPOCH_MAX, NeedsProducerId()),
        (EPOCH_MAX + 1, 7, EPOCH_MAX + 1, NeedsProducerId()),
        (EPOCH_MAX, 7, 2, InitializedProducer(7, EPOCH_MAX)),
        (EPOCH_MAX, 7, 5, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_the_last_epochs(at: int, producer: int, epoch: int, expected: Any) -> None:
    made = state_of(replace(KNOWN, epoch=at, status=STATUS.EMPTY))
    assert said(ask(made, init(producer, epoch))) == expected
    if expected == NeedsProducerId():
        made = state_of(replace(KNOWN, epoch=at, status=STATUS.EMPTY))
        decision = ask(made, init(producer, epoch, fresh=90))
        assert said(decision) == InitializedProducer(90, 0)
        stored(made, decision)
        now = made.transactions["t"]
        assert (now.last_id, now.last_epoch) == (7, -1 if producer < 0 else at)
        assert (now.timeout_ms, now.updated_ms, now.status) == (900, WALL, STATUS.EMPTY)
        if producer >= 0:  # its answer was lost: the same again
            again = ask(made, init(producer, epoch))
            assert said(again) == InitializedProducer(90, 0)


# ---- a producer goes on ---------------------------------------------------------------------

WHO = [
    (7, 3, None),
    (7, 2, ErrorCode.PRODUCER_FENCED),
    (7, 4, ErrorCode.PRODUCER_FENCED),
    (6, 3, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (8, 3, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
]


@pytest.mark.parametrize(("producer", "epoch", "error"), WHO[1:])
@pytest.mark.parametrize("status", STATUS)
def test_only_the_producer_that_is_known_goes_on(
    status: STATUS, producer: int, epoch: int, error: ErrorCode
) -> None:
    made = state_of(replace(KNOWN, status=status))
    who = {"transactional_id": "t", "producer_id": producer, "producer_epoch": epoch}
    for body in (
        AddPartitions(**who, partitions=(P0,)),
        EndTransaction(**who, committed=True),
        MarkersWritten(**who),
    ):
        decision = ask(made, body)
        assert (said(decision), decision.records) == (error, ())
        assert said(ask(state_of(), body)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    both = AddPartitions(**who, partitions=(P0, P1), verify_only=True)
    assert said(ask(made, both)) == (error, error)


ME = {"transactional_id": "t", "producer_id": 7, "producer_epoch": 3}


@pytest.mark.parametrize("status", STATUS)
def test_partitions_are_added(status: STATUS) -> None:
    made = state_of(replace(KNOWN, status=status))
    same = ask(made, AddPartitions(**ME, partitions=(P0,)))
    more = ask(state_of(replace(KNOWN, status=status)), AddPartitions(**ME, partitions=(P1,)))
    if status in (STATUS.PREPARE_COMMIT, STATUS.PREPARE_ABORT):
        assert same.replies == same.records == more.replies == more.records == ()
        return
    assert said(same) is said(more) is ErrorCode.NONE
    ongoing = status is STATUS.ONGOING
    assert (same.records == ()) == ongoing
    (record,) = stored(made, more)
    assert (record.status, record.partitions) == (STATUS.ONGOING, {P0, P1})
    assert (record.start_ms, record.updated_ms) == (WALL - 50 if ongoing else WALL, WALL)
    verified = ask(made, AddPartitions(**ME, partitions=(P1, ("a", 1)), verify_only=True))
    assert said(verified) == (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("status", STATUS)
def test_partitions_are_verified_while_it_is_ongoing(status: STATUS) -> None:
    answer = said(
        ask(
            state_of(replace(KNOWN, status=status)),
            AddPartitions(**ME, partitions=(P0, P1), verify_only=True),
        )
    )
    if status in (STATUS.PREPARE_COMMIT, STATUS.PREPARE_ABORT):
        assert answer == (ErrorCode.CONCURRENT_TRANSACTIONS,) * 2
    elif status is STATUS.ONGOING:
        assert answer == (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE)
    else:
        assert answer == (ErrorCode.INVALID_TXN_STATE,) * 2


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("status", STATUS)
def test_it_ends_once(status: STATUS, committed: bool) -> None:
    made = state_of(replace(KNOWN, status=status))
    decision = ask(made, EndTransaction(**ME, committed=committed))
    done = STATUS.COMPLETE_COMMIT if committed else STATUS.COMPLETE_ABORT
    under_way = STATUS.PREPARE_COMMIT if committed else STATUS.PREPARE_ABORT
    if status is STATUS.ONGOING:
        assert said(decision) is ErrorCode.NONE
        (record,) = stored(made, decision)
        assert (record.status, record.epoch, record.updated_ms) == (under_way, 3, WALL)
        assert decision.effects == (markers(3, committed=committed),)
        return
    assert decision.records == ()
    expected = {done: ErrorCode.NONE, under_way: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert said(decision) is expected.get(status, ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("status", STATUS)
def test_markers_complete_what_was_decided(status: STATUS) -> None:
    made = state_of(replace(KNOWN, status=status))
    decision = ask(made, MarkersWritten(**ME))
    assert said(decision) is ErrorCode.NONE
    ends = {
        STATUS.PREPARE_COMMIT: STATUS.COMPLETE_COMMIT,
        STATUS.PREPARE_ABORT: STATUS.COMPLETE_ABORT,
    }
    found = [(one.status, one.partitions, one.updated_ms) for one in stored(made, decision)]
    assert found == ([(ends[status], frozenset(), WALL)] if status in ends else [])


def test_additions_wait_for_the_markers_and_are_stored_with_them() -> None:
    made = state_of(replace(KNOWN, status=STATUS.PREPARE_COMMIT))
    assert ask(made, AddPartitions(**ME, partitions=(P1,)), "one", ms=10).replies == ()
    assert ask(made, AddPartitions(**ME, partitions=(P0,)), "two", ms=20).replies == ()
    assert made.next_deadline_ms() == 10 + COMPLETION_WAIT_MS
    decision = ask(made, MarkersWritten(**ME), "m")
    assert [(reply.key, reply.body) for reply in decision.replies] == [
        (key, ErrorCode.NONE) for key in ("m", "one", "two")
    ]
    records = stored(made, decision)
    assert [one.status for one in records] == [STATUS.COMPLETE_COMMIT, STATUS.ONGOING]
    assert made.transactions["t"].partitions == {P0, P1}
    assert made.transactions["t"].last_epoch == 2, "no record has it, and it is not forgotten"
    assert made.next_deadline_ms() is None


def test_who_waits_for_markers_too_long_is_refused() -> None:
    made = state_of(replace(KNOWN, status=STATUS.PREPARE_COMMIT))
    ask(made, AddPartitions(**ME, partitions=(P1,)), "one", ms=10)
    assert made.tick(Now(9 + COMPLETION_WAIT_MS, WALL)).replies == ()
    decision = made.tick(Now(10 + COMPLETION_WAIT_MS, WALL))
    assert said(decision) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert decision.at_once and decision.records == ()
    assert made.next_deadline_ms() is None


# ---- by itself ------------------------------------------------------------------------------


def loaded(*known: Transaction) -> TransactionState:
    made = state_of(*known)
    made.loaded(MetadataImage(), Now(1_000, WALL))
    return made


@pytest.mark.parametrize("status", STATUS)
@pytest.mark.parametrize(("age", "late"), [(99, False), (100, False), (101, True)])
def test_what_takes_too_long_is_aborted_and_fenced(status: STATUS, age: int, late: bool) -> None:
    made = state_of(replace(KNOWN, status=status, start_ms=WALL - age))
    made._abort_due_ms = 77
    assert made.tick(Now(76, WALL)).records == ()
    decision = made.tick(Now(77, WALL))
    assert made.next_deadline_ms() == 77 + CONFIG.abort_interval_ms
    records = stored(made, decision)
    expected = [(STATUS.PREPARE_ABORT, 4, WALL)] if late and status is STATUS.ONGOING else []
    assert [(one.status, one.epoch, one.updated_ms) for one in records] == expected
    assert len(decision.effects) == len(expected)


@pytest.mark.parametrize("status", STATUS)
@pytest.mark.parametrize(("age", "old"), [(-1, False), (0, True), (1, True)])
def test_what_nobody_uses_is_forgotten(status: STATUS, age: int, old: bool) -> None:
    made = state_of(replace(KNOWN, status=status, updated_ms=WALL - CONFIG.id_expiration_ms - age))
    made._removal_due_ms = 77
    decision = made.tick(Now(77, WALL))
    idle = status in (STATUS.EMPTY, STATUS.COMPLETE_COMMIT, STATUS.COMPLETE_ABORT)
    assert [record.value for record in decision.records] == ([None] if old and idle else [])
    assert made.next_deadline_ms() == 77 + CONFIG.removal_interval_ms
    for record in decision.records:
        made.replay(record, BatchOrigin())
    assert (made.transactions == {}) == (old and idle)


def test_a_new_coordinator_decides_again_what_was_not_completed() -> None:
    known = [replace(KNOWN, transactional_id=status.name, status=status) for status in STATUS]
    made = loaded(*known)
    assert made.next_deadline_ms() == 1_000
    decision = made.tick(Now(1_000, WALL))
    assert [one.transactional_id for one in stored(made, decision)] == ["PREPARE_COMMIT", "PREPARE_ABORT"]
    assert [one.committed for one in decision.effects] == [True, False]  # type: ignore[attr-defined]
    intervals = CONFIG.abort_interval_ms, CONFIG.removal_interval_ms
    assert made.next_deadline_ms() == 1_000 + min(intervals)
    made = loaded()
    assert made.next_deadline_ms() == 1_000 + min(intervals)
    assert (made._abort_due_ms, made._removal_due_ms) == tuple(1_000 + each for each in intervals)


@pytest.mark.parametrize("how", ["unsettled", "refused"])
def test_markers_that_could_not_leave_are_decided_again_later(how: str) -> None:
    made = state_of(replace(KNOWN, status=STATUS.ONGOING, start_ms=0))
    made._abort_due_ms = 5
    decision = made.tick(Now(5, WALL))
    if how == "unsettled":
        stored(made, decision)
        assert decision.if_unsettled is not None
        decision.if_unsettled()
    else:
        assert decision.if_refused is not None
        after = decision.if_refused(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert after.records == after.replies == ()
    assert made.next_deadline_ms() == 5 + RESEND_MS
    again = made.tick(Now(5 + RESEND_MS, WALL))
    # What was refused is not decided at all: its time comes round again.
    assert [one.status for one in stored(made, again)] == ([STATUS.PREPARE_ABORT] * (how == "unsettled"))
    assert made._unsent_due_ms is None


def test_so_many_at_once_and_the_rest_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "AT_ONCE_MAX", 2)
    late = [replace(KNOWN, transactional_id=f"{at}", status=STATUS.ONGOING, start_ms=0) for at in range(3)]
    made = state_of(*late)
    made._abort_due_ms = 5
    assert [one.transactional_id for one in stored(made, made.tick(Now(5, WALL)))] == ["0", "1"]
    assert made.next_deadline_ms() == 5
    assert [one.transactional_id for one in stored(made, made.tick(Now(5, WALL)))] == ["2"]
    assert made.next_deadline_ms() == 5 + CONFIG.abort_interval_ms
    made._removal_due_ms, made._abort_due_ms = 6, None
    made.transactions = {
        one.transactional_id: replace(one, status=STATUS.EMPTY, updated_ms=WALL - CONFIG.id_expiration_ms)
        for one in late
    }
    assert len(stored_keys(made, 6)) == 2 and made.next_deadline_ms() == 6
    assert len(stored_keys(made, 6)) == 1 and made.next_deadline_ms() == 6 + CONFIG.removal_interval_ms
    made = loaded(*[replace(one, status=STATUS.PREPARE_ABORT) for one in late])
    assert len(made.tick(Now(1_000, WALL)).records) == 2
    assert made.next_deadline_ms() == 1_000
    assert len(made.tick(Now(1_000, WALL)).records) == 1
    assert made._unsent_due_ms is None


def stored_keys(made: TransactionState, ms: int) -> list[str]:
    decision = made.tick(Now(ms, WALL))
    for record in decision.records:
        made.replay(record, BatchOrigin())
    return [record.key.transactional_id for record in decision.records]


# ---- operators ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", STATUS)
def test_what_operators_see(status: STATUS) -> None:
    made = state_of(replace(KNOWN, status=status, partitions=frozenset({P1, P0})))
    found = said(ask(made, DescribeTransaction("t")))
    assert (found.producer_id, found.producer_epoch, found.timeout_ms) == (7, 3, 100)
    assert (found.state, found.partitions) == (status.shown, (P0, P1))
    assert found.start_ms == WALL - 50, "of the last transaction, if none is open"
    missing = said(ask(made, DescribeTransaction("x")))
    assert (missing.error, missing.transactional_id) == (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "x")


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ({}, True),
        ({"states": frozenset({"Ongoing"})}, True),
        ({"states": frozenset({"Empty"})}, False),
        ({"producer_ids": frozenset({7})}, True),
        ({"producer_ids": frozenset({3})}, False),
        ({"min_duration_ms": -1}, True),
        ({"min_duration_ms": 0}, True),
        ({"min_duration_ms": 50}, True),
        ({"min_duration_ms": 51}, False),
        ({"states": frozenset({"Ongoing"}), "producer_ids": frozenset({3})}, False),
    ],
)
def test_lists_take_what_fits_all_that_is_asked(asked: dict[str, Any], listed: bool) -> None:
    made = state_of(replace(KNOWN, status=STATUS.ONGOING))
    fields: dict[str, Any] = {"states": frozenset(), "producer_ids": frozenset(), "min_duration_ms": -1}
    assert bool(said(ask(made, ListTransactions(**(fields | asked))))) is listed
    never = state_of(replace(KNOWN, start_ms=-1))
    assert said(ask(never, ListTransactions(**(fields | {"min_duration_ms": 0})))) == ()


@pytest.mark.parametrize("status", STATUS)
def test_a_record_says_all_but_what_the_producer_had_before(status: STATUS) -> None:
    whole = replace(KNOWN, status=status, partitions=frozenset({P0, P1, ("a", 2)}))
    kept = frozenset() if status is STATUS.EMPTY else whole.partitions
    assert of_record(whole.record()) == replace(whole, last_id=-1, last_epoch=-1, partitions=kept)
    value = msgspec.structs.replace(whole.record().value, transaction_status=9)
    with pytest.raises(DecodeError, match="9 is not the status"):
        of_record(StoredRecord(whole.record().key, value, 0, 0))


def test_only_reads_need_no_log() -> None:
    made = state_of()
    who = {**ME, "partitions": (P0,)}
    assert made.only_reads(DescribeTransaction("t")) and made.only_reads(
        AddPartitions(**who, verify_only=True)
    )
    assert not made.only_reads(AddPartitions(**who)) and not made.only_reads(init())
    assert not made.only_reads(MarkersWritten(**ME))
