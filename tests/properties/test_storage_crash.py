"""Whatever is done to a log and whenever power is lost: what was synced is there, and the log opens."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.disk.interface import join
from metaquorum.storage.errors import CorruptLogError
from metaquorum.storage.files.quorum_state import QuorumState, load_quorum_state, store_quorum_state
from metaquorum.storage.files.snapshots import SnapshotWriter, clean_abandoned, list_snapshots, snapshot_path
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import FaultProfile, PowerLossError
from tests.systems.plain_disk import PlainDisk
from tests.unit.storage.whole_log import whole

DIRECTORY = "/data/log-0"
CONFIG = LogConfig(segment_bytes=400, recovery_point_interval_bytes=150, index_interval_bytes=100)


@dataclass
class Model:
    """What the log must hold: batches by base offset, and the states that a crash may leave.

    `kept` is the end below which nothing may be lost. `resets` are positions at which an empty log may be
    found, because a reset to them was in progress.
    """

    batches: dict[int, bytes] = field(default_factory=dict)
    start: int = 0
    lowest_start: int = 0
    end: int = 0
    kept: int = 0
    epoch: int = 1
    reset: LogPosition | None = None


class Run:
    """A log, its model, and the steps that change both."""

    def __init__(
        self,
        seed: int,
        crash_after: int | None = None,
        profile: FaultProfile | None = None,
        disk: type[FaultyDisk] = FaultyDisk,
    ) -> None:
        self.rng = random.Random(seed)
        self.disk = disk(random.Random(seed), profile)
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.model = Model()
        self.warnings: list[str] = []
        self.disk.crash_after = crash_after
        self.log: SegmentedLog | None = None

    def opened(self) -> SegmentedLog:
        if self.log is None:
            self.log = SegmentedLog.open(self.disk, DIRECTORY, CONFIG, self.warnings.append)
        return self.log

    def append(self) -> None:
        log, model = self.opened(), self.model
        model.epoch += self.rng.random() < 0.2
        records = self.rng.randint(1, 3)
        values = [self.rng.randbytes(self.rng.randint(0, 40)) for _ in range(records)]
        data = encode_batch(base_offset=model.end, leader_epoch=model.epoch, timestamp_ms=5, values=values)
        model.batches[model.end] = data
        model.end += records
        log.append(Batches.parse(data))

    def sync(self) -> None:
        self.opened().sync()
        self.model.kept = self.model.end

    def truncate(self) -> None:
        log, model = self.opened(), self.model
        bases = [base for base in model.batches if base >= model.start] or [model.end]
        end = self.rng.choice([*bases, model.end])
        model.kept = min(model.kept, end)
        log.truncate_to(end)
        model.batches = {base: data for base, data in model.batches.items() if base < end}
        # A truncation of nothing syncs nothing either.
        model.kept = model.kept if end == model.end else end
        model.end = end
        model.epoch += 1

    def trim(self) -> None:
        log, model = self.opened(), self.model
        model.start = model.end
        log.delete_segments_before(self.rng.randint(model.lowest_start, max(model.kept, model.lowest_start)))
        model.start = model.lowest_start = log.start_offset

    def reset(self) -> None:
        log, model = self.opened(), self.model
        model.epoch += 1
        model.reset = LogPosition(model.epoch, model.end + self.rng.randint(-2 if model.end > 2 else 0, 50))
        log.reset_to(model.reset)
        self.become_empty()

    def become_empty(self) -> None:
        position = self.model.reset
        assert position is not None
        self.model = Model(
            start=position.offset,
            lowest_start=position.offset,
            end=position.offset,
            kept=position.offset,
            epoch=position.epoch,
        )

    def restart(self) -> None:
        self.opened().clean_close()
        self.log = None
        self.model.kept = self.model.end
        self.opened()

    def kill(self) -> None:
        self.disk = self.disk.kill()
        self.log = None
        self.opened()
        self.model.kept = self.model.end

    def power_loss(self) -> None:
        self.disk = self.disk.crash()
        self.log = None
        self.check_after_crash()

    def check_after_crash(self) -> None:
        """Opens and compares; then the model takes over the actual content."""
        log, model = self.opened(), self.model
        if model.reset is not None and log.end_offset == log.start_offset == model.reset.offset:
            assert log.last_position == model.reset
            self.become_empty()
            return
        found = {batch.header.base_offset: batch.data for batch in whole(log)}
        assert model.lowest_start <= log.start_offset <= max(model.start, model.lowest_start)
        assert log.end_offset >= model.kept
        assert log.synced_offset == log.end_offset
        expected = {
            base: data for base, data in model.batches.items() if log.start_offset <= base < log.end_offset
        }
        assert found == expected
        epochs = [(int.from_bytes(data[12:16], "big"), base) for base, data in sorted(found.items())]
        for epoch, base in epochs:
            assert log.epochs.epoch_at(base) == epoch
        if epochs:
            assert log.last_position.epoch == epochs[-1][0]
        model.batches = {base: data for base, data in model.batches.items() if base < log.end_offset}
        model.start = model.lowest_start = log.start_offset
        model.end = model.kept = log.end_offset
        model.reset = None

    def check(self) -> None:
        log, model = self.opened(), self.model
        assert (log.start_offset, log.end_offset) == (model.start, model.end)
        assert {one.header.base_offset: one.data for one in whole(log)} == {
            base: data for base, data in model.batches.items() if base >= model.start
        }


STEPS: dict[str, Callable[[Run], None]] = {
    "append": Run.append,
    "sync": Run.sync,
    "truncate": Run.truncate,
    "trim": Run.trim,
    "reset": Run.reset,
    "restart": Run.restart,
    "kill": Run.kill,
    "power_loss": Run.power_loss,
}
WEIGHTED = ["append"] * 6 + ["sync"] * 3 + ["power_loss"] * 2 + list(STEPS)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(WEIGHTED), max_size=40))
def test_any_history_with_power_losses_keeps_what_was_synced(seed: int, steps: list[str]) -> None:
    run = Run(seed)
    for step in steps:
        STEPS[step](run)
        run.check()
    run.power_loss()


def history(seed: int) -> list[str]:
    rng = random.Random(seed)
    changing = [step for step in WEIGHTED if step not in ("kill", "power_loss")]
    return ["append", "append", "sync"] + [rng.choice(changing) for _ in range(14)]


@pytest.mark.parametrize("disk", [FaultyDisk, PlainDisk])
@pytest.mark.parametrize("seed", range(6))
def test_power_loss_at_every_operation_of_a_history(seed: int, disk: type[FaultyDisk]) -> None:
    """Every point between two changes of the disk, with three outcomes each."""
    steps = history(seed)
    crash_after = 0
    crashed = True
    while crashed:
        for outcome in range(3):
            run = Run(seed, crash_after, disk=disk)
            run.disk.rng.seed(outcome)
            crashed = False
            try:
                for step in steps:
                    STEPS[step](run)
            except PowerLossError:
                crashed = True
            run.power_loss()
            run.append()
            run.sync()
            run.check()
        crash_after += 1
    assert crash_after > 30


def test_a_second_power_loss_during_recovery() -> None:
    for crash_after in range(12):
        for seed in range(12):
            run = Run(seed)
            for step in ("append", "append", "sync", "append", "append", "append", "append"):
                STEPS[step](run)
            run.disk = run.disk.crash()
            run.log = None
            run.disk.crash_after = crash_after
            try:
                run.opened()
            except PowerLossError:
                run.disk = run.disk.crash()
                run.log = None
            run.check_after_crash()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25), st.data())
def test_a_flipped_bit_below_the_recovery_point_never_passes(
    seed: int, count: int, data: st.DataObject
) -> None:
    run = Run(seed)
    for _ in range(count):
        run.append()
    run.restart()
    log = run.opened()
    segment = data.draw(st.sampled_from([info for info in log.segments() if info.size_bytes]))
    position = data.draw(st.integers(0, segment.size_bytes - 1))
    log.close()
    run.disk.flip_bit(segment.file, position, data.draw(st.integers(0, 7)))
    run.log = None
    try:
        found = {one.header.base_offset: one.data for one in whole(run.opened())}
    except CorruptLogError as error:
        assert error.file in {info.file for info in log.segments()}
        return
    # No CRC covers the epoch: a flip that keeps epochs rising is the only damage that no check of one log
    # detects.
    changed = [base for base in found if found[base] != run.model.batches[base]]
    assert len(changed) == 1 and set(found) == set(run.model.batches)
    assert found[changed[0]][:12] == run.model.batches[changed[0]][:12]
    assert found[changed[0]][16:] == run.model.batches[changed[0]][16:]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.binary(max_size=200))
def test_any_tail_is_cut_or_is_whole(seed: int, tail: bytes) -> None:
    run = Run(seed)
    run.append()
    run.append()
    run.sync()
    log = run.opened()
    log.close()
    run.log = None
    path = join(DIRECTORY, segment_name(log.segments()[-1].base_offset))
    run.disk.open_append(path).append(tail)
    run.opened()
    run.check()
    assert bool(run.warnings) == bool(tail)


@pytest.mark.parametrize("version", [0, 1])
def test_a_vote_is_old_or_new_at_every_crash_point(version: int) -> None:
    old = QuorumState(leader_id=1, epoch=4, voters=(1, 2, 3) if version == 0 else ())
    new = QuorumState(epoch=5, voted_id=2, voters=(1, 2, 3) if version == 0 else ())
    for crash_after in range(8):
        for seed in range(10):
            disk = FaultyDisk(random.Random(seed))
            store_quorum_state(disk, "/", old, version)
            disk.crash_after = crash_after
            stored = False
            try:
                store_quorum_state(disk, "/", new, version)
                stored = True
            except PowerLossError:
                pass
            found = load_quorum_state(disk.crash(), "/")
            assert found == new if stored else found in (old, new)
    assert stored


def test_a_snapshot_is_whole_or_absent_at_every_crash_point() -> None:
    content = [b"a" * 100, b"b" * 100, b"c" * 30]
    for crash_after in range(10):
        for seed in range(10):
            disk = FaultyDisk(random.Random(seed))
            disk.crash_after = crash_after
            finished = False
            try:
                writer = SnapshotWriter(disk, "/", LogPosition(3, 77))
                for part in content:
                    writer.append(part)
                writer.freeze()
                finished = True
            except PowerLossError:
                pass
            disk = disk.crash()
            found = list_snapshots(disk, "/")
            assert found == [LogPosition(3, 77)] if finished else found in ([], [LogPosition(3, 77)])
            for one in found:
                assert disk.open_read(snapshot_path("/", one)).read_at(0, 1000) == b"".join(content)
            clean_abandoned(disk, "/")
            assert disk.list_directory("/") == [snapshot_path("", one)[1:] for one in found]
    assert finished
