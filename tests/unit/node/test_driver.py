"""The driver's order of things, with a node that only says what it was told to say."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.metadata.errors import InvariantViolation
from metaquorum.node.driver import Driver, Ending
from metaquorum.node.replica import SnapshotFiles
from metaquorum.node.scheduler import StepEnd
from metaquorum.observability.metrics.statistics import NodeStatistics
from metaquorum.raft import effects as raft
from metaquorum.raft import events
from metaquorum.raft.messages import (
    FetchResponse,
    RaftError,
    RaftRequest,
    RaftResponse,
)
from metaquorum.raft.store import ReplicaStore
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import CommittedLostError, CorruptLogError, DiskError
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.uuids import random_uuid


class FakeClock:
    """Time stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def was_moved(self) -> bool:
        return False


class FakeNode:
    """Answers an event with the effects that `replies` holds for its type, and remembers everything."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.ticks: list[bool] = []
        self.gaps_until_ms: list[int] = []
        self.replies: dict[type, Callable[[Any], list[Any]]] = {}
        self.deadline_ms: int | None = None
        self.arrived = asyncio.Event()

    def start(self, *, now_ms: int, wall_ms: int) -> list[Any]:
        return []

    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> list[Any]:
        self.seen.append(event)
        self.arrived.set()
        reply = self.replies.get(type(event))
        return [] if reply is None else reply(event)

    def settle(self, *, now_ms: int, wall_ms: int) -> list[Any]:
        return []

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> list[Any]:
        self.ticks.append(drained and all(now_ms >= until_ms for until_ms in self.gaps_until_ms))
        self.deadline_ms = None
        self.arrived.set()
        return []

    def note_gap(self, until_ms: int) -> None:
        self.gaps_until_ms.append(until_ms)

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():
                self.arrived.clear()
                await self.arrived.wait()


class FakeTransport:
    def __init__(self) -> None:
        self.sent: list[tuple[int, int, RaftRequest, int]] = []
        self.answers: dict[int, RaftResponse] = {}
        self.answered = asyncio.Event()

    def send(self, to: int, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None:
        self.sent.append((to, correlation_id, request, timeout_ms))

    def respond(self, key: int, response: RaftResponse) -> None:
        self.answers[key] = response
        self.answered.set()

    async def close(self) -> None:
        pass


class Rig:
    """A driver over a real directory."""

    def __init__(self, directory: str) -> None:
        disk = PosixDisk()
        store_meta_properties(
            disk,
            directory,
            MetaProperties(cluster_id="c", node_id=1, directory_id=random_uuid(random.Random(1))),
        )
        self.store = ReplicaStore.open(disk, directory, voter_ids=(1,))
        self.node = FakeNode()
        self.transport = FakeTransport()
        self.clock = FakeClock()
        self.waiting = 0
        self.watch = NodeStatistics(0)
        self.driver = Driver(
            self.node,
            self.store,
            self.transport,
            SnapshotFiles(),
            clock=self.clock,
            load=lambda: self.waiting,
            inbox_max=10,
            watch=self.watch,
        )


@pytest.fixture
async def rig(tmp_path: Any) -> AsyncIterator[Rig]:
    made = Rig(str(tmp_path))
    made.driver.start()
    yield made
    await made.driver.close()
    made.store.close(clean=False)


def batch(base_offset: int, count: int = 1) -> bytes:
    return encode_batch(base_offset=base_offset, leader_epoch=1, timestamp_ms=5, values=[b"value"] * count)


def append(base_offset: int, count: int = 1) -> raft.AppendLog:
    return raft.AppendLog(batches=Batches.sealed(batch(base_offset, count)))


def fetched() -> FetchResponse:
    return FetchResponse(error=RaftError.NONE, epoch=1, leader_id=1)


async def test_effects_are_carried_out_in_order_and_a_sync_covers_all_of_a_step(rig: Rig) -> None:
    offsets = iter(range(5))
    rig.node.replies[events.ShutdownRequested] = lambda _: [
        append(offset := next(offsets)),
        raft.RespondWithRecords(
            key=offset, response=fetched(), read_from=0, read_to=offset + 1, max_bytes=1 << 20
        ),
    ]
    for _ in range(5):
        assert rig.driver.submit(events.ShutdownRequested())
    await rig.node.until(lambda: events.LogSynced(end_offset=5) in rig.node.seen)
    synced = [event for event in rig.node.seen if isinstance(event, events.LogSynced)]
    assert synced == [events.LogSynced(end_offset=5)] and rig.driver.statistics.syncs == 1
    for key in range(5):
        answer = rig.transport.answers[key]
        assert isinstance(answer, FetchResponse)
        assert answer.records == b"".join(batch(offset) for offset in range(key + 1))


async def test_what_is_appended_during_a_sync_is_covered_by_the_next(rig: Rig) -> None:
    appended = [append(0), append(1, 3)]
    rig.node.replies[events.ShutdownRequested] = lambda _: [appended.pop(0)]
    rig.node.replies[events.LogSynced] = lambda event: [appended.pop(0)] if appended else []
    rig.driver.submit(events.ShutdownRequested())
    await rig.node.until(lambda: events.LogSynced(end_offset=4) in rig.node.seen)
    ends = [event.end_offset for event in rig.node.seen if isinstance(event, events.LogSynced)]
    assert ends == [1, 4]
    watch = rig.watch
    assert watch.flushes.times_ms["metadata"].count == rig.driver.statistics.syncs == 2
    assert watch.queue_ms.count == watch.processing_ms.count == rig.driver.statistics.events
    assert watch.fetched_records == 4 and rig.driver.waiting == 0


async def test_the_quorum_state_is_durable_before_it_is_reported(rig: Rig) -> None:
    effect = raft.PersistQuorumState(token=9, epoch=4, leader_id=None, voted_id=1, voted_directory_id=None)
    rig.node.replies[events.ShutdownRequested] = lambda _: [effect]
    seen_at_report: list[int] = []

    def on_persisted(_: Any) -> list[Any]:
        content = (PosixDisk().open_read(f"{rig.store.replica_directory}/quorum-state")).read_at(0, 1000)
        seen_at_report.append(content.count(b'"leaderEpoch":4'))
        return []

    rig.node.replies[events.QuorumStatePersisted] = on_persisted
    rig.driver.submit(events.ShutdownRequested())
    await rig.node.until(lambda: events.QuorumStatePersisted(token=9) in rig.node.seen)
    assert seen_at_report == [1]


async def test_a_read_comes_back_in_the_same_step(rig: Rig) -> None:
    rig.node.replies[events.ShutdownRequested] = lambda _: [
        append(0),
        append(1),
        events.ReadLog(from_offset=1, to_offset=2, max_bytes=100),
    ]
    rig.driver.submit(events.ShutdownRequested())
    await rig.node.until(lambda: len(rig.node.seen) >= 2)
    assert rig.node.seen[1] == events.LogRead(from_offset=1, batches=Batches.parse(batch(1)))
    assert rig.driver.statistics.steps == 1
    await rig.node.until(lambda: events.LogSynced(end_offset=2) in rig.node.seen)
    assert rig.driver.statistics.steps == 2  # none that finds nothing


async def test_a_full_inbox_refuses_requests_and_never_answers(rig: Rig) -> None:
    accepted = [rig.driver.submit(events.ShutdownRequested()) for _ in range(12)]
    assert accepted == [True] * 10 + [False] * 2
    request = events.RaftRequestArrived(key=1, request=None)  # type: ignore[arg-type]
    assert not rig.driver.take_transport_event(request)
    failed = events.RaftRequestFailed(target=2, correlation_id=1, reason="gone")
    assert rig.driver.take_transport_event(failed)
    await rig.node.until(lambda: failed in rig.node.seen)
    assert request not in rig.node.seen and rig.driver.statistics.refused == 3


async def test_after_its_end_a_driver_takes_nothing(rig: Rig) -> None:
    rig.driver.end("enough", failed=False)
    rig.driver.end("too late", failed=True)
    failed = events.RaftRequestFailed(target=2, correlation_id=1, reason="gone")
    assert rig.driver.take_transport_event(failed), "its sender has no other use for it"
    assert not rig.driver.take_transport_event(events.RaftRequestArrived(key=1, request=None))  # type: ignore[arg-type]
    assert rig.driver.waiting == 0
    assert await rig.driver.wait() == Ending(reason="enough", failed=False)


async def test_under_load_a_step_gathers_what_arrives(rig: Rig) -> None:
    rig.waiting = 100
    rig.driver.submit(events.ShutdownRequested())
    for _ in range(5):
        await asyncio.sleep(0)
        rig.driver.submit(events.ShutdownRequested())
    await asyncio.sleep(0.01)
    assert rig.node.seen == []  # the clock stands still: it is too early
    rig.clock.now_ms += 2
    await asyncio.sleep(0.01)
    rig.clock.now_ms += 2
    await rig.node.until(lambda: len(rig.node.seen) == 6)
    assert rig.driver.statistics.steps == 1


async def test_the_timer_ticks_at_the_deadline_with_a_drained_inbox(rig: Rig) -> None:
    def later(_: Any) -> list[Any]:
        rig.node.deadline_ms = rig.clock.now_ms + 5
        return []

    rig.node.replies[events.ShutdownRequested] = later
    rig.driver.submit(events.ShutdownRequested())
    await rig.node.until(lambda: len(rig.node.seen) == 1)
    assert rig.node.ticks == []
    rig.clock.now_ms += 5
    await rig.node.until(lambda: bool(rig.node.ticks))
    assert rig.node.ticks == [True]


async def test_after_a_pause_a_node_knows_of_the_gap_before_it_ticks(rig: Rig) -> None:
    def later(_: Any) -> list[Any]:
        rig.node.deadline_ms = rig.clock.now_ms + 1
        return []

    rig.node.replies[events.ShutdownRequested] = later
    rig.driver.submit(events.ShutdownRequested())
    await rig.node.until(lambda: len(rig.node.seen) == 1)
    rig.clock.now_ms += 1_000
    await rig.node.until(lambda: bool(rig.node.ticks))
    assert rig.node.ticks == [False]
    assert rig.node.gaps_until_ms == [rig.clock.now_ms + 250]
    assert rig.driver.statistics.gaps == 1 and rig.driver.statistics.longest_gap_ms >= 900


async def test_stop_is_the_end_and_its_reason_the_last_line(rig: Rig) -> None:
    rig.node.replies[events.ShutdownRequested] = lambda _: [
        events.Stop(reason="stopped on request", failed=False)
    ]
    rig.driver.submit(events.ShutdownRequested())
    rig.driver.submit(events.ShutdownRequested())
    ending = await asyncio.wait_for(rig.driver.wait(), 60)
    assert (ending.reason, ending.failed) == ("stopped on request", False)
    assert len(rig.node.seen) == 1
    assert not rig.driver.submit(events.ShutdownRequested())


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (DiskError("/data", "append", "No space left on device"), "repair the disk, then start again"),
        (CommittedLostError("committed records were lost"), "stopped: committed records were lost"),
        (CorruptLogError("/data/0.log", 7, 1, "a checksum", "restore it"), "stopped: /data/0.log is damaged"),
        (InvariantViolation("two leaders in one epoch"), "stopped by a bug, to limit the damage"),
        (KeyError("x"), "stopped by a bug: KeyError"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_error_in_the_node_stops_the_process(
    rig: Rig, error: Exception, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> list[Any]:
        raise error

    rig.node.replies[events.ShutdownRequested] = fail
    rig.driver.submit(events.ShutdownRequested())
    ending = await asyncio.wait_for(rig.driver.wait(), 60)
    assert ending.failed and line in ending.reason and "\n" not in ending.reason
    traced = [each.getMessage() for each in caplog.records if each.exc_info]
    expected = {
        InvariantViolation: ["an invariant was violated"],
        KeyError: ["unexpected error"],
    }
    assert traced == expected.get(type(error), [])
    assert rig.watch.load_errors == (type(error) is CorruptLogError)
    assert rig.watch.apply_errors == (type(error) is InvariantViolation)


async def test_a_part_that_asked_for_its_effects_gets_them_and_a_trim_is_answered(rig: Rig) -> None:
    got: list[str] = []
    rig.driver.hand_over({str: got.append})
    rig.node.replies[events.ShutdownRequested] = lambda _: ["of a role", events.TrimLog(before_offset=0)]
    rig.driver.submit(events.ShutdownRequested())
    await rig.node.until(lambda: events.LogTrimmed(log_start_offset=0) in rig.node.seen)
    assert got == ["of a role"]


async def test_an_effect_that_no_part_carries_out_ends_the_process(rig: Rig) -> None:
    rig.node.replies[events.ShutdownRequested] = lambda _: [3.5, append(0)]
    rig.driver.submit(events.ShutdownRequested())
    ending = await asyncio.wait_for(rig.driver.wait(), 10)
    assert ending.failed and "no part of this process carries out float" in ending.reason
    assert rig.store.read_log(0, 1, 100).data == b"", "nothing after it was done"


@pytest.mark.parametrize(
    ("due_ms", "wake_ms", "later_s"),
    [
        (None, None, []),
        (1_000, None, [0]),
        (3_500, None, [2.5]),
        (3_500, 3_500, []),
        (3_500, 3_499, []),
        (3_500, 3_501, [2.5]),
        (1_001, None, [0.001]),
    ],
)
def test_a_wake_up_is_planned_unless_an_earlier_one_is(
    due_ms: int | None, wake_ms: int | None, later_s: list[float]
) -> None:
    """At 1,000 ms. 0: in the next turn of the loop."""
    planned: list[float] = []
    cancelled: list[str] = []
    earlier = SimpleNamespace(cancel=lambda: cancelled.append("cancelled"))
    it: Any = SimpleNamespace(
        _scheduler=SimpleNamespace(due_ms=due_ms, now_ms=1_000),
        _soon=None,
        _ended=SimpleNamespace(done=lambda: False),
        _wake=None if wake_ms is None else earlier,
        _wake_ms=wake_ms,
        _clock=SimpleNamespace(monotonic_ms=lambda: 1_000),
        _loop=SimpleNamespace(
            call_soon=lambda work: planned.append(0), call_later=lambda later_s, work: planned.append(later_s)
        ),
        _step=None,
        _look=None,
    )
    Driver._plan(it)
    assert planned == later_s
    assert cancelled == (["cancelled"] if wake_ms == 3_501 else [])


# Work that waits for the end of a step is done there, once.


class Gathered:
    """Work that notes whether a step was still on when it was done."""

    def __init__(self, end: StepEnd) -> None:
        self.done: list[bool] = []
        self._end = end

    def flush(self) -> None:
        self.done.append(self._end.gathers)


def test_work_is_done_once_at_the_end_of_its_step() -> None:
    end = StepEnd()
    one, other = Gathered(end), Gathered(end)
    end.begin()
    assert end.gathers
    end.add(one)
    assert one.done == []
    end.flush()
    assert one.done == [False], "what it does is of no step"
    end.begin()
    end.add(other)
    end.flush()
    assert one.done == other.done == [False]


class Grows(Gathered):
    """Work that leaves some for the next step."""

    def flush(self) -> None:
        super().flush()
        self._end.add(self)


def test_work_that_is_added_by_other_work_waits_for_the_next_end() -> None:
    end = StepEnd()
    grows = Grows(end)
    end.add(grows)
    for steps in range(1, 4):
        end.begin()
        end.flush()
        assert len(grows.done) == steps
