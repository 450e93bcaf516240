"""Replays one cluster's history, run by run, into the files of its tables.

The input of a replay: batches of the chosen logs, snapshots where a run begins without a state, the state of
an earlier run; and the damage found on the way. Runs on any machine.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import PurePath

import msgspec

from metaquorum.metadata.columnar.windows import BatchWindow, windows
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.quorum import quorum_in_snapshot
from metaquorum.pipeline.ingest.layout import (
    NOTES_SUFFIX,
    RETAINED_SUFFIX,
    STATE,
    STATE_SUFFIX,
    FileRow,
    ReportedDamage,
    WrittenFile,
)
from metaquorum.pipeline.ingest.parts import (
    FLUSH_ROWS,
    LeftPart,
    PartJoin,
    image_of,
    keep_part,
    pieces_of,
    seam_damage,
    write_rows,
)
from metaquorum.pipeline.ingest.retained import retain
from metaquorum.pipeline.ingest.work import PartTask, ReplayTask, TaskResult
from metaquorum.pipeline.ingest.writer import ClusterWriter, day_of
from metaquorum.pipeline.intervals import ClusterReplay, StateError
from metaquorum.pipeline.intervals.moments import DAY_MS, Row
from metaquorum.pipeline.intervals.touched import feed_window
from metaquorum.pipeline.logs.clusters import facts_of_image
from metaquorum.pipeline.logs.damage import CORRUPT, MISSING, UNKNOWN, DamageNotes, DamageRow, log_damage
from metaquorum.pipeline.logs.merged import SHARED_ID, HistoryRun, MergedHistory
from metaquorum.pipeline.logs.pieces import part_of, read_piece
from metaquorum.pipeline.logs.survey import LogSurvey, snapshot_file
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.snapshots import parse_snapshot_name
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.types import LogPosition


def run_replay(task: ReplayTask) -> TaskResult:
    """Replays a cluster from its start or from a saved state; or joins its parts, and replays the rest."""
    writer = ClusterWriter(task.out, task.merged.cluster, task.run)
    joining = PartJoin.of(task, writer)
    feeder = _Feeder(task, writer, joining)
    for run in task.merged.runs():
        feeder.run(run)
    return feeder.finish()


def run_first_part(task: PartTask) -> TaskResult:
    """Replays a cluster up to the start of the next part."""
    replay, span = task.replay, task.replay.spans[0]
    writer = ClusterWriter(replay.out, replay.merged.cluster, replay.run)
    feeder = _Feeder(replay, writer)
    feeder.run(part_of(next(iter(replay.merged.runs())), span.end))
    return keep_part(task, feeder.part(), writer)


def replay_into(task: ReplayTask, writer: ClusterWriter) -> None:
    """Replays a cluster from its start and gives all rows to `writer`. Keeps no state."""
    feeder = _Feeder(task, writer)
    for run in task.merged.runs():
        feeder.run(run)
    feeder.rest()


class _Feeder:
    """Feeds the replay, and writes the rows that it gives."""

    def __init__(self, task: ReplayTask, writer: ClusterWriter, joined: PartJoin | None = None) -> None:
        self._task = task
        self._merged = task.merged
        self._notes = DamageNotes()
        self._writer = writer
        self._kept_notes = b""
        self._kept_at = -1
        self._gathered = self._records = self._end_ms = 0
        self._node_of: dict[str, int | None] = {}
        self._used_snapshots: dict[str, int] = {}
        self._joined: list[WrittenFile] = []
        if joined is not None:
            self._engine, self._notes, self._joined = joined.engine, joined.notes, joined.files
            self._end_ms, self._used_snapshots = joined.end_ms, joined.used_snapshots
            self._node_of, self._records = joined.node_of, joined.records
        else:
            new = ClusterReplay(task.merged.cluster, log_end=task.merged.end_offset)
            self._engine = self._resumed() or new

    def _resumed(self) -> ClusterReplay | None:
        """The replay as an earlier run left it. None, as the result says, if its state cannot be used."""
        file = self._task.state_file
        if file is None:
            return None
        try:
            folder = Folder(self._task.out)
            saved = folder.get(file)
            engine = ClusterReplay(self._merged.cluster, log_end=self._merged.end_offset, saved=saved)
            self._notes.load(folder.get(file + NOTES_SUFFIX))
            return engine
        except (StateError, StorageError, msgspec.DecodeError):
            self._notes = DamageNotes()
            return None

    def run(self, run: HistoryRun) -> None:
        """Feeds one run of the history, from the replay's position on."""
        engine = self._engine
        start = engine.end_offset
        if run.end < start or (run.end == start and engine.is_resumed):
            return
        snapshots = []
        if run.start > start:
            self._hole(start, run)
            engine.begins(run.start)
            start, snapshots = run.start, list(run.snapshots)
        expected: int | None = start
        for piece in pieces_of(run, start):
            self._node_of[piece.file] = piece.node_id
            for item in windows(read_piece(StoreDisk(), piece)):
                if isinstance(item, Damage):
                    self._notes.damage(item)
                    expected = None
                    continue
                batches = (item,) if isinstance(item, RecordBatch) else item.batches
                self._note_gap(batches[0], expected)
                expected = batches[-1].header.next_offset
                if isinstance(item, BatchWindow) and not snapshots:
                    feed_window(item, self._together, self._batch)
                    continue
                for batch in batches:
                    self._learn_before(batch.header.base_offset, snapshots)
                    self._batch(batch)
        self._learn_before(run.end, snapshots)
        if not engine.knows_state and run.start < run.end:
            reason = f"no snapshot has the state at offset {run.start}, where the log begins"
            self._notes.add(MISSING, run.sections[0].log.location.path, 0, run.start, reason)

    def _hole(self, end: int, run: HistoryRun) -> None:
        if end:
            reason = (
                f"offsets {end} to {run.start - 1} are in none of the logs: what happened there is unknown"
            )
            self._notes.add(MISSING, run.sections[0].log.location.path, 0, end, reason)

    def _note_gap(self, batch: RecordBatch, expected: int | None) -> None:
        """Notes a batch that does not follow the one before: pieces are read separately and do not see it."""
        found = batch.header.base_offset
        if expected is not None and found > expected:
            reason = f"expected offset {expected}, found {found}: the records between are in no log"
            self._notes.add(CORRUPT, batch.file, batch.position, expected, reason)

    def _learn_before(self, offset: int, snapshots: list[tuple[LogSurvey, int, int]]) -> None:
        """Takes the state from the first readable snapshot at or before `offset`, if one is due."""
        while snapshots and snapshots[0][1] <= offset:
            log, end, epoch = snapshots.pop(0)
            if end < self._engine.end_offset:
                continue  # it ends inside a batch
            position = LogPosition(epoch, end)
            image = image_of(log, position, self._notes)
            if image is not None:
                file = snapshot_file(log, position)
                self._used_snapshots[file] = end
                self._engine.learn(image, quorum_in_snapshot(MetadataLog(StoreDisk(), file)))
                self._keep_notes()
                snapshots.clear()

    def _batch(self, batch: RecordBatch) -> None:
        decoded = self._notes.batch(batch)
        engine = self._engine
        if decoded is None or batch.header.next_offset <= engine.end_offset:
            return
        engine.batch(batch, decoded)
        self._passed(len(decoded), batch.header.max_timestamp_ms)

    def _together(self, window: BatchWindow) -> int:
        taken = self._engine.window(window)
        if taken > 0:
            self._notes.whole()
            self._passed(*window.part(0, taken).extent)
        return taken

    def _passed(self, records: int, time_ms: int) -> None:
        """Counts replayed records. `time_ms`: of the newest."""
        self._keep_notes()
        self._records += records
        self._gathered += records
        self._end_ms = max(self._end_ms, time_ms)
        if self._gathered >= FLUSH_ROWS:
            self._gathered = 0
            write_rows(self._writer, self._engine.final_rows().items(), final=True)

    def _keep_notes(self) -> None:
        """At the resume point, keeps the notes so far with the state."""
        point, _ = self._engine.resume_point
        if self._engine.saved_state is not None and self._kept_at != point:
            self._kept_notes, self._kept_at = self._notes.save(), point

    def part(self) -> LeftPart:
        """What the first part leaves, after all its ended rows are written."""
        engine, span = self._engine, self._task.spans[1]
        write_rows(self._writer, engine.final_rows().items(), final=True)
        rows, unknown = self._notes.cut_off()
        left = LeftPart(
            rows=rows,
            unknown=unknown,
            end_ms=self._end_ms,
            records=self._records,
            used_snapshots=self._used_snapshots,
            is_resumed=engine.is_resumed,
        )
        if engine.knows_state and not engine.is_inside:
            with suppress(StateError):
                left.state = engine.saved_here()
                left.seam = seam_damage(engine, span)
        return left

    def finish(self) -> TaskResult:
        """Writes the remaining rows and the state for the next run. Returns the result for the driver."""
        files, reported = self.rest()
        result = self._result([*self._joined, *self._writer.close()])
        result.reported_files, result.reported_damage = files, reported
        return result

    def rest(self) -> tuple[list[tuple[int, FileRow]], list[ReportedDamage]]:
        """Writes the remaining rows. Returns the rows of `files`, and the damage
        of logs that were not read."""
        engine, writer = self._engine, self._writer
        write_rows(writer, engine.final_rows().items(), final=True)
        write_rows(writer, engine.provisional_rows().items(), final=False)
        by_day: dict[int, list[Row]] = {}
        for day_ms, row in engine.availability_rows():
            by_day.setdefault(day_ms // DAY_MS, []).append(row)
        for day, rows in by_day.items():
            writer.rows("availability", rows, final=False, day=day)
        noted = self._notes.take(at_end=True)
        below = engine.resume_point[0]
        reported = self._reported_damage()
        damage = [(row, row.offset < below and row.kind != UNKNOWN) for row in noted]
        self._write_damage([*damage, *((at.row, False) for at in reported)], reported, day_of(self._end_ms))
        files = self._reported_files()
        for day, line in files:
            writer.rows("files", [line], final=False, day=day)
        return files, reported

    def _result(self, files: list[WrittenFile]) -> TaskResult:
        task, engine = self._task, self._engine
        result = TaskResult(cluster=task.merged.cluster, files=files, records=self._records)
        result.started_over = task.state_file is not None and not engine.is_resumed
        folder, target = Folder(task.out), f"{STATE}/{task.state_target}"
        low = engine.resume_point[0] if engine.saved_state is not None else task.resume_offset
        low = min(0 if result.started_over and engine.saved_state is None else low, task.final_below)
        low = min(low, task.store_below)
        result.learned = sorted(set(self._used_snapshots.values()))
        facts = facts_of_image(engine.image, engine.end_offset)
        learned = {*result.learned, *task.learned}
        retain(task.merged, low, learned, facts, folder, target + RETAINED_SUFFIX)
        if engine.saved_state is None:
            result.files = [msgspec.structs.replace(file, final=False) for file in files]
            return result
        folder.put(target + STATE_SUFFIX, engine.saved_state, private=True)
        folder.put(target + STATE_SUFFIX + NOTES_SUFFIX, self._kept_notes, private=True)
        result.has_state = True
        result.resume_offset, result.resume_epoch = engine.resume_point
        return result

    def _reported_damage(self) -> list[ReportedDamage]:
        """Damage of logs that were not read, according to their headers; how logs differ; and what earlier
        runs reported of logs that are gone. Whether a cluster shares its id is decided in each run."""
        given = {log.location.path for log in self._merged.logs if not log.location.is_retained}
        known = [at for at in self._task.known_damage if at.log not in given and at.row.kind != SHARED_ID]
        return [*known, *_other_damage(self._merged)]

    def _reported_files(self) -> list[tuple[int, FileRow]]:
        lines: dict[str, tuple[int, FileRow]] = {}
        for log in self._merged.logs:
            if not log.location.is_retained:
                for at in log.segments:
                    why = self._merged.why_unused(log, at)
                    place = (log.location.node_id, at.file, at.size_bytes, at.start_offset, at.end_offset)
                    lines[at.file] = (day_of(at.last_ms), (*place, why is None, why))
        reported = {line[1]: (day, self._as_used_now(line)) for day, line in self._task.known_files}
        for line in _snapshot_lines(self._merged, self._used_snapshots.keys()):
            was_used = line[1] in reported and reported[line[1]][1][5]
            lines[line[1]] = (day_of(self._end_ms), reported[line[1]][1] if was_used else line)
        return [*(row for file, row in reported.items() if file not in lines), *lines.values()]

    def _as_used_now(self, line: FileRow) -> FileRow:
        """A row of an earlier run. If this replay starts over without a snapshot that was read then, no table
        has the state in it."""
        position = parse_snapshot_name(PurePath(line[1]).name)
        starts_over = not self._engine.is_resumed and line[5]
        if position is None or not starts_over or position.offset in self._used_snapshots.values():
            return line
        return (*line[:5], False, _why_unused(self._merged, position.offset, position.epoch))

    def _write_damage(
        self, damage: list[tuple[DamageRow, bool]], reported: list[ReportedDamage], day: int
    ) -> None:
        nodes = {log.location.path: log.location.node_id for log in self._merged.logs}
        for log in self._merged.logs:
            nodes |= {segment.file: log.location.node_id for segment in log.segments}
        nodes |= self._node_of | {at.row.file: at.node_id for at in reported}
        for final in (True, False):
            lines = [
                (nodes.get(row.file), row.file, row.position, row.offset, row.kind, row.reason)
                for row, is_final in damage
                if is_final == final
            ]
            self._writer.rows("damage", lines, final=final, day=day)


def _other_damage(merged: MergedHistory) -> Iterator[ReportedDamage]:
    used = {section.log.location.path for section in merged.sections if section.start < section.end}
    seen: set[str] = set()
    for log in merged.logs:
        log_place = log.location
        if log_place.path in used or log_place.path in seen or log_place.is_retained:
            continue
        seen.add(log_place.path)
        if any(at.readable_bytes != at.size_bytes for at in log.segments):
            for row in log_damage(StoreDisk(), log_place):
                yield ReportedDamage(log_place.path, log_place.node_id, row)
    for conflict in merged.conflicts:
        log_place = conflict.log.location
        if not log_place.is_retained:
            row = DamageRow(log_place.path, 0, conflict.offset, conflict.kind, conflict.reason)
            yield ReportedDamage(log_place.path, log_place.node_id, row)


def _snapshot_lines(merged: MergedHistory, used: Container[str]) -> Iterator[FileRow]:
    """Rows of `files` for the snapshots."""
    disk, seen = StoreDisk(), set[str]()
    for log in merged.logs:
        for offset, epoch in log.snapshots:
            file = snapshot_file(log, LogPosition(epoch, offset))
            if file in seen or log.location.is_retained:
                continue
            seen.add(file)
            is_used = file in used
            why = None if is_used else _why_unused(merged, offset, epoch)
            size_bytes = disk.file_size(file) if disk.exists(file) else 0
            yield (log.location.node_id, file, size_bytes, offset, offset, is_used, why)


def _why_unused(merged: MergedHistory, offset: int, epoch: int) -> str:
    """Why a snapshot was not read."""
    for run in merged.runs():
        if run.start < offset <= run.end:
            if merged.epoch_at(offset - 1) != epoch:
                return f"its end, offset {offset} of epoch {epoch}, is not in the history"
            if run.start == 0 or any(end < offset for _, end, _ in run.snapshots):
                return "the state at its end follows from other files"
            return "another copy of it was read, or it could not be read: see the table damage"
    if any(run.start == offset for run in merged.runs()):
        return "another copy of it was read, or it could not be read: see the table damage"
    if offset < merged.start_offset:
        return f"it ends at offset {offset}, before the history begins"
    return f"it ends at offset {offset}, where no log has records and a newer one gives the state"
