"""One partition's log on a disk in memory, driven by a script: what is written in which order, and what is
known afterwards.

Every command shows its answer, the changes on the disk in their order, then what the log knows that is other
than before: segments with their indexes, epochs, recovery point, producers and transactions.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from metaquorum.storage.batches.batch import Batches, parse_header
from metaquorum.storage.cleaner.cleaning import Cleaning, CleaningEndedError, segment_facts
from metaquorum.storage.cleaner.plan import CleanerSettings, first_dirty_offset, plan_cleaning
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.errors import StorageError
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.log import SegmentedLog, SyncTicket
from metaquorum.storage.log.segment import Segment
from metaquorum.storage.log.timed_segment import TimedSegment
from metaquorum.storage.partition.partition_log import Checkpoint, PartitionLog
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.scripts.log_words import batch_of, marker_of
from tests.scripts.player import Player, show
from tests.scripts.stored import START_MS, timed, told_batches, told_file, told_producer
from tests.unit.storage.journal import Journal

PLACE = "/d/t-0"
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=150)


class LogPlayer(Player):
    """Batches are words of `log_words`."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Journal(PLACE)
        self.disk.make_directory(PLACE)
        self.disk.sync_directory("/d")
        self.disk.told()
        self.config = CONFIG
        self.log: PartitionLog | None = None
        self.cleaned_to: int | None = None
        self.checkpoints: list[Checkpoint] = []
        self.tickets: list[SyncTicket] = []
        self._files: dict[str, str] = {}

    def say(self, line: str) -> None:
        super().say(timed(line.replace(f"{PLACE}/", "")))

    def run(self, command: str) -> list[str]:
        try:
            super().run(command)
        except (StorageError, CleaningEndedError) as error:
            self.say(f"{type(error).__name__}: {error}")
        steps = [each for each in self.disk.told() if not each.startswith("open ")]
        if steps:
            self.say(f"disk: {'; '.join(steps)}")
        if self.log is not None:
            self.say_changed(self._facts(self.log))
        return self.lines

    @property
    def at(self) -> PartitionLog:
        if self.log is None:
            raise StorageError("it is not open")
        return self.log

    # ---- what it knows

    def _facts(self, log: PartitionLog) -> dict[str, str]:
        if not isinstance(log, PartitionLog):
            return self._metadata_facts(log)
        known, producers = log._producers, log.producers
        missing = sorted(log._indexes.missing)
        flags = {"to sync": log.needs_sync, "pointed": log.is_pointed, "closed": log.closed}
        last = log.last_position
        return {
            "log": " ".join(
                [
                    f"{log.start_offset}..{log.end_offset}@{last.epoch} synced={log.synced_offset}",
                    f"from={log.log_start_offset}/{log.start_epoch} trusted={log.trusted_from}",
                    f"size={log.size_bytes} generation={log.generation}/{log._shape}",
                    *(name for name, holds in flags.items() if holds),
                ]
            ),
            **{f"segment {each.base_offset}": _segment(each) for each in log._timed_segments()},
            "epochs": f"{show(log.epochs.entries)} stored {show(log._stored_epochs)}",
            "point": show(log.recovery_point),
            "indexes": f"missing {missing} to read {show(log.unindexed_bytes)}",
            **{f"producer {each.producer_id}": told_producer(each) for each in producers.all()},
            "open from": show(producers.open_from),
            "aborted": f"{show(list(producers.aborted))} kept to {known.kept_to}",
            "snapshots": str(known.snapshots._offsets),
        }

    @staticmethod
    def _metadata_facts(log: SegmentedLog) -> dict[str, str]:
        last = log.last_position
        return {
            "log": " ".join(
                [
                    f"{log.start_offset}..{log.end_offset}@{last.epoch} synced={log.synced_offset}",
                    f"from={log.start_epoch} size={log.size_bytes} generation={log.generation}",
                    f"unpointed={log._unpointed_bytes}",
                ]
            ),
            **{f"segment {at}": show(each) for at, each in enumerate(log.segments())},
            **{f"places of {each.base_offset}": _places(each) for each in log._segments},
            "epochs": f"{show(log.epochs.entries)} stored {show(log._stored_epochs)}",
            "point": show(log.recovery_point),
        }

    # ---- opening and closing

    def do_open(self, verify: str = "no", kind: str = "partition", **figures: str) -> None:
        """open kind=metadata segment_bytes=300"""
        self.config = replace(self.config, **{name: int(value) for name, value in figures.items()})
        self.log = None
        if kind == "metadata":
            self.log = SegmentedLog.open(
                self.disk, PLACE, self.config, lambda text: self.say(f"warning: {text}")
            )  # type: ignore[assignment]
            return
        pool, system = FilePool(self.disk, 3), self.disk.file_system("/d")
        self.log = PartitionLog.load(
            self.disk, PLACE, self.config, pool, system, lambda text: self.say(f"warning: {text}"),
            verify=verify == "yes",
        )  # fmt: skip

    def do_configure(self, **figures: str) -> None:
        self.config = replace(self.config, **{name: int(value) for name, value in figures.items()})
        self.at.configure(self.config)

    def do_close(self, clean: str = "no") -> None:
        if clean == "yes":
            self.at.clean_close()
        else:
            self.at.close()

    def do_kill(self) -> None:
        self._again(self.disk.kill())

    def do_crash(self) -> None:
        """Power loss: what was not synced is gone."""
        self._again(self.disk.crash())

    def _again(self, survivor: FaultyDisk) -> None:
        self.disk = Journal(PLACE)
        for name in ("_names", "_durable", "_pending", "_moves"):
            setattr(self.disk, name, getattr(survivor, name))
        self.log, self.checkpoints, self.tickets = None, [], []

    # ---- writing

    def do_put(self, *words: str) -> None:
        """put BATCH...: one append."""
        base, parts = self.at.end_offset, []
        for word in words:
            parts.append(batch_of(word, base))
            base = parse_header(parts[-1]).next_offset
        self.say(show(self.at.append(Batches.sealed(b"".join(parts)))))

    def do_sync(self) -> None:
        self.say(show(self.at.sync()))

    def do_ticket(self) -> None:
        """What a sync would make durable now; `run` carries it out, `done` notes it."""
        self.tickets.append(self.at.prepare_sync())
        ticket = self.tickets[-1]
        self.say(f"to {ticket.end_offset} in {ticket.segment.base_offset} {show(ticket.point)}")

    def do_run(self) -> None:
        self.tickets[0].run()

    def do_done(self) -> None:
        self.say(show(self.at.sync_completed(self.tickets.pop(0))))

    def do_reset(self, epoch: str, offset: str) -> None:
        self.at.reset_to(LogPosition(int(epoch), int(offset)))

    def do_blocks(self, start: str, most: str = "100000") -> None:
        """As a follower of the metadata log reads: whole batches of one segment."""
        for line in told_batches(self.at.read(int(start), int(most)).data):
            self.say(line)

    def do_checkpoint(self, indexes: str = "no", stage: str = "all") -> None:
        """checkpoint stage=only: the rest follows with `place`."""
        checkpoint = self.at.checkpoint(indexes=indexes == "yes")
        if checkpoint is None:
            return self.say("nothing has changed")
        staged = checkpoint.stage()
        self.disk.file_system("/d").sync(staged, ())
        for each in staged:
            each.close()
        self.checkpoints.append(checkpoint)
        if stage == "all":
            self.do_place()

    def do_place(self) -> None:
        checkpoint = self.checkpoints.pop(0)
        for step in Checkpoint.STEPS:
            due = checkpoint.place(step)
            self.say(f"step {step}: {show(due)}")
            if due:
                self.disk.sync_directory(PLACE)
        self.at.checkpointed(checkpoint)

    def do_cut(self, end: str) -> None:
        self.say(show(self.at.truncate_to(int(end))))

    def do_over(self, offset: str) -> None:
        self.at.start_over(int(offset))

    def do_trim(self, offset: str) -> None:
        self.say(show(self.at.delete_segments_before(int(offset))))

    def do_start(self, offset: str) -> None:
        begins = self.at.begins_at(int(offset))
        self.say(f"{self.at.start_at(int(offset))} a segment begins there: {show(begins)}")

    def do_retain(self, size: str = "-1", ms: str = "-1", below: str = "1000000", wall: str = "0") -> None:
        """retain size=300 ms=50 below=7 wall=100"""
        gone = self.at.enforce_retention(
            retention_bytes=int(size),
            retention_ms=int(ms),
            below_offset=int(below),
            wall_ms=START_MS + int(wall),
        )
        self.say(show(gone))

    def do_expire(self, before: str) -> None:
        self.say(show(self.at.producers.expire(START_MS + int(before))))

    # ---- reading

    def do_read(self, start: str, end: str, most: str = "100000") -> None:
        for line in told_batches(self.at.read_range(int(start), int(end), int(most))):
            self.say(line)

    def do_find(self, time: str, below: str = "1000000") -> None:
        """find T+50 below=7; find -3: the newest."""
        at = START_MS + int(time[1:]) if time.startswith("T") else int(time)
        self.say(show(self.at.find_offset(at, int(below))))

    def do_check(self, *words: str) -> None:
        """check BATCH...: whether the leader may append these now."""
        for word in words:
            data = batch_of(word, self.at.end_offset)
            header, marker = parse_header(data), marker_of(word)
            table = self.at.producers
            self.say(show(table.check(header) if marker is None else table.check_marker(header, marker)))

    def do_aborted(self, start: str, end: str) -> None:
        for each in self.at.producers.aborted.overlapping(int(start), int(end)):
            self.say(show(each))

    # ---- the cleaner

    def do_clean(
        self, now: str = "0", stable: str = "1000000", keys: str = "100000", **settings: str
    ) -> None:
        """clean now=100 min_dirty_ratio=0.1 delete_retention_ms=50 between=cut_3: a pass; `between`: before
        what is staged is swapped in."""
        between = settings.pop("between", "")
        given: dict[str, Any] = {
            name: float(value) if name == "min_dirty_ratio" else int(value)
            for name, value in settings.items()
        }
        chosen = replace(CleanerSettings(min_dirty_ratio=0.0), **given)
        log, now_ms, open_from = self.at, START_MS + int(now), self.at.producers.open_from
        plan = plan_cleaning(
            segment_facts(log),
            first_dirty=first_dirty_offset(self.cleaned_to, log.start_offset, log.end_offset),
            stable_to=min(int(stable), log.end_offset if open_from is None else open_from),
            settings=chosen,
            now_ms=now_ms,
        )
        self.say(show(plan))
        if plan is None:
            return
        cleaning = Cleaning(log, plan, chosen, now_ms=now_ms, key_bytes=int(keys))
        while cleaning.result is None:
            self.say(f"pieces {show(list(cleaning.pieces()))}")
            if cleaning.staged is not None:
                self.say(f"staged {show(cleaning.staged)}")
                if between:
                    getattr(self, f"do_{between.partition('_')[0]}")(*between.split("_")[1:])
                cleaning.swap()
        self.say(show(cleaning.result))
        self.cleaned_to = cleaning.result.cleaned_to

    # ---- files

    def do_files(self) -> None:
        """Those that are others than when they were listed last."""
        names = sorted(self.disk.list_directory(PLACE))
        files = {name: told_file(name, read_file(self.disk, join(PLACE, name))) for name in names}
        for name, text in files.items():
            if self._files.get(name) != text:
                self.say(text)
        gone = " ".join(sorted(self._files.keys() - files.keys()))
        if gone:
            self.say(f"gone: {gone}")
        self._files = files

    def do_flip(self, name: str, position: str) -> None:
        self.disk.flip_bit(self._path(name), int(position))

    def do_drop(self, *names: str) -> None:
        for name in names:
            self.disk.remove(self._path(name))

    def do_write(self, name: str, *data: str) -> None:
        """write NAME HEX...: these bytes behind what is there."""
        file = self.disk.open_append(self._path(name))
        file.append(bytes.fromhex("".join(data)))
        file.close()

    def do_shorten(self, name: str, size: str) -> None:
        file = self.disk.open_append(self._path(name))
        file.truncate(int(size))
        file.close()

    def do_rename(self, name: str, other: str) -> None:
        self.disk.rename(self._path(name), self._path(other))

    @staticmethod
    def _path(name: str) -> str:
        """`4.log`: with the zeros that its name has."""
        stem, dot, suffix = name.partition(".")
        return join(PLACE, f"{int(stem):020d}{dot}{suffix}" if stem.isdigit() else name)


def _places(each: Segment) -> str:
    return " ".join(f"{o}@{p}" for o, p in zip(each._offsets, each._positions, strict=True))


def _segment(each: TimedSegment) -> str:
    times = " ".join(f"{t}:{o}" for t, o in zip(each._times, each._time_offsets, strict=True))
    newest = f"{each._newest_ms}:{each._newest_offset} to byte {each._timed_to}"
    return f"..{show(each.sealed_end)} {each.size} bytes [{_places(each)}] times [{times}] newest {newest}"
