"""Each law of groups, transactions and compacted topics detects what breaks it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metaquorum.broker.coordinator.groups.group import CommittedOffset, offset_record
from metaquorum.metadata.image import MetadataImage
from metaquorum.storage.batches.batch import EndMarker, RecordBatch, encode_batch, encode_marker, parse_header
from metaquorum.storage.batches.format import TRANSACTIONAL
from metaquorum.wire.stored import encode_stored
from tests.sim.data_generations import Truth
from tests.sim.engine import Engine
from tests.sim.errors import SafetyError
from tests.sim.kafka.compaction import batches_with_gaps, last_values
from tests.sim.kafka.history import GroupHistory, TransactionHistory, Txn
from tests.sim.kafka.laws import KafkaLaws, OpenTransactions
from tests.sim.kafka.loop import SimulatedLoop, sleep_ms
from tests.sim.kafka.plan import OFFSETS, SOURCE, TARGET
from tests.sim.kafka.producers import COPIES
from tests.sim.kafka.verify import CommittedLogs, verify_copies, verify_offsets, verify_transactions
from tests.sim.marks import Marks

KEY = (b"t" * 16, 0)
OUT = (TARGET, 0)


def batch(
    base: int, *values: bytes | None, keys: tuple[bytes | None, ...] = (), producer: int = -1, epoch: int = 0
) -> RecordBatch:
    data = encode_batch(
        base_offset=base,
        leader_epoch=0,
        timestamp_ms=1,
        values=values,
        keys=keys or None,
        producer_id=producer,
        producer_epoch=epoch if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        attributes=TRANSACTIONAL if producer >= 0 else 0,
    )
    return RecordBatch(parse_header(data), data)


def marker(base: int, producer: int, *, committed: bool, epoch: int = 0) -> RecordBatch:
    data = bytearray(
        encode_marker(EndMarker(committed, 0), producer_id=producer, producer_epoch=epoch, timestamp_ms=1)
    )
    data[:8] = base.to_bytes(8, "big")
    return RecordBatch(parse_header(bytes(data)), bytes(data))


def truth_of(*batches: RecordBatch) -> Truth:
    truth = Truth(KEY)
    for each in batches:
        truth.batches[each.header.base_offset] = (each.header.next_offset, each.data)
        truth.end = each.header.next_offset
    return truth


# ---- compacted logs -------------------------------------------------------------------------------


def test_the_last_values_are_those_of_committed_transactions() -> None:
    log = [
        batch(0, b"1", b"x", keys=(b"a", b"b")),
        batch(2, b"2", keys=(b"a",), producer=7),
        batch(3, b"3", keys=(b"b",), producer=8),
        batch(4, b"4", keys=(b"a",)),
        marker(5, 7, committed=True),
        marker(6, 8, committed=False),
        batch(7, None, keys=(b"c",)),
        batch(8, b"open", keys=(b"b",), producer=9),
    ]
    assert last_values(log) == {b"a": (4, b"4"), b"b": (1, b"x")}


def test_a_log_lacks_no_last_value() -> None:
    laws = KafkaLaws(Marks(), MetadataImage)
    whole = (batch(0, b"1", keys=(b"a",)), batch(1, b"2", keys=(b"a",)), batch(2, b"3", keys=(b"b",)))
    laws.require_values("x", truth_of(*whole), list(whole[1:]))
    for lost in (whole[:2], whole[::2], ()):
        with pytest.raises(SafetyError, match="the last value of"):
            laws.require_values("x", truth_of(*whole), list(lost))


def test_a_replica_that_was_away_may_keep_what_was_deleted_meanwhile_and_nothing_else() -> None:
    laws = KafkaLaws(Marks(), MetadataImage)
    old, deleted, other = (
        batch(0, b"1", b"2", keys=(b"a", b"b")),
        batch(2, None, keys=(b"a",)),
        batch(3, b"3", keys=(b"b",)),
    )
    laws.require_values("x", truth_of(old, deleted, other), [old, other], [range(2, 3)])
    for passed in ([], [range(3, 9)]):
        with pytest.raises(SafetyError, match="the last value of b'a'"):
            laws.require_values("x", truth_of(old, deleted, other), [old, other], passed)
    with pytest.raises(SafetyError, match="the last value of b'b'"):
        laws.require_values("x", truth_of(old, deleted, other), [old], [range(2, 4)])


def test_a_batch_is_only_thinned() -> None:
    laws = KafkaLaws(Marks(), MetadataImage)
    old = batch(4, b"1", b"2", keys=(b"a", b"b"))
    assert laws.is_thinning(old, old)
    assert not laws.is_thinning(old, batch(4, b"1", b"other", keys=(b"a", b"b")))
    assert not laws.is_thinning(old, batch(5, b"1", b"2", keys=(b"a", b"b")))
    assert not laws.is_thinning(old, batch(4, b"1", keys=(b"a",)))  # its last offset differs


def test_offsets_only_rise() -> None:
    rising = batch(0, b"1").data + batch(3, b"2").data
    assert [each.header.base_offset for each in batches_with_gaps(rising)] == [0, 3]
    for data in (batch(3, b"2").data + batch(0, b"1").data, rising[:-1] + b"?"):
        with pytest.raises(SafetyError):
            list(batches_with_gaps(data))


def test_the_first_open_transaction_is_known() -> None:
    found = OpenTransactions()
    log = [
        batch(0, b"1"),
        batch(1, b"2", producer=7),
        batch(2, b"3", producer=8),
        marker(3, 7, committed=True),
    ]
    for count, first in ((1, None), (2, 1), (3, 1), (4, 2)):
        found.look(truth_of(*log[:count]))
        assert found.first == first


# ---- transactions ---------------------------------------------------------------------------------


def begun(history: TransactionHistory, *, commits: bool = True) -> Txn:
    history.initialized("t", (7, 0))
    txn = history.begun("t", (7, 0))
    txn.commit_asked = commits
    return txn


def test_epochs_only_rise() -> None:
    history = TransactionHistory()
    history.initialized("t", (7, 1))
    with pytest.raises(SafetyError, match="was given out after"):
        history.initialized("t", (7, 1))
    history.initialized("t", (8, 0))
    assert history.is_fenced("t", (7, 1)) and not history.is_fenced("t", (8, 0))


def test_fenced_producers_do_nothing() -> None:
    history = TransactionHistory()
    txn = begun(history)
    history.wrote(txn, OUT, was_fenced=False)
    with pytest.raises(SafetyError, match="fenced"):
        history.wrote(txn, OUT, was_fenced=True)
    with pytest.raises(SafetyError, match="fenced"):
        history.ended(txn, committed=True, was_fenced=True)


@pytest.mark.parametrize(("asked", "outcome"), [(False, None), (True, False)])
def test_no_dirty_read(asked: bool, outcome: bool | None) -> None:
    history = TransactionHistory()
    txn = begun(history)
    history.read(f"{txn.name}|0".encode(), "r")
    txn.commit_asked, txn.outcome = asked, outcome
    with pytest.raises(SafetyError, match="nobody committed"):
        history.read(f"{txn.name}|0".encode(), "r")


def logs_of(place: tuple[str, int], *batches: RecordBatch) -> CommittedLogs:
    logs = CommittedLogs()
    logs.walk(place, list(batches))
    return logs


def test_every_transaction_ends_in_its_own_epoch_or_a_later_one() -> None:
    with pytest.raises(SafetyError, match="does not end"):
        logs_of(OUT, batch(0, b"t.0|0", producer=7))
    with pytest.raises(SafetyError, match="of the later epoch"):
        logs_of(OUT, batch(0, b"t.0|0", producer=7, epoch=1), marker(1, 7, committed=True))


def ended(*, committed: bool) -> tuple[RecordBatch, RecordBatch]:
    return batch(0, b"t.0|0", producer=7), marker(1, 7, committed=committed)


def _torn(logs: CommittedLogs, txn: Txn) -> None:
    logs.walk((TARGET, 1), [*ended(committed=False)])


def _told_otherwise(logs: CommittedLogs, txn: Txn) -> None:
    txn.outcome = False


def _not_asked_for(logs: CommittedLogs, txn: Txn) -> None:
    txn.commit_asked = False


def _lost(logs: CommittedLogs, txn: Txn) -> None:
    txn.records[TARGET, 1] = [b"t.0|1"]


def _twice(logs: CommittedLogs, txn: Txn) -> None:
    logs.walk(OUT, [*ended(committed=True)])


def _of_nobody(logs: CommittedLogs, txn: Txn) -> None:
    logs.fates["u.9"] = {True}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_torn, "committed in one place"),
        (_told_otherwise, "otherwise than"),
        (_not_asked_for, "nobody asked"),
        (_lost, "is not in"),
        (_twice, "stored twice"),
        (_of_nobody, "nobody began"),
    ],
)
def test_a_transaction_is_whole(change: Callable[[CommittedLogs, Txn], None], words: str) -> None:
    history = TransactionHistory()
    txn = begun(history)
    txn.records[OUT] = [b"t.0|0"]
    logs = logs_of(OUT, *ended(committed=True))
    verify_transactions(logs, history)
    change(logs, txn)
    with pytest.raises(SafetyError, match=words):
        verify_transactions(logs, history)


def test_an_acknowledged_transaction_is_there() -> None:
    history = TransactionHistory()
    txn = begun(history)
    txn.records[OUT], txn.outcome = [b"t.0|0"], True
    with pytest.raises(SafetyError, match="is not in"):
        verify_transactions(CommittedLogs(), history)
    txn.outcome = None
    logs = logs_of(OUT, *ended(committed=False))
    verify_transactions(logs, history)
    txn.was_read = True
    with pytest.raises(SafetyError, match="was read"):
        verify_transactions(logs, history)


def copied(offsets: tuple[int, ...], end: int) -> CommittedLogs:
    """A source of three records, of which some are copied."""
    logs = logs_of((SOURCE, 0), batch(0, b"a", b"b", b"c"))
    for offset in offsets:
        logs.walk(OUT, [batch(0, b"t.0|copy|0@%d" % offset, producer=7), marker(1, 7, committed=True)])
    if end:
        logs.offsets[COPIES, (SOURCE, 0)] = end
    return logs


def test_every_record_is_copied_once() -> None:
    assert verify_copies(copied((0, 1), 2)) == 2
    for wrong in (copied((0,), 2), copied((0, 1, 1), 2), copied((0, 1, 2), 2), copied((0,), 0)):
        with pytest.raises(SafetyError, match="cop"):
            verify_copies(wrong)


# ---- groups ---------------------------------------------------------------------------------------


def test_one_owner_in_a_generation() -> None:
    group = GroupHistory("g")
    group.assigned(1, "m", [OUT])
    group.assigned(2, "n", [OUT])
    with pytest.raises(SafetyError, match="m and n own"):
        group.assigned(1, "n", [OUT])


def test_offsets_never_go_back() -> None:
    group = GroupHistory("g")
    for offset in (3, 5, 8):
        group.asks(OUT, offset)
    group.committed(1, OUT, 5)
    group.fetched(1, OUT, 3)
    group.fetched(2, OUT, 5)
    group.fetched(2, OUT, 8)  # its outcome was unknown, and it was stored
    with pytest.raises(SafetyError, match="was committed before"):
        group.fetched(2, OUT, 3)
    with pytest.raises(SafetyError, match="nobody committed"):
        group.fetched(2, OUT, 9)


def test_an_acknowledged_offset_is_there_at_the_end() -> None:
    group = GroupHistory("g")
    group.asks(OUT, 5)
    group.committed(1, OUT, 5)
    for offset, is_lost in ((5, False), (4, True)):
        record = offset_record("g", OUT, CommittedOffset(offset=offset, commit_ms=1))
        key, value = encode_stored(record)
        logs = logs_of((OFFSETS, 0), batch(0, value, keys=(key,)))
        if is_lost:
            with pytest.raises(SafetyError, match="was acknowledged"):
                verify_offsets(logs, group)
        else:
            verify_offsets(logs, group)


# ---- the loop -------------------------------------------------------------------------------------


def test_coroutines_run_on_simulated_time_and_end_with_their_process() -> None:
    engine = Engine(1)
    alive, seen = [True], []
    loop = SimulatedLoop(engine, lambda: alive[0])

    async def count(name: str, ms: float) -> None:
        for _ in range(3):
            await sleep_ms(ms)
            seen.append((name, engine.now_ms))

    loop.create_task(count("a", 10))
    loop.create_task(count("b", 15))
    engine.run_for(25, lambda: None)
    alive[0] = False
    engine.run_for(100, lambda: None)
    assert seen == [("a", 10), ("b", 15), ("a", 20)]


def test_what_a_coroutine_raises_ends_the_run() -> None:
    engine = Engine(1)
    loop = SimulatedLoop(engine)

    async def break_a_law() -> None:
        await sleep_ms(1)
        raise SafetyError("seen")

    loop.create_task(break_a_law()).add_done_callback(lambda task: task.result())
    with pytest.raises(SafetyError, match="seen"):
        engine.run_for(10, lambda: None)
