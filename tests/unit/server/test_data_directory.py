"""The threads of a log directory: order, group commit, reads beside writes, failure told once, hangs left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from metaquorum.broker.replica import disk_work
from metaquorum.broker.replica.events import DataEvent
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.broker.server.data import directory
from metaquorum.broker.server.data.cleaners import CleanerProcesses
from metaquorum.broker.server.data.directory import DirectoryThreads
from metaquorum.clock import SystemClock
from metaquorum.node.scheduler import StepEnd
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.errors import DiskError

DIRECTORY = b"d" * 16
KEY = (b"t" * 16, 0)


def one_batch(offset: int) -> Batches:
    return Batches.sealed(encode_batch(base_offset=offset, leader_epoch=1, timestamp_ms=0, values=[b""]))


def append(end_offset: int, *, sync: bool = True) -> disk_work.AppendPartition:
    return disk_work.AppendPartition(
        directory_id=DIRECTORY, key=KEY, incarnation=1, batches=one_batch(end_offset - 1), sync=sync
    )


def read(token: int) -> disk_work.ReadPartition:
    return disk_work.ReadPartition(
        token=token, directory_id=DIRECTORY, key=KEY, incarnation=1, from_offset=0, to_offset=1, max_bytes=1
    )


CHECKPOINT = disk_work.CheckpointHighWatermarks(directory_id=DIRECTORY, high_watermarks=())


class ScriptedSync:
    def __init__(self, store: ScriptedStore, end_offset: int, *, is_checkpoint: bool = False) -> None:
        self.store = store
        self.end_offset = end_offset
        self.is_checkpoint = is_checkpoint

    def split(self) -> tuple[ScriptedSync, ScriptedSync]:
        return self, ScriptedSync(self.store, self.end_offset, is_checkpoint=True)

    def run(self) -> None:
        if self.is_checkpoint:
            self.store.checkpoint_gate()
            return
        self.store.syncs.append(self.end_offset)
        self.store.sync_gate(self.end_offset)


class ScriptedStore:
    """Appends in memory. `gate` and `sync_gate` run on the io and sync threads and may block or raise."""

    directory_id = DIRECTORY
    path = "/d"

    def __init__(self) -> None:
        self.end_offset = self.synced = self.checkpoints = 0
        self.ends: list[int] = []
        self.syncs: list[int] = []
        self.closed: list[str] = []
        self.gate: Callable[[disk_work.DiskWork], None] = lambda work: None
        self.sync_gate: Callable[[int], None] = lambda end: None
        self.checkpoint_gate: Callable[[], None] = lambda: None
        self.checkpoint_due = False

    def execute(self, work: disk_work.DiskWork) -> list[DataEvent]:
        assert isinstance(work, disk_work.ReadPartition)
        return [disk_work.PartitionRead(token=work.token, data=b"x")]

    def execute_all(self, works: list[disk_work.DiskWork]) -> list[DataEvent]:
        events: list[DataEvent] = []
        for work in works:
            self.gate(work)
            if isinstance(work, disk_work.AppendPartition):
                self.end_offset = work.batches.next_offset
                self.ends.append(self.end_offset)
                events.append(
                    disk_work.LogAppended(
                        directory_id=DIRECTORY,
                        key=KEY,
                        incarnation=work.incarnation,
                        end_offset=self.end_offset,
                        size_bytes=0,
                    )
                )
        return events

    def prepare_sync(self, *, checkpoint: bool = False) -> ScriptedSync | None:
        self.checkpoint_due = self.checkpoint_due and not checkpoint
        if checkpoint:
            return ScriptedSync(self, self.end_offset)
        return ScriptedSync(self, self.end_offset) if self.end_offset > self.synced else None

    def sync_completed(self, sync: ScriptedSync) -> disk_work.LogsSynced:
        if sync.is_checkpoint:
            self.checkpoints += 1
            return disk_work.LogsSynced(directory_id=DIRECTORY, ends=())
        self.synced = sync.end_offset
        return disk_work.LogsSynced(directory_id=DIRECTORY, ends=((KEY, 1, sync.end_offset, 0),))

    def measure(self) -> disk_work.DirectoryMeasured:
        return disk_work.DirectoryMeasured(directory_id=DIRECTORY, total_bytes=2, usable_bytes=1)

    def tick(self, now_ms: int) -> bool:
        return False

    def abandon(self) -> None:
        self.closed.append("abandoned")

    def close(self, *, clean: bool) -> None:
        self.closed.append("clean" if clean else "unclean")


class Bench:
    """Threads around a scripted store, and what they reported."""

    def __init__(self) -> None:
        self.store = ScriptedStore()
        self.events: list[DataEvent] = []
        self.crashes: list[str] = []
        self._changed = asyncio.Event()
        self.step_end = StepEnd()
        self.threads = DirectoryThreads(
            cast(DirectoryStore, self.store),
            self._report,
            self._crash,
            asyncio.get_running_loop(),
            CleanerProcesses(0, 1),
            self.step_end,
            SystemClock(),
        )
        self.threads.start()

    def _report(self, event: DataEvent) -> None:
        if not isinstance(event, disk_work.DirectoryMeasured):
            self.events.append(event)
            self._changed.set()

    def _crash(self, reason: str) -> None:
        self.crashes.append(reason)
        self._changed.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not reached():
                self._changed.clear()
                await self._changed.wait()

    def failed(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], disk_work.DirectoryFailed)

    def synced(self) -> list[int]:
        return [each.ends[0][2] for each in self.events if isinstance(each, disk_work.LogsSynced)]

    def appended(self) -> list[int]:
        return [each.end_offset for each in self.events if isinstance(each, disk_work.LogAppended)]


def run(test: Callable[[Bench], Any]) -> None:
    async def main() -> None:
        await test(Bench())

    asyncio.run(main())


def test_appends_are_reported_in_order_and_synced() -> None:
    async def test(bench: Bench) -> None:
        for end in (1, 2, 3):
            bench.threads.submit(append(end))
        await bench.until(lambda: bench.synced()[-1:] == [3])
        assert bench.appended() == sorted(set(bench.appended())) and bench.appended()[-1] == 3
        assert await bench.threads.close(clean=True)
        assert bench.store.closed == ["clean"]

    run(test)


def test_a_short_sync_is_reported_with_what_it_covers() -> None:
    async def test(bench: Bench) -> None:
        bench.threads._sync_s = 0.0
        bench.threads.submit(append(1))
        await bench.until(lambda: bool(bench.events))
        assert (bench.synced(), bench.appended()) == ([1], [])
        bench.threads.submit(append(2, sync=False))
        await bench.until(lambda: bench.appended() == [2])
        assert await bench.threads.close(clean=True)

    run(test)


def test_everything_that_comes_during_a_sync_shares_the_next_one() -> None:
    async def test(bench: Bench) -> None:
        first, go_on = threading.Event(), threading.Event()

        def gate(end: int) -> None:
            if end == 1:
                first.set()
                assert go_on.wait(20)

        bench.store.sync_gate = gate
        bench.threads.submit(append(1))
        await bench.until(lambda: bench.appended() == [1])
        assert first.wait(20)
        for end in range(2, 12):
            bench.threads.submit(append(end))
        await bench.until(lambda: bench.appended()[-1] == 11)
        assert bench.synced() == []
        go_on.set()
        await bench.until(lambda: bench.synced() == [1, 11])
        assert bench.store.syncs == [1, 11]
        await bench.threads.close(clean=True)

    run(test)


def test_no_ack_waits_for_the_files_of_a_checkpoint_and_the_end_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "TICK_MS", 10)

    async def test(bench: Bench) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def gate() -> None:
            begun.set()
            assert go_on.wait(20)

        bench.store.checkpoint_gate = gate
        bench.threads.submit(append(1))
        await bench.until(lambda: bench.synced() == [1])
        bench.store.checkpoint_due = True
        assert await asyncio.to_thread(begun.wait, 20)
        bench.threads.submit(append(2))
        await bench.until(lambda: bench.synced()[-1] == 2)
        ending = asyncio.ensure_future(bench.threads.close(clean=True))
        assert not (await asyncio.wait([ending], timeout=0.05))[0]
        assert bench.store.closed == [] and bench.store.checkpoints == 0
        go_on.set()
        assert await ending
        assert (bench.store.closed, bench.store.checkpoints) == (["clean"], 1)

    run(test)


def test_a_checkpoint_that_fails_makes_the_directory_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "TICK_MS", 10)

    async def test(bench: Bench) -> None:
        def refuse(*of: int) -> None:
            raise DiskError("/d", "sync", "the device reports an I/O error")

        bench.store.checkpoint_gate = refuse
        bench.store.checkpoint_due = True
        await bench.until(bench.failed)
        assert not await bench.threads.close(clean=True)
        assert (bench.store.closed, bench.store.checkpoints) == (["unclean"], 0)

    run(test)


def test_a_checkpoint_whose_logs_cannot_be_synced_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "TICK_MS", 10)

    async def test(bench: Bench) -> None:
        written: list[None] = []

        def refuse(end: int) -> None:
            raise DiskError("/d", "sync", "the device reports an I/O error")

        bench.store.sync_gate = refuse
        bench.store.checkpoint_gate = lambda: written.append(None)
        bench.store.checkpoint_due = True
        await bench.until(bench.failed)
        assert not await bench.threads.close(clean=True)
        assert (bench.store.closed, written) == (["unclean"], [])

    run(test)


def test_what_a_step_brings_is_done_when_it_has_ended_in_order() -> None:
    async def test(bench: Bench) -> None:
        bench.step_end.begin()
        for end in (1, 2, 3):
            bench.threads.submit(append(end, sync=False))
        assert bench.threads._work.empty() and bench.store.end_offset == 0
        bench.step_end.flush()
        bench.threads.submit(append(4, sync=False))
        await bench.until(lambda: bench.appended()[-1:] == [4])
        bench.step_end.begin()
        bench.threads.submit(append(5, sync=False))
        assert await bench.threads.close(clean=True)
        assert bench.store.end_offset == 5

    run(test)


def test_appends_of_one_round_are_reported_once_for_each_log() -> None:
    async def test(bench: Bench) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def hold(work: disk_work.DiskWork) -> None:
            begun.set()
            assert go_on.wait(20)

        bench.store.gate = hold
        bench.threads.submit(CHECKPOINT)
        assert await asyncio.to_thread(begun.wait, 20)
        for end in (1, 2, 3):
            bench.threads.submit(append(end, sync=False))
        for end in (4, 5):
            bench.threads.submit(msgspec.structs.replace(append(end, sync=False), incarnation=2))
        go_on.set()
        await bench.until(lambda: bench.appended()[-1:] == [5])
        assert [
            (each.incarnation, each.end_offset)
            for each in bench.events
            if isinstance(each, disk_work.LogAppended)
        ] == [
            (1, 3),
            (2, 5),
        ]
        assert await bench.threads.close(clean=True)

    run(test)


def test_without_sync_nothing_is_synced_before_the_end() -> None:
    async def test(bench: Bench) -> None:
        bench.threads.submit(append(1, sync=False))
        await bench.until(lambda: bench.appended() == [1])
        await bench.threads.close(clean=True)
        assert bench.store.syncs == []

    run(test)


def test_reads_do_not_wait_for_writes_or_syncs() -> None:
    async def test(bench: Bench) -> None:
        go_on = threading.Event()
        bench.store.gate = lambda work: cast(None, go_on.wait(20))
        bench.threads.submit(append(1))
        bench.threads.submit(read(7))
        await bench.until(lambda: disk_work.PartitionRead(token=7, data=b"x") in bench.events)
        assert bench.appended() == []
        go_on.set()
        await bench.until(lambda: bench.synced() == [1])
        await bench.threads.close(clean=True)

    run(test)


def test_a_write_that_fails_is_told_once_and_ends_all_work() -> None:
    async def test(bench: Bench) -> None:
        def gate(work: disk_work.DiskWork) -> None:
            if isinstance(work, disk_work.AppendPartition) and work == append(2):
                raise DiskError("/d", "write of log", "the device reports an I/O error")

        bench.store.gate = gate
        for end in (1, 2, 3):
            bench.threads.submit(append(end))
        await bench.until(bench.failed)
        failure = bench.events[-1]
        assert isinstance(failure, disk_work.DirectoryFailed)
        assert "I/O error" in failure.reason
        assert "\n" not in failure.reason
        bench.threads.submit(append(4))
        bench.threads.submit(disk_work.AbandonDirectory(directory_id=DIRECTORY))
        bench.threads.fail("again")
        assert not await bench.threads.close(clean=True)
        assert bench.store.closed == ["abandoned", "unclean"]
        assert [each for each in bench.events if isinstance(each, disk_work.DirectoryFailed)] == [failure]
        assert 3 not in bench.appended()
        assert 4 not in bench.appended()

    run(test)


def test_a_sync_that_fails_acknowledges_nothing() -> None:
    async def test(bench: Bench) -> None:
        def gate(end: int) -> None:
            raise DiskError("/d", "sync", "the device reports an I/O error")

        bench.store.sync_gate = gate
        bench.threads.submit(append(1))
        await bench.until(bench.failed)
        assert not await bench.threads.close(clean=True)
        assert bench.synced() == []
        assert bench.store.syncs == [1]

    run(test)


def test_a_read_that_fails_makes_the_directory_bad() -> None:
    async def test(bench: Bench) -> None:
        def refuse(work: disk_work.DiskWork) -> list[DataEvent]:
            raise DiskError("/d", "read", "the device reports an I/O error")

        bench.store.execute = refuse  # type: ignore[method-assign]
        bench.threads.submit(read(1))
        await bench.until(lambda: len(bench.events) == 1)
        assert isinstance(bench.events[0], disk_work.DirectoryFailed)
        assert not await bench.threads.close(clean=True)

    run(test)


def test_an_error_that_is_not_the_disks_ends_the_process() -> None:
    async def test(bench: Bench) -> None:
        def gate(work: disk_work.DiskWork) -> None:
            raise KeyError("nobody expected this")

        bench.store.gate = gate
        bench.threads.submit(append(1))
        await bench.until(lambda: bool(bench.crashes))
        assert "KeyError" in bench.crashes[0]
        assert bench.events == []
        await bench.threads.close(clean=True)

    run(test)


def test_a_directory_that_was_given_up_does_no_more_work() -> None:
    """An operator's word (S3.39): nothing failed, and still nothing more is done."""

    async def test(bench: Bench) -> None:
        bench.threads.submit(disk_work.AbandonDirectory(directory_id=DIRECTORY))
        bench.threads.submit(append(1))
        assert not await bench.threads.close(clean=True)
        assert bench.events == []
        assert bench.store.closed == ["abandoned", "unclean"]

    run(test)


def test_nothing_piles_up_for_a_directory_that_hangs() -> None:
    """Its io thread never comes back to throw anything away."""

    async def test(bench: Bench) -> None:
        begun, release = threading.Event(), threading.Event()

        def hang(work: disk_work.DiskWork) -> None:
            begun.set()
            release.wait()

        bench.store.gate = hang
        bench.threads.submit(append(1))
        await asyncio.to_thread(begun.wait)
        bench.threads.fail("it hangs")
        for end in range(2, 100):
            bench.threads.submit(append(end))
            bench.threads.submit(read(end))
        assert bench.threads._work.qsize() + bench.threads._reads.qsize() == 0
        release.set()
        assert not await bench.threads.close(clean=True)
        assert bench.store.end_offset == 1 and bench.failed()
        assert not any(isinstance(each, disk_work.PartitionRead) for each in bench.events)

    run(test)


def test_much_work_at_once_is_told_once_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A hundred thousand new replicas bring more work than any disk does in a moment; none of it is lost."""
    monkeypatch.setattr(directory, "WORK_WARN", 10)

    def hold(begun: threading.Event, release: threading.Event, work: disk_work.DiskWork) -> None:
        begun.set()
        assert release.wait(60)

    async def test(bench: Bench) -> None:
        for burst in range(2):
            first, begun, release = 100 * burst + 1, threading.Event(), threading.Event()
            bench.store.gate = partial(hold, begun, release)
            bench.threads.submit(append(first))
            await asyncio.to_thread(begun.wait)
            for end in range(first + 1, first + 40):
                bench.threads.submit(append(end))
            release.set()
            await bench.until(lambda last=first + 39: bench.synced()[-1:] == [last])  # type: ignore[misc]
            bench.threads.submit(append(first + 40))
            assert len(caplog.messages) == burst + 1
        await bench.until(lambda: bench.synced()[-1:] == [141])
        assert bench.store.ends == [*range(1, 42), *range(101, 142)]
        assert not bench.failed() and await bench.threads.close(clean=True)

    run(test)
    assert caplog.messages[0] == "log directory /d is behind: 11 operations are waiting for it"


def test_a_hung_sync_does_not_hold_up_the_end_of_a_bad_directory() -> None:
    async def test(bench: Bench) -> None:
        go_on, hangs = threading.Event(), threading.Event()

        def gate(end: int) -> None:
            hangs.set()
            assert go_on.wait(60)

        bench.store.sync_gate = gate
        bench.threads.submit(append(1))
        await bench.until(lambda: bench.appended() == [1])
        assert hangs.wait(20)
        bench.threads.fail("it hangs")
        try:
            assert not await bench.threads.close(clean=True)
        finally:
            go_on.set()
        assert [type(each) for each in bench.events] == [disk_work.LogAppended, disk_work.DirectoryFailed]

    run(test)


def test_high_watermarks_are_written_before_the_end() -> None:
    async def test(bench: Bench) -> None:
        done: list[disk_work.DiskWork] = []
        bench.store.gate = done.append
        bench.threads.submit(CHECKPOINT)
        assert await bench.threads.close(clean=True)
        assert done == [CHECKPOINT]

    run(test)


def written(end_offset: int, *, index: int = 0, incarnation: int = 1) -> disk_work.LogAppended:
    key = (KEY[0], index)
    return disk_work.LogAppended(
        directory_id=DIRECTORY, key=key, incarnation=incarnation, end_offset=end_offset, size_bytes=0
    )


def durable(*ends: tuple[int, int, int]) -> disk_work.LogsSynced:
    """Each: partition, incarnation, and end."""
    found = tuple(((KEY[0], index), incarnation, end, 0) for index, incarnation, end in ends)
    return disk_work.LogsSynced(directory_id=DIRECTORY, ends=found)


@pytest.mark.parametrize(
    ("synced", "left"),
    [
        (durable(), [written(5), written(7), written(3, index=1)]),
        (durable((0, 1, 5)), [written(7), written(3, index=1)]),
        (durable((0, 1, 6), (1, 1, 3)), [written(7)]),
        (durable((0, 1, 7), (1, 1, 2)), [written(3, index=1)]),
        (durable((0, 2, 9)), [written(5), written(7), written(3, index=1)]),
        (durable((0, 1, 9), (1, 1, 9)), []),
    ],
)
def test_an_append_that_a_sync_covers_is_not_reported_beside_it(
    synced: disk_work.LogsSynced, left: list[disk_work.LogAppended]
) -> None:
    """And nothing but appends is left out."""
    measured = disk_work.DirectoryFailed(directory_id=DIRECTORY, reason="x")
    events: list[DataEvent] = [written(5), measured, written(7), written(3, index=1)]
    found = directory._unreported_by(synced, events)
    assert [each for each in found if each is not measured] == left
    assert found.count(measured) == 1


def test_only_the_last_append_of_a_log_is_reported_in_its_place() -> None:
    other, again = disk_work.DirectoryFailed(directory_id=DIRECTORY, reason="x"), written(2, incarnation=2)
    events: list[DataEvent] = [written(5), written(3, index=1), other, again, written(7), other]
    assert directory._newest(events) == [written(3, index=1), other, again, written(7), other]


def test_threads_are_named_after_their_directory() -> None:
    async def names(bench: Bench) -> None:
        running = {each.name for each in threading.enumerate() if each.daemon}
        assert {f"{kind} {bench.threads.path}" for kind in ("io", "sync", "read")} <= running

    run(names)


def test_a_bug_in_a_directory_that_is_already_bad_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    async def tells(bench: Bench) -> None:
        bench.threads._report_failure(KeyError("x"))
        bench.threads._report_failure(DiskError("/d", "write", "broken"))
        assert [each.getMessage() for each in caplog.records if "unexpected error" in each.message] == [
            f"unexpected error in {bench.threads.path}"
        ]
        caplog.clear()
        bench.threads.is_bad = True
        bench.threads._report_failure(KeyError("x"))
        assert "unexpected error" not in caplog.text

    run(tells)


@pytest.mark.parametrize(
    ("elapsed_ms", "changes", "begins"),
    [
        (59_900, {}, False),
        (60_000, {}, True),
        (0, {"due": True}, True),
        (60_000, {"_sync_running": True}, False),
        (60_000, {"_checkpoint_running": True}, False),
    ],
)
def test_a_checkpoint_begins_when_it_is_due_and_no_sync_runs(
    elapsed_ms: int, changes: dict[str, bool], begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        store, now_ms = ScriptedStore(), 1_000_000
        clock: Any = SimpleNamespace(monotonic_ms=lambda: now_ms)
        threads = DirectoryThreads(
            cast(DirectoryStore, store),
            lambda event: None,
            lambda reason: None,
            asyncio.get_running_loop(),
            CleanerProcesses(0, 1),
            StepEnd(),
            clock,
        )
        store.checkpoint_due = changes.get("due", False)
        for name in set(changes) - {"due"}:
            setattr(threads, name, True)
        started: list[int] = []
        monkeypatch.setattr(threads, "_start_checkpoint", lambda: started.append(threads._checkpointed_ms))
        now_ms += elapsed_ms
        threads._tick()
        assert started == ([now_ms] if begins else [])

    asyncio.run(test())


@pytest.mark.parametrize("error", [KeyError("x"), DiskError("/d", "write", "broken")])
def test_after_an_error_the_store_gets_no_more_work(error: Exception) -> None:
    """Work that was already waiting behind it included."""

    async def test(bench: Bench) -> None:
        executed: list[int] = []

        def execute_all(works: list[disk_work.DiskWork]) -> list[DataEvent]:
            executed.append(len(works))
            bench.threads._work.put(append(2))
            raise error

        bench.store.execute_all = execute_all  # type: ignore[method-assign]
        bench.threads.submit(append(1))
        await bench.until(lambda: bool(bench.crashes) or bench.failed())
        assert not await bench.threads.close(clean=True)
        assert executed == [1]
        assert bench.store.closed == ["unclean"]

    run(test)


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_bad_directory_costs_no_processor_time(gives_up: bool) -> None:
    """Whether it failed or was given up: its threads wait until they are closed."""

    async def test(bench: Bench) -> None:
        def fail(end: int) -> None:
            raise DiskError("/d", "sync", "the device reports an I/O error")

        if gives_up:
            bench.threads.submit(disk_work.AbandonDirectory(directory_id=DIRECTORY))
            await bench.threads.settle()
        else:
            bench.store.sync_gate = fail
            bench.threads.submit(append(1))
            await bench.until(bench.failed)
        rounds: list[int] = []
        do = bench.threads._do
        bench.threads._do = lambda items: rounds.append(len(items)) or do(items)  # type: ignore[method-assign, func-returns-value]
        await asyncio.sleep(5 * directory.TICK_MS / 1000)
        assert len(rounds) <= 2
        assert not await bench.threads.close(clean=True)

    run(test)
