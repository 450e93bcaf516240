"""The state at a place of a log, and the story up to there. Reads only, and says what it had to leave out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cli import log_source
from cli.errors import EXIT_FAILED, EXIT_UNKNOWN_RECORDS, Failure
from cli.log_select import time_ms
from cli.log_source import ReadBatch
from cli.output import utc_text
from metadata.control_records import UnknownControlRecord
from metadata.errors import ReplayError
from metadata.image import MetadataImage, Provenance
from metadata.inspect.timeline import Timeline, TimelineEvent
from metadata.records import UnknownRecord
from metadata.replay import Replayer, ReplayState
from metadata.tree import Tree, image_tree
from storage.disk import name_of
from storage.snapshots import parse_snapshot_name

_SHOWN_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Point:
    """Where to look: everything below `offset`, or nothing later than `time_ms`; both None: the end."""

    offset: int | None = None
    time_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class FoundState:
    """A replayed state. `problems` are lines about what was damaged or skipped; `unknown` counts records."""

    state: ReplayState
    snapshot: str | None
    problems: list[str] = field(default_factory=list)
    unknown: int = 0

    @property
    def image(self) -> MetadataImage:
        return self.state.image

    @property
    def end_offset(self) -> int:
        return self.state.end_offset

    def exit_code(self) -> int:
        if self.problems:
            return EXIT_FAILED
        return EXIT_UNKNOWN_RECORDS if self.unknown else 0


def parse_point(text: str | None) -> Point:
    """`--at`: digits are an offset, `@` and digits Unix ms, anything else ISO 8601. Raises Failure."""
    if text is None:
        return Point()
    if text.isascii() and text.isdigit():
        return Point(offset=int(text))
    try:
        return Point(time_ms=time_ms(text))
    except ValueError as error:
        raise Failure(f"--at: {error}, or an offset") from error


def load(path: str, point: Point) -> FoundState:
    """The state at `point` of the log, segment or checkpoint at `path`.

    Raises Failure when the place is before what the log and its snapshots reach. A batch is taken whole or
    not at all, so the state may end a little before an offset that lies inside one.
    """
    if log_source.is_checkpoint(path):
        return _from_checkpoint(path, point)
    found = _nearest(path, point)
    base = log_source.log_start(path)
    if found.end_offset < base and point.offset != found.end_offset:
        raise Failure(
            f"{path} begins at offset {base} and no snapshot beside it leads there;"
            " give a directory that has one, or a later --at"
        )
    engine = _engine(found)
    start = engine.end_offset
    for item in log_source.items(path, start or None):
        if not isinstance(item, ReadBatch):
            _note(found, log_source.damage_line(item))
            continue
        header = item.batch.header
        if header.next_offset <= start:
            continue
        if point.offset is not None and header.next_offset > point.offset:
            break
        if point.time_ms is not None and header.max_timestamp_ms > point.time_ms:
            break
        # A gap was told as damage: go on from where the log does.
        engine.builder.offset = header.base_offset
        _apply(engine, found, item)
    found.state = engine.state()
    if point.offset is not None and point.offset > found.end_offset and not found.problems:
        _check_reaches(path, found, point.offset)
    return found


def _check_reaches(path: str, found: FoundState, offset: int) -> None:
    """An offset inside a batch is rounded down; one beyond the log's end is the user's mistake."""
    for item in log_source.items(path, found.end_offset):
        if isinstance(item, ReadBatch) and item.batch.header.next_offset > found.end_offset:
            return
    raise Failure(
        f"{path} ends at offset {found.end_offset}, before {offset}; give --at {found.end_offset} or less"
    )


def _nearest(path: str, point: Point) -> FoundState:
    """The state of the newest whole snapshot between the log's start and the point, or the empty one."""
    base = log_source.log_start(path)
    limit = point.offset if point.offset is not None else log_source.segment_end(path)
    while True:
        position = log_source.snapshot_before(path, limit)
        if position is None or (position.offset < base and position.offset != point.offset):
            return FoundState(state=ReplayState(), snapshot=None)
        loaded = _from_checkpoint(log_source.snapshot_file(path, position), Point())
        is_early = point.time_ms is None or loaded.image.provenance.timestamp_ms <= point.time_ms
        if is_early and (not loaded.problems or base > 0):
            return loaded
        limit = position.offset - 1


def _from_checkpoint(path: str, point: Point) -> FoundState:
    """The state that a checkpoint file holds. Its name says where in the log it stands."""
    if point != Point():
        raise Failure(f"{path} is one state, not a history; leave out --at, or give its directory")
    found = FoundState(state=ReplayState(), snapshot=path)
    engine = _engine(found)
    timestamp_ms = -1
    for item in log_source.items(path):
        if not isinstance(item, ReadBatch):
            _note(found, log_source.damage_line(item))
            continue
        for decoded in item.records:
            if decoded.record.type_name == "SNAPSHOT_HEADER":
                timestamp_ms = getattr(decoded.record, "last_contained_log_timestamp", -1)
        _apply(engine, found, item)
    position = parse_snapshot_name(name_of(path))
    image = engine.state().image
    if position is not None:
        image = image.with_provenance(Provenance(position.offset, position.epoch, timestamp_ms))
    found.state = ReplayState(image)
    return found


def _engine(found: FoundState) -> Replayer:
    def skip(error: ReplayError) -> None:
        _note(found, f"skipped: {error}")

    return Replayer(found.state, on_error=skip)


def _apply(engine: Replayer, found: FoundState, item: ReadBatch) -> None:
    unknown = sum(
        isinstance(decoded.record, UnknownRecord | UnknownControlRecord) for decoded in item.records
    )
    if not unknown:
        engine.apply_batch(item.batch)
        return
    found.unknown += unknown
    header = item.batch.header
    for decoded in item.records:
        if not header.is_control and not isinstance(decoded.record, UnknownRecord | UnknownControlRecord):
            engine.apply(decoded.record, decoded.offset, header.leader_epoch, header.max_timestamp_ms)
    engine.builder.offset = header.next_offset
    engine.builder.epoch = header.leader_epoch
    engine.builder.timestamp_ms = header.max_timestamp_ms


def _note(found: FoundState, line: str) -> None:
    if len(found.problems) < _SHOWN_PROBLEMS:
        found.problems.append(line)
    elif len(found.problems) == _SHOWN_PROBLEMS:
        found.problems.append("more problems follow; see them with: metaquorum log dump")


def tree_of(found: FoundState, *, secrets: bool = False) -> Tree:
    return image_tree(found.image, secrets=secrets)


def events(path: str, problems: list[str]) -> Iterator[TimelineEvent]:
    """What happened, in order; lines about what could not be read are added to `problems`."""
    timeline = Timeline()
    for item in log_source.items(path):
        if not isinstance(item, ReadBatch):
            problems.append(log_source.damage_line(item))
            continue
        header = item.batch.header
        records = [(decoded.offset, decoded.record) for decoded in item.records]
        yield from timeline.batch(header.leader_epoch, header.max_timestamp_ms, records)


def event_text(event: TimelineEvent) -> str:
    return (
        f"{event.offset:>7}  {utc_text(event.time_ms)}  epoch {event.epoch:<3} {event.kind:<28} {event.text}"
    )


def event_json(event: TimelineEvent) -> dict[str, Any]:
    return {
        "offset": event.offset,
        "leaderEpoch": event.epoch,
        "createTime": event.time_ms,
        "kind": event.kind,
        "entity": event.entity,
        "text": event.text,
    }
