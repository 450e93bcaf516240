"""One coordinator by itself, with a log that says what the test wants: loading, waiting, retrying."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.coordinator.shard import LOAD_BYTES, RETRY_MS, Shard
from metaquorum.broker.coordinator.state import (
    NOTHING,
    Ask,
    BatchOrigin,
    Decision,
    Now,
    Reply,
    coordinator_error,
)
from metaquorum.broker.replica.events import DataRespond
from metaquorum.broker.replica.requests.own_logs import LogBounds, ReadDone
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.data import (
    CoordinatorRequest,
    CoordinatorResponse,
    PartitionKey,
    ProduceResult,
)
from metaquorum.raft.effects import Outbox, Warn
from metaquorum.storage.batches.batch import parse_header
from metaquorum.wire.messages import (
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    TxnOffsetCommitRequest,
)
from metaquorum.wire.stored import StoredRecord
from tests.unit.broker.test_coordinators import batch, marker, tally

KEY: PartitionKey = (b"o" * 16, 3)
IMAGE = MetadataImage()
COMMIT_TIMEOUT_MS = 700
EMPTY = LogBounds(0, 0, 0)


def failed(error: ErrorCode, message: str | None = None) -> ProduceResult:
    return ProduceResult(key=KEY, error=error, message=message)


DONE = ProduceResult(key=KEY, error=ErrorCode.NONE)


class Logs:
    """What `OwnLogs` does, as far as a shard sees it. `result`: what an append says at once."""

    def __init__(self, bounds: LogBounds | None) -> None:
        self.now: LogBounds | None = bounds
        self.takes = True
        self.result: ProduceResult | None = None
        self.reads: list[tuple[int, int, int]] = []
        self.done: list[ReadDone] = []
        self.appended: list[tuple[int, bytes, int]] = []
        self.batches: list[Any] = []

    def bounds(self, key: PartitionKey) -> LogBounds | None:
        assert key == KEY
        return self.now

    def can_append(self, key: PartitionKey) -> bool:
        return self.takes

    def read(self, key: PartitionKey, start: int, stop: int, size: int, done: ReadDone) -> None:
        self.reads.append((start, stop, size))
        self.done.append(done)

    def append(
        self, key: PartitionKey, epoch: int, data: bytes, ticket: Any, *, wall_ms: int
    ) -> ProduceResult | None:
        self.appended.append((epoch, data, wall_ms))
        self.batches.append(ticket)
        if self.now is not None and (self.result is None or self.result.error is ErrorCode.NONE):
            end = self.now.end + parse_header(data).records_count
            self.now = self.now._replace(end=end)
        return self.result


class State:
    """Says what the test has put into `decisions`, by what is asked."""

    def __init__(self) -> None:
        self.replayed: list[tuple[str, BatchOrigin]] = []
        self.markers: list[tuple[BatchOrigin, bool]] = []
        self.decisions: dict[str, Decision] = {}
        self.heard: list[object] = []
        self.ticks: list[int] = []
        self.due_ms: int | None = None

    def replay(self, record: StoredRecord, origin: BatchOrigin) -> None:
        self.replayed.append((record.key.group, origin))

    def replay_marker(self, origin: BatchOrigin, *, committed: bool) -> None:
        self.markers.append((origin, committed))

    def loaded(self, image: MetadataImage, now: Now) -> Decision:
        self.heard.append(("loaded", now))
        return self.decisions.get("loaded", NOTHING)

    def image_moved(self, image: MetadataImage, previous: MetadataImage, now: Now) -> Decision:
        return self.decisions.get("image", NOTHING)

    def only_reads(self, body: Any) -> bool:
        return str(body).startswith("read")

    def decide(self, asked: Ask, now: Now) -> Decision:
        return self.decisions[asked.body]

    def tick(self, now: Now) -> Decision:
        self.ticks.append(now.ms)
        self.due_ms = None
        return self.decisions.get("tick", NOTHING)

    def next_deadline_ms(self) -> int | None:
        return self.due_ms


class Bench:
    """A shard of leader epoch 6."""

    def __init__(self, bounds: LogBounds | None = EMPTY) -> None:
        self.logs, self.state, self.out = Logs(bounds), State(), Outbox[Any]()
        self.partition_changed = 0
        self.shard = Shard(
            KEY,
            "__consumer_offsets",
            6,
            self.state,
            self.logs,
            COMMIT_TIMEOUT_MS,
            self.wake,
            self.out,  # type: ignore[arg-type]
        )

    def wake(self) -> None:
        self.partition_changed += 1

    def load(self, ms: int = 1) -> None:
        self.shard.load(IMAGE, Now(ms, 100 + ms))

    def ask(self, body: str, key: object = "k", ms: int = 5) -> None:
        request = CoordinatorRequest(topic="t", partition=3, body=body)
        self.shard.handle(key, request, Now(ms, 100 + ms))

    def told(self) -> list[tuple[object, Any]]:
        """(key, body or error code) of the answers since the last call."""
        effects = self.out.take()
        answers = [each for each in effects if isinstance(each, DataRespond)]
        found = []
        for each in answers:
            body = each.response
            found.append((each.key, body.body if isinstance(body, CoordinatorResponse) else body.code))
        return found


def active() -> Bench:
    bench = Bench()
    bench.load()
    assert bench.shard.is_active
    return bench


def storing(key: object = "k", answer: str = "done", **more: Any) -> Decision:
    return Decision(records=(tally("a", 1), tally("b", 2)), replies=(Reply(key, answer),), **more)


# ---- loading --------------------------------------------------------------------------------


def test_an_empty_log_is_loaded_at_once_and_what_follows_is_stored() -> None:
    bench = Bench(LogBounds(9, 9, 9))
    bench.state.decisions["loaded"] = storing()
    bench.load()
    assert (bench.shard.is_active, bench.logs.reads) == (True, [])
    assert bench.state.heard == [("loaded", Now(1, 101))]
    assert [name for name, _ in bench.state.replayed] == ["a", "b"]
    assert [origin.offset for _, origin in bench.state.replayed] == [9, 10]
    bench.load()
    assert len(bench.state.heard) == 1


def test_what_is_not_led_yet_is_not_loaded() -> None:
    bench = Bench(None)
    bench.load()
    assert (bench.shard.is_active, bench.logs.reads, bench.state.heard) == (False, [], [])
    bench.logs.now = LogBounds(0, 0, 0)
    bench.load()
    assert bench.shard.is_active


def test_a_log_is_read_up_to_where_it_ended_in_the_beginning() -> None:
    bench = Bench(LogBounds(3, 5, 8))
    bench.load()
    bench.load()
    assert bench.logs.reads == [(3, 5, LOAD_BYTES)], "one piece at a time"
    bench.ask("read")
    assert bench.told() == [("k", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
    bench.logs.done[0](batch(3, tally("a", 1), tally("b", 1)), None)
    assert bench.partition_changed == 1
    bench.load()
    assert len(bench.logs.reads) == 1, "nothing more is written yet"
    bench.logs.now = LogBounds(3, 9, 12)
    bench.load()
    assert bench.logs.reads[1:] == [(5, 8, LOAD_BYTES)]
    bench.logs.done[1](batch(5, tally("c", 1), tally("d", 1)), None)
    bench.load()
    assert bench.logs.reads[2:] == [(7, 8, LOAD_BYTES)]
    # A batch that reaches beyond is replayed whole; nothing that was is replayed again.
    bench.logs.done[2](batch(5, tally("c", 1), tally("d", 1)) + batch(7, tally("e", 1), tally("f", 1)), None)
    assert not bench.shard.is_active
    bench.load()
    assert bench.shard.is_active and len(bench.logs.reads) == 3
    assert [(name, origin.offset) for name, origin in bench.state.replayed] == [
        ("a", 3),
        ("b", 4),
        ("c", 5),
        ("d", 6),
        ("e", 7),
        ("f", 8),
    ]


def test_what_was_removed_meanwhile_is_passed_over() -> None:
    bench = Bench(LogBounds(0, 8, 8))
    bench.load()
    bench.logs.done[0](None, None)
    assert bench.shard.problem is None and bench.partition_changed == 1
    bench.logs.now = LogBounds(6, 8, 8)
    bench.load()
    assert bench.logs.reads == [(0, 8, LOAD_BYTES), (6, 8, LOAD_BYTES)]
    bench.logs.done[1](b"", None)
    bench.load()
    assert bench.shard.is_active, "a gap at the end holds nothing"
    assert bench.state.replayed == []


@pytest.mark.parametrize(
    ("data", "problem"), [(None, "the CRC"), (batch(0, tally("a", 1))[:70], None), (b"x" * 70, None)]
)
def test_damage_ends_the_loading(data: bytes | None, problem: str | None) -> None:
    bench = Bench(LogBounds(0, 8, 8))
    bench.load()
    bench.logs.done[0](data, problem)
    assert bench.shard.problem and (problem is None or bench.shard.problem == problem)
    (warning,) = bench.out.take()
    assert isinstance(warning, Warn) and "__consumer_offsets-3" in warning.message
    bench.load()
    assert len(bench.logs.reads) == 1 and not bench.shard.is_active
    bench.ask("read")
    assert bench.told() == [("k", ErrorCode.COORDINATOR_NOT_AVAILABLE)]


def test_markers_and_transactions_are_replayed_with_their_producer() -> None:
    bench = Bench(LogBounds(0, 4, 4))
    bench.load()
    data = batch(0, tally("a", 1), producer_id=0) + marker(1, 0, 1) + marker(2, 0, 0) + marker(3, 0, 2)
    bench.logs.done[0](data, None)
    assert bench.state.replayed == [("a", BatchOrigin(0, 0, 0))]
    assert bench.state.markers == [(BatchOrigin(1, 0, 0), True), (BatchOrigin(2, 0, 0), False)]


def test_a_marker_that_is_appended_while_it_loads_is_read_too() -> None:
    origin = BatchOrigin(8, 1, 2)
    bench = Bench(LogBounds(0, 9, 9))
    bench.shard.marked(origin, committed=True)
    bench.load()
    assert bench.logs.reads == [(0, 9, LOAD_BYTES)], "it has not begun: it will see the whole log"
    bench.logs.now = LogBounds(0, 10, 10)
    bench.shard.marked(origin, committed=True)
    bench.logs.done[0](b"".join(batch(at, tally("a", at)) for at in range(9)), None)
    bench.load()
    assert bench.logs.reads[1:] == [(9, 10, LOAD_BYTES)]
    bench.logs.now = None
    bench.shard.marked(origin, committed=True)
    assert bench.state.markers == []
    bench.logs.now = LogBounds(0, 10, 10)
    bench.logs.done[1](b"", None)
    bench.load()
    bench.shard.marked(origin, committed=False)
    assert bench.state.markers == [(origin, False)]


# ---- decisions ------------------------------------------------------------------------------


def test_a_decision_is_one_batch_in_the_shards_epoch_and_is_answered_when_it_is_committed() -> None:
    bench = active()
    bench.logs.now = LogBounds(0, 4, 4)
    bench.state.decisions["put"] = storing(effects=("effect",), origin=BatchOrigin(-1, 7, 2))
    bench.ask("put", ms=50)
    ((epoch, data, wall_ms),) = bench.logs.appended
    header = parse_header(data)
    assert (epoch, wall_ms, header.records_count, header.base_timestamp_ms) == (6, 150, 2, 150)
    assert (header.producer_id, header.producer_epoch, header.is_transactional) == (7, 2, True)
    assert bench.state.replayed == [("a", BatchOrigin(4, 7, 2)), ("b", BatchOrigin(5, 7, 2))]
    assert bench.logs.batches[0].deadline_ms == 50 + COMMIT_TIMEOUT_MS
    assert bench.told() == []
    bench.logs.batches[0].complete(DONE)
    assert bench.logs.batches[0].is_done
    effects = bench.out.take()
    assert effects[0] == "effect"
    assert [each.key for each in effects[1:]] == ["k"]


def test_a_log_that_takes_it_for_committed_at_once_is_answered_at_once() -> None:
    bench = active()
    bench.logs.result = DONE
    bench.state.decisions["put"] = storing()
    bench.ask("put")
    assert bench.told() == [("k", "done")]
    assert not parse_header(bench.logs.appended[0][1]).is_transactional
    bench.state.decisions["read"] = Decision(replies=(Reply("r", "seen"),))
    bench.ask("read", "r")
    assert bench.told() == [("r", "seen")]


def test_an_answer_that_stores_nothing_waits_for_the_newest_batch() -> None:
    bench = active()
    bench.state.decisions |= {
        "put": storing(),
        "read": Decision(replies=(Reply("r", "seen"),), effects=("late",)),
        "read now": Decision(replies=(Reply("n", "now"),), effects=("early",), at_once=True),
    }
    bench.ask("put")
    bench.ask("read", "r")
    assert bench.out.take() == []
    bench.ask("read now", "n")
    assert bench.out.take()[0] == "early"
    bench.logs.batches[0].complete(DONE)
    effects = bench.out.take()
    assert effects[0] == "late" and [each.key for each in effects[1:]] == ["k", "r"]
    bench.ask("read", "r")
    assert [getattr(each, "key", each) for each in bench.out.take()] == ["late", "r"]


def test_what_cannot_be_committed_is_told_to_everyone_and_to_the_state() -> None:
    bench = active()
    calls: list[str] = []
    bench.state.decisions |= {
        "put": storing(if_unsettled=lambda: calls.append("put"), effects=("lost",)),
        "read": Decision(replies=(Reply("r", "seen"),), if_unsettled=lambda: calls.append("read")),
    }
    bench.ask("put")
    bench.ask("read", "r")
    before = bench.partition_changed
    bench.logs.batches[0].complete(failed(ErrorCode.REQUEST_TIMED_OUT, "too late"))
    effects = bench.out.take()
    assert [(each.key, each.response.code, each.response.message) for each in effects] == [
        ("k", ErrorCode.COORDINATOR_NOT_AVAILABLE, "too late"),
        ("r", ErrorCode.COORDINATOR_NOT_AVAILABLE, "too late"),
    ]
    assert (calls, bench.partition_changed) == (["put", "read"], before + 1)


@pytest.mark.parametrize("at_once", [True, False])
def test_what_the_log_refuses_is_not_replayed(at_once: bool) -> None:
    """The state may say what then; what it says may be stored or answered."""
    bench = active()
    bench.logs.result = failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    bench.state.decisions["put"] = storing()
    bench.ask("put")
    assert bench.told() == [("k", ErrorCode.NOT_COORDINATOR)]
    assert bench.state.replayed == []
    heard: list[ErrorCode] = []

    def instead(error: ErrorCode) -> Decision:
        heard.append(error)
        return Decision(replies=(Reply("k", "instead"),), at_once=at_once)

    bench.state.decisions["put"] = storing(if_refused=instead)
    bench.ask("put")
    assert bench.told() == [("k", "instead")]
    assert (heard, bench.state.replayed) == ([ErrorCode.NOT_LEADER_OR_FOLLOWER], [])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_what_clients_hear_of_an_append_that_failed(error: ErrorCode, expected: ErrorCode) -> None:
    assert coordinator_error(error) is expected
    for commit in (OffsetCommitRequest(), TxnOffsetCommitRequest()):
        too_large = error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
        wanted = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if too_large else expected
        assert coordinator_error(error, commit) is wanted


REQUESTS = OffsetCommitRequest, TxnOffsetCommitRequest, JoinGroupRequest, OffsetDeleteRequest


@pytest.mark.parametrize("where", ["the log refuses it", "no record holds it"])
@pytest.mark.parametrize("kind", REQUESTS)
def test_a_batch_that_is_too_large_has_the_error_of_its_request(kind: type, where: str) -> None:
    bench = active()
    body = kind()
    if where == "the log refuses it":
        bench.logs.result = failed(ErrorCode.MESSAGE_TOO_LARGE)
        bench.state.decisions[body] = storing()
    else:
        records = (tally("n" * 40_000, 1),)
        bench.state.decisions[body] = Decision(records=records, replies=(Reply("k", "done"),))
    bench.ask(body)  # type: ignore[arg-type]
    is_commit = kind in (OffsetCommitRequest, TxnOffsetCommitRequest)
    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_commit else ErrorCode.UNKNOWN_SERVER_ERROR
    assert bench.told() == [("k", code)] and bench.state.replayed == []


def test_while_the_log_takes_nothing_only_reads_are_decided() -> None:
    bench = active()
    bench.logs.takes = False
    bench.state.decisions["read"] = Decision(replies=(Reply("r", "seen"),))
    bench.ask("put")
    bench.ask("read", "r")
    assert bench.told() == [("k", ErrorCode.COORDINATOR_NOT_AVAILABLE), ("r", "seen")]


def test_metadata_moves_the_state_in_office_only() -> None:
    bench = Bench(LogBounds(0, 9, 9))
    bench.state.decisions["image"] = storing()
    bench.shard.image_moved(IMAGE, IMAGE, Now(1, 1))
    assert bench.logs.appended == []
    bench = active()
    bench.state.decisions["image"] = storing()
    bench.shard.image_moved(IMAGE, IMAGE, Now(1, 1))
    assert len(bench.logs.appended) == 1


# ---- time and callers -----------------------------------------------------------------------


def test_what_is_due_waits_for_its_time_and_for_the_log() -> None:
    bench = active()
    assert bench.shard.next_deadline_ms() is None
    bench.shard.tick(Now(10, 0))
    bench.state.due_ms = 40
    assert bench.shard.next_deadline_ms() == 40
    bench.shard.tick(Now(39, 0))
    assert bench.state.ticks == []
    bench.logs.takes = False
    bench.shard.tick(Now(40, 0))
    assert (bench.state.ticks, bench.shard.next_deadline_ms()) == ([], 40 + RETRY_MS)
    bench.shard.tick(Now(39 + RETRY_MS, 0))
    assert bench.shard.next_deadline_ms() == 40 + RETRY_MS
    bench.logs.takes = True
    bench.state.decisions["tick"] = storing()
    bench.shard.tick(Now(40 + RETRY_MS, 0))
    assert bench.state.ticks == [40 + RETRY_MS] and len(bench.logs.appended) == 1
    assert bench.shard.next_deadline_ms() is None
    bench.state.due_ms = 41
    bench.shard.resign()
    assert bench.shard.next_deadline_ms() is None


def test_callers_are_answered_once_and_not_after_they_went() -> None:
    bench = active()
    bench.state.decisions |= {"put": storing(), "wait": NOTHING}
    bench.ask("put")
    assert bench.shard.cancel("k") and not bench.shard.cancel("k") and not bench.shard.cancel("other")
    bench.logs.batches[0].complete(DONE)
    assert bench.told() == []
    bench.ask("wait", "w")
    bench.ask("wait", "v")
    assert bench.shard.take_waiting() == ["w", "v"] and bench.shard.take_waiting() == []
    bench.ask("wait", "w")
    bench.shard.resign()
    assert bench.told() == [("w", ErrorCode.NOT_COORDINATOR)]
    assert not bench.shard.is_active
    bench.shard.resign()
    assert bench.told() == []


def test_an_error_of_the_state_goes_to_the_caller_as_it_is() -> None:
    bench = active()
    error = ApiError(ErrorCode.GROUP_ID_NOT_FOUND, "none")
    bench.state.decisions["read"] = Decision(replies=(Reply("k", error),))
    bench.ask("read")
    assert bench.told() == [("k", ErrorCode.GROUP_ID_NOT_FOUND)]
