"""Logs are compacted by another process: what it leaves, and what remains of a pass whose process or broker
ends."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from msgspec.structs import replace

from metaquorum.broker.server.data import cleaner_process, cleaners
from metaquorum.broker.server.data.cleaner_process import Begin, BugError, Passes
from metaquorum.broker.server.data.cleaners import CleanerProcesses
from metaquorum.storage import errors
from metaquorum.storage.cleaner.cleaning import Cleaning, CleaningEndedError, segment_facts
from metaquorum.storage.cleaner.plan import plan_cleaning
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.testing.memory_disk import MemoryDisk
from tests.unit.storage.cleaner_bench import CONFIG, SETTINGS, Writer, check, settle

WAIT_S = 30.0
FAST = 1e12
SLOW = 1.0
"""Bytes per second: a pass that never ends."""


def opened(place: Path, disk: Disk | None = None) -> PartitionLog:
    disk = disk or PosixDisk()
    return PartitionLog.load(disk, str(place), CONFIG, FilePool(disk, 4), disk.file_system(str(place.parent)))


def written(place: Path, seed: int) -> tuple[Writer, Cleaning]:
    """A log on the real disk, and a pass over all of it."""
    place.mkdir()
    writer = Writer(opened(place), random.Random(seed))
    writer.write(60)
    settle(writer.log)
    return writer, begun(writer.log, writer.now_ms)


def begun(log: PartitionLog, now_ms: int) -> Cleaning:
    stable = log.end_offset if log.producers.open_from is None else log.producers.open_from
    plan = plan_cleaning(
        segment_facts(log), first_dirty=0, stable_to=stable, settings=SETTINGS, now_ms=now_ms
    )
    assert plan is not None
    return Cleaning(log, plan, SETTINGS, now_ms=now_ms, key_bytes=1 << 20)


def files(place: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in place.iterdir()}


class Cleaners:
    """The processes of a broker, asked for one step at a time."""

    def __init__(self, count: int = 1, bytes_per_second: float = FAST, disk: Disk | None = None) -> None:
        self.processes = CleanerProcesses(count, bytes_per_second, disk)
        self.processes.start()
        self.reports: SimpleQueue[tuple[Cleaning, Exception | None]] = SimpleQueue()

    def step(self, cleaning: Cleaning) -> None:
        """Until something is staged, or to the end. Raises what ended the pass."""
        self.processes.submit(cleaning, lambda *report: self.reports.put(report))
        reported, error = self.reports.get(timeout=WAIT_S)
        assert reported is cleaning
        if error is not None:
            raise cleaning.explained(error)

    def finish(self, cleaning: Cleaning) -> None:
        while cleaning.result is None:
            self.step(cleaning)
            if cleaning.staged is not None:
                cleaning.swap()
        self.processes.forget(cleaning)

    @property
    def pids(self) -> list[int]:
        running = [each._process for each in self.processes._cleaners]
        return [each.pid for each in running if each is not None]


@pytest.fixture
def one() -> Iterator[Cleaners]:
    made = Cleaners()
    yield made
    made.processes.stop()


def wait_for_the_end(pid: int) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while Path(f"/proc/{pid}").exists() and "(zombie)" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline_s, f"process {pid} goes on"
        time.sleep(0.005)


def test_another_process_leaves_what_a_pass_of_this_one_leaves(tmp_path: Path, one: Cleaners) -> None:
    for seed in range(3):
        here, there = tmp_path / f"here{seed}", tmp_path / f"there{seed}"
        writer, cleaning = written(here, seed)
        writer.log.close()
        shutil.copytree(here, there)
        log = opened(here)
        cleaning = begun(log, writer.now_ms)
        while cleaning.result is None:
            for _ in cleaning.pieces():
                pass
            if cleaning.staged is not None:
                cleaning.swap()
        other = opened(there)
        done = begun(other, writer.now_ms)
        one.finish(done)
        assert done.result == cleaning.result
        assert files(there) == files(here)
        check(writer, other)
    assert len(one.pids) == 1


def test_a_broker_without_a_process_of_its_own_compacts_a_log_in_memory(tmp_path: Path) -> None:
    disk = MemoryDisk(random.Random(1), 1 << 30, lambda: time.time_ns() // 1_000_000)
    disk.make_directory("/d/t-0")
    writer = Writer(opened(Path("/d/t-0"), disk), random.Random(1))
    writer.write(60)
    settle(writer.log)
    cleaners = Cleaners(disk=disk)
    cleaning = begun(writer.log, writer.now_ms)
    cleaners.finish(cleaning)
    assert cleaning.result is not None
    check(writer, writer.log)
    assert cleaners.pids == []
    cleaners.processes.stop()


@pytest.mark.parametrize(("count", "rate"), [(1, 100.0), (4, 25.0)])
def test_the_processes_share_what_a_broker_may_read_and_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, rate: float
) -> None:
    begun: list[Begin] = []

    class Refusing(Passes):
        def begin(self, order: Begin) -> object:
            begun.append(order)
            return CleaningEndedError()

    monkeypatch.setattr(cleaners, "Passes", Refusing)
    asked = Cleaners(count, 100.0, PosixDisk())
    _, cleaning = written(tmp_path / "t-0", 1)
    with pytest.raises(CleaningEndedError):
        asked.step(cleaning)
    asked.processes.stop()
    assert [each.bytes_per_second for each in begun] == [rate]


def test_passes_of_several_directories_take_turns_in_one_process(tmp_path: Path, one: Cleaners) -> None:
    passes = [written(tmp_path / name, seed) for seed, name in enumerate("abc")]
    left = [cleaning for _, cleaning in passes]
    while left:
        for cleaning in list(left):
            one.step(cleaning)
            if cleaning.staged is not None:
                cleaning.swap()
            else:
                assert cleaning.result is not None
                left.remove(cleaning)
    for writer, _ in passes:
        check(writer, writer.log)
    assert len(one.pids) == 1


def test_each_process_takes_the_pass_that_finds_it_free(tmp_path: Path) -> None:
    both = Cleaners(2, SLOW)
    for seed, name in enumerate("ab"):
        _, cleaning = written(tmp_path / name, seed)
        both.processes.submit(cleaning, lambda *report: both.reports.put(report))
    deadline_s = time.monotonic() + WAIT_S
    while len(both.pids) < 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    both.processes.stop()
    assert both.reports.empty()  # a broker that ends hears of no pass any more


def test_a_pass_whose_process_is_killed_is_over_and_a_new_one_is_whole(tmp_path: Path, one: Cleaners) -> None:
    writer, cleaning = written(tmp_path / "t-0", 1)
    one.step(cleaning)
    cleaning.swap()
    (pid,) = one.pids
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):  # what the process knew of the keys is lost for good
        with pytest.raises(CleaningEndedError):
            one.step(cleaning)
    one.processes.forget(cleaning)
    check(writer, writer.log)
    one.finish(begun(writer.log, writer.now_ms))
    assert pid not in one.pids
    check(writer, writer.log)
    assert not [name for name in files(tmp_path / "t-0") if ".cleaned" in name or ".swap" in name]


def test_a_log_that_was_cut_meanwhile_keeps_nothing_of_the_pass(tmp_path: Path, one: Cleaners) -> None:
    writer, cleaning = written(tmp_path / "t-0", 2)
    one.step(cleaning)
    writer.log.truncate_to(segment_facts(writer.log)[1].base_offset)
    with pytest.raises(CleaningEndedError):
        cleaning.swap()
    one.processes.forget(cleaning)
    assert not [name for name in files(tmp_path / "t-0") if ".cleaned" in name]


def test_segments_that_are_gone_end_a_pass_only_where_the_log_has_changed(
    tmp_path: Path, one: Cleaners
) -> None:
    writer, cleaning = written(tmp_path / "t-0", 3)
    _, other = written(tmp_path / "t-1", 3)
    writer.log.delete_segments_before(segment_facts(writer.log)[1].base_offset)
    with pytest.raises(CleaningEndedError):
        one.step(cleaning)
    next(each for each in sorted((tmp_path / "t-1").glob("*.log"))).unlink()
    with pytest.raises(errors.FileMissingError, match=r"t-1/0{20}\.log"):
        one.step(other)


def test_damage_is_reported_with_its_file_and_other_passes_go_on(tmp_path: Path, one: Cleaners) -> None:
    writer, cleaning = written(tmp_path / "t-0", 4)
    path = tmp_path / "t-0" / f"{segment_facts(writer.log)[1].base_offset:020d}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.CorruptLogError) as caught:
        for _ in range(9):
            one.step(cleaning)
            cleaning.swap()
    assert caught.value.file == str(path)
    one.processes.forget(cleaning)
    sound, other = written(tmp_path / "t-1", 4)
    one.finish(other)
    check(sound, sound.log)


def test_a_bug_comes_back_with_its_traceback(tmp_path: Path, one: Cleaners) -> None:
    _, cleaning = written(tmp_path / "t-0", 5)
    cleaning.task = replace(cleaning.task, segments=None)
    with pytest.raises(BugError, match=r"Traceback[\s\S]*TypeError"):
        one.step(cleaning)


def test_a_process_without_a_pass_ends_and_the_next_pass_starts_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: Cleaners
) -> None:
    monkeypatch.setattr(cleaners, "IDLE_S", 0.01)
    for seed, name in enumerate("ab"):
        writer, cleaning = written(tmp_path / name, seed)
        one.step(cleaning)
        (pid,) = one.pids
        cleaning.swap()
        one.finish(cleaning)
        wait_for_the_end(pid)
        check(writer, writer.log)


def test_stopping_ends_the_process_in_the_middle_of_a_pass(tmp_path: Path) -> None:
    slow = Cleaners(1, SLOW)
    _, cleaning = written(tmp_path / "t-0", 6)
    slow.processes.submit(cleaning, lambda *report: slow.reports.put(report))
    deadline_s = time.monotonic() + WAIT_S
    while not slow.pids:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    (pid,) = slow.pids
    slow.processes.stop()
    assert not slow.pids
    wait_for_the_end(pid)
    assert slow.reports.empty()


BROKER = """
import sys, time
from pathlib import Path
from tests.unit.server.test_cleaners import SLOW, Cleaners, written
_, cleaning = written(Path(sys.argv[1]), 7)
slow = Cleaners(1, SLOW)
slow.processes.submit(cleaning, print)
while not slow.pids:
    time.sleep(0.005)
print(slow.pids[0], flush=True)
time.sleep(600)
"""


def test_a_process_ends_with_its_broker_also_where_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BROKER, str(tmp_path / "t-0")]
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as broker:
        assert broker.stdout is not None
        pid = int(broker.stdout.readline())
        broker.kill()
    wait_for_the_end(pid)


def test_pieces_are_paced_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now_s, slept = 100.0, []  # type: ignore[var-annotated]

        def monotonic(self) -> float:
            return self.now_s

        def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            self.now_s += seconds

    clock, sizes = Clock(), [128, 0, 64, 8192]
    monkeypatch.setattr(cleaner_process, "time", clock)
    assert list(cleaner_process._paced((size for size in sizes), 1024.0)) == sizes
    assert clock.slept == [0.125, 0.0625, cleaner_process.PAUSE_MAX_S]


@pytest.mark.parametrize(
    "error",
    [
        errors.StorageError("a text"),
        errors.BatchError("a text"),
        errors.CorruptLogError("/d/t-0/0.log", 3, 4, "expected", "advice"),
        errors.CorruptFileError("/d/f", "reason", "advice"),
        errors.NotALogError("/d", "reason"),
        errors.DiskError("/d", "sync", "EIO"),
        errors.FileMissingError("/d/f"),
        errors.LogDirectoryLockedError("/d"),
        errors.OffsetOutOfRange(1, 2, 3),
        errors.LogTruncatedError("/d/f", 1, 2),
        errors.LogFailedError("/d"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_storage_go_to_another_process(error: errors.StorageError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
