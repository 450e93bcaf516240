"""A log directory on a disk in memory, driven by a script: what work brings, and the files."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from metaquorum.broker.replica.disk_work import (
    AbandonDirectory,
    AppendPartition,
    ChangeLogSettings,
    CheckpointHighWatermarks,
    CompactPartition,
    CreateReplica,
    CutPartition,
    EnforceRetention,
    FindOffset,
    LogSettings,
    PromoteReplica,
    ReadPartition,
    RemoveReplica,
    TrimTo,
)
from metaquorum.broker.replica.events import DataEvent
from metaquorum.broker.replica.store.parts import ExpectedIdentity, StoreOptions
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.storage.batches.batch import parse_header
from metaquorum.storage.cleaner.cleaning import CleaningEndedError
from metaquorum.storage.cleaner.plan import CleanerSettings
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.scripts.log_words import batch_of
from tests.scripts.player import Player, show
from tests.scripts.replicas_words import batches, key
from tests.scripts.stored import START_MS, timed, told_file
from tests.unit.broker.directory_bench import walked

PATH = "/data/d"
DIRECTORY_ID = b"d" * 16
SETTINGS = LogSettings(segment_bytes=300, retention_bytes=-1, retention_ms=-1, file_delete_delay_ms=100)
OPTIONS = StoreOptions(max_open_files=3, index_interval_bytes=100, checkpoint_bytes=400)


class DirectoryPlayer(Player):
    """Replicas have the incarnation with which they were opened or made, unless a command names another."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk(random.Random(1))
        self.disk.make_directory(PATH)
        self.store: DirectoryStore | None = None
        self.ends: dict[Any, int] = {}
        self.token = 0
        self._files: dict[str, str] = {}

    def say(self, line: str) -> None:
        super().say(timed(line))

    def run(self, command: str) -> list[str]:
        try:
            return super().run(command)
        except StorageError as error:
            self.say(f"{type(error).__name__}: {error}")
            return self.lines

    def warn(self, text: str) -> None:
        self.say(f"Warn {text}")

    @property
    def at(self) -> DirectoryStore:
        assert self.store is not None, "begin with: format, open"
        return self.store

    def take(self, events: list[DataEvent]) -> None:
        self.say_all(events)

    def where(self, partition: str, incarnation: str) -> dict[str, Any]:
        known = self.at._replicas.get(key(partition))
        number = int(incarnation) if incarnation != "-" else 0 if known is None else known.incarnation
        return {"directory_id": DIRECTORY_ID, "key": key(partition), "incarnation": number}

    # ---- the directory

    def do_format(self, node: str = "1", cluster: str = "c", id: str = "d") -> None:
        directory_id = None if id == "-" else id.encode() * 16
        store_meta_properties(
            self.disk, PATH, MetaProperties(cluster_id=cluster, node_id=int(node), directory_id=directory_id)
        )

    def do_open(self, node: str = "1", expects: str = "-", first: str = "1", **settings: str) -> None:
        """open node=1 first=7 segment_bytes=300: as this broker, incarnations from `first` on."""
        self.store, found = DirectoryStore.open(
            self.disk,
            PATH,
            ExpectedIdentity(
                cluster_id="c",
                node_id=int(node),
                directory_id=None if expects == "-" else expects.encode() * 16,
            ),
            self.warn,
            rng=random.Random(5),
            settings=replace(SETTINGS, **{name: int(value) for name, value in settings.items()}),  # type: ignore[arg-type]
            options=OPTIONS,
            first_incarnation=int(first),
            progress=lambda done, of: self.say(f"progress {done} of {of}"),
        )
        self.say(show(replace(found, replicas=(), total_bytes=-1, usable_bytes=-1)))
        assert found.problem or (found.total_bytes, found.usable_bytes) == (
            self.disk.total_bytes(PATH),
            self.disk.free_bytes(PATH),
        )
        for each in found.replicas:
            self.say(show(each))

    def do_close(self, clean: str = "yes") -> None:
        self.at.close(clean=clean == "yes")

    def do_kill(self) -> None:
        self.disk = self.disk.kill()

    def do_files(self, below: str = "") -> None:
        """What is in it, of files only those that are others than when they were listed last."""
        for name in sorted(self.disk.list_directory(join(PATH, below) if below else PATH)):
            path = join(below, name) if below else name
            if self.disk.is_directory(join(PATH, path)):
                self.say(f"{path}/")
                self.do_files(path)
                continue
            told = told_file(path, read_file(self.disk, join(PATH, path)))
            if self._files.get(path) != told:
                self.say(told)
            else:
                self.say(f"{path} is the same")
            self._files[path] = told

    def do_put(self, path: str, *words: str) -> None:
        """put x-0/f words: a file with these lines; put dir/: a directory."""
        if path.endswith("/"):
            self.disk.make_directory(join(PATH, path[:-1]))
            return
        place = join(PATH, path)
        if self.disk.exists(place):
            self.disk.remove(place)
        file = self.disk.open_append(place)
        file.append("\n".join(words).encode())
        file.close()

    def do_spoil(self, path: str, position: str) -> None:
        self.disk.flip_bit(join(PATH, path), int(position))

    # ---- work

    def do_create(self, *partitions: str, incarnation: str = "9", future: str = "no") -> None:
        works = [
            CreateReplica(
                directory_id=DIRECTORY_ID,
                key=key(each),
                incarnation=int(incarnation),
                topic=each.rpartition("-")[0],
                settings=SETTINGS,
                future=future == "yes",
            )
            for each in partitions
        ]
        self.take(self.at.execute_all(works))

    def do_append(
        self, partition: str, log: str, base: str = "0", incarnation: str = "-", sync: str = "yes"
    ) -> None:
        given = walked(batches(log, int(base)))
        where = self.where(partition, incarnation)
        self.take(self.at.execute(AppendPartition(**where, batches=given, sync=sync == "yes")))

    def do_write(self, partition: str, *words: str, sync: str = "yes") -> None:
        """write x-0 a:1,b!/@1: batches as in `log_words`, at the log's end."""
        where = self.where(partition, "-")
        base, parts = self.at._replicas[key(partition)].log.end_offset, []
        for word in words:
            parts.append(batch_of(word, base))
            base = parse_header(parts[-1]).next_offset
        self.take(
            self.at.execute(AppendPartition(**where, batches=walked(b"".join(parts)), sync=sync == "yes"))
        )

    def do_compact(self, partition: str, below: str, wall: str = "0", incarnation: str = "-") -> None:
        where = self.where(partition, incarnation)
        wall_ms = START_MS + int(wall)
        self.take(self.at.execute(CompactPartition(**where, below_offset=int(below), wall_ms=wall_ms)))

    def do_clean(self, between: str = "") -> None:
        """The next pass of the cleaner; `between`: a command before its first piece is taken up."""
        cleaner = self.at.cleaner
        self.say(f"wants checkpoint: {show(cleaner.wants_checkpoint)}")
        cleaning = cleaner.next()
        if cleaning is None:
            return self.say("nothing to clean")
        self.say(f"{cleaning.log.directory} {show(cleaning.task.plan)}; another: {show(cleaner.next())}")
        lines = self.lines
        while cleaner.is_under_way(cleaning):
            error = None
            try:
                lines.append(f"  pieces {show(list(cleaning.pieces()))} {show(cleaning.result)}")
            except (StorageError, CleaningEndedError) as raised:
                error = raised
            if between:
                lines = [*lines, f"  between: {between}", *self.run(between.replace("_", " "))]
                between = ""
            self.lines = lines
            self.take(cleaner.take_up(cleaning, error))

    def do_measure(self) -> None:
        self.say(show(self.at.measure()))

    def do_promote(self, partition: str, incarnation: str = "-") -> None:
        self.take(self.at.execute(PromoteReplica(**self.where(partition, incarnation))))

    def do_read(
        self, partition: str, start: str, end: str, most: str = "10000", incarnation: str = "-"
    ) -> None:
        self.token += 1
        work = ReadPartition(
            **self.where(partition, incarnation),
            token=self.token,
            from_offset=int(start),
            to_offset=int(end),
            max_bytes=int(most),
        )
        self.take(self.at.execute(work))

    def do_find(self, partition: str, time: str, below: str, incarnation: str = "-") -> None:
        self.token += 1
        where = self.where(partition, incarnation)
        work = FindOffset(**where, token=self.token, timestamp_ms=int(time), below_offset=int(below))
        self.take(self.at.execute(work))

    def do_cut(self, partition: str, end: str, incarnation: str = "-", over: str = "no") -> None:
        where = self.where(partition, incarnation)
        self.take(self.at.execute(CutPartition(**where, end_offset=int(end), start_over=over == "yes")))

    def do_trim(self, *parts: str, incarnation: str = "-") -> None:
        """trim x-0:3 y-0:4"""
        split = [each.split(":") for each in parts]
        works = [TrimTo(**self.where(word, incarnation), start_offset=int(at)) for word, at in split]
        self.take(self.at.execute_all(works))

    def do_retain(self, partition: str, below: str, wall: str = "0", incarnation: str = "-") -> None:
        where = self.where(partition, incarnation)
        self.take(self.at.execute(EnforceRetention(**where, below_offset=int(below), wall_ms=int(wall))))

    def do_settings(
        self,
        partition: str,
        incarnation: str = "-",
        deletes: str = "yes",
        compacts: str = "no",
        **numbers: str,
    ) -> None:
        settings = replace(
            SETTINGS,
            deletes=deletes == "yes",
            compacts=compacts == "yes",
            cleaner=CleanerSettings(min_dirty_ratio=0.1, delete_retention_ms=100),
            **{name: int(value) for name, value in numbers.items()},  # type: ignore[arg-type]
        )
        self.take(self.at.execute(ChangeLogSettings(**self.where(partition, incarnation), settings=settings)))

    def do_remove(self, *partitions: str, incarnation: str = "-") -> None:
        works = [RemoveReplica(**self.where(each, incarnation), reason="test") for each in partitions]
        self.take(self.at.execute_all(works))

    def do_marks(self, *marks: str) -> None:
        """marks x:0:5: topic, partition, high watermark."""
        split = [each.split(":") for each in marks]
        lines = tuple((topic, int(index), int(mark)) for topic, index, mark in split)
        self.take(self.at.execute(CheckpointHighWatermarks(directory_id=DIRECTORY_ID, high_watermarks=lines)))

    def do_abandon(self) -> None:
        self.take(self.at.execute(AbandonDirectory(directory_id=DIRECTORY_ID)))

    def do_tick(self, now_ms: str) -> None:
        self.say(f"more are due: {show(self.at.tick(int(now_ms)))}")

    def do_sync(self, checkpoint: str = "no", last: str = "no", between: str = "") -> None:
        """sync checkpoint=yes: what is durable then; `between`: a command while it runs."""
        self.say(f"checkpoint due: {show(self.at.checkpoint_due)}")
        prepared = self.at.prepare_sync(checkpoint=checkpoint == "yes", last=last == "yes")
        if prepared is None:
            self.say("nothing to sync")
            return
        prepared.run()
        lines = self.lines
        if between:
            lines = [*lines, f"  between: {between}", *self.run(between.replace("_", " "))]
        self.lines = lines
        self.say(show(self.at.sync_completed(prepared)))
