"""`spark.read.format("metadata_log")`: records of metadata logs as a Spark table, in batches or as a stream.

One partition of a read is a piece of a segment that starts at a batch boundary, or a checkpoint.

Options (names are case-insensitive; several paths are joined by commas in `path`, or given as a JSON list in
`paths`, or to `load` as a list):

type         all (default): the wide view. damage: what cannot be read. Or a record type: its typed table.
types        for the wide view: record types to keep, joined by commas
fromTime, toTime        inclusive; 2026-11-21T03:07:57Z, 2026-11-21, or Unix ms
fromOffset, toOffset    inclusive
checkpoints  false (default). true: also the newest snapshot of each log. only: nothing but snapshots
cluster      names the cluster of all paths
nodes        all (default): every node's copy. one: a single history, from any of the nodes
dialect      for type=damage: kraft, or a release such as 3.7: also reports what such a cluster does not write
secrets      false (default): secrets are (redacted) in texts and null in binary columns. true: shown
splitBytes   approximate size of a piece of a segment (default 32 MiB)
onDamage     for a stream: fail (default) at damaged or missing records, and say where. skip: continue past
maxBytesPerTrigger, maxFilesPerTrigger      for a stream: about as much of the logs, or as many segments, per
             micro-batch, at least one batch of records; give one of them (Spark 4.2 or newer)
"""

from __future__ import annotations

import datetime
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from metaquorum.metadata.inspect.log.points import parse_time_ms
from metaquorum.pipeline.intervals.moments import MAX_TIME_MS
from metaquorum.pipeline.logs.damage import Dialect, parse_dialect
from metaquorum.pipeline.logs.follow import (
    LogEnd,
    StreamOffset,
    ends_of,
    limited_ends,
    log_ends,
    pieces_between,
)
from metaquorum.pipeline.logs.pieces import Piece, Selection, type_named
from metaquorum.pipeline.logs.places import Identities, LogPlace, NoLogsError, find_logs
from metaquorum.pipeline.logs.survey import SPLIT_BYTES
from metaquorum.pipeline.stores.address import PathError, address
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.tables import DAMAGE as DAMAGE_TABLE
from metaquorum.pipeline.tables import RECORDS
from metaquorum.storage.errors import StorageError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before Spark 4.2 a micro-batch has everything that is there

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Marks a source for the trigger availableNow."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


ALL, DAMAGE = "all", "damage"

OPTIONS = (
    *("path", "paths", "type", "types", "fromtime", "totime", "fromoffset", "tooffset", "checkpoints"),
    *("cluster", "nodes", "dialect", "splitbytes", "secrets", "ondamage"),
    *("maxbytespertrigger", "maxfilespertrigger"),
)


class OptionError(ValueError):
    """An option of the data source is wrong. The text says what to write."""


class Options:
    """The options after their check."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = {key.lower(): value for key, value in given.items()}
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise OptionError(f"metadata_log has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
        self.paths = _paths(options)
        kind = options.get("type", ALL)
        self.type = kind.lower() if kind.lower() in (ALL, DAMAGE) else _type(kind)
        types = tuple(_type(name) for name in options.get("types", "").split(",") if name.strip())
        if types and self.type != ALL:
            raise OptionError("the option types filters the wide view; leave it out, or leave out type")
        self.selection = Selection(
            types=types,
            from_ms=_time(options, "fromtime"),
            to_ms=_time(options, "totime"),
            from_offset=_number(options, "fromoffset"),
            to_offset=_number(options, "tooffset"),
            secrets=_choice(options, "secrets", ("false", "true")) == "true",
        )
        self.checkpoints = _choice(options, "checkpoints", ("false", "true", "only"))
        self.one_history = _choice(options, "nodes", ("all", "one")) == "one"
        self.cluster = options.get("cluster")
        self.dialect: Dialect | None = None
        if "dialect" in options:
            try:
                self.dialect = parse_dialect(options["dialect"])
            except ValueError as error:
                raise OptionError(f"dialect: {error}; or kraft") from None
        self.split_bytes = _number(options, "splitbytes") or SPLIT_BYTES
        self.skips_damage = _choice(options, "ondamage", ("fail", "skip")) == "skip"
        self.max_bytes = _number(options, "maxbytespertrigger")
        self.max_files = _number(options, "maxfilespertrigger")
        if self.max_bytes is not None and self.max_files is not None:
            raise OptionError("give maxBytesPerTrigger or maxFilesPerTrigger, not both")
        if 0 in (self.max_bytes, self.max_files):
            raise OptionError("maxBytesPerTrigger and maxFilesPerTrigger are at least 1")

    def places(self, disk: StoreDisk | None = None, earlier: Identities | None = None) -> list[LogPlace]:
        """The logs below the paths, listed by `disk`. `earlier`: what was read before. Raises NoLogsError."""
        return find_logs(disk or StoreDisk(), self.paths, self.cluster, earlier)


def _paths(options: Mapping[str, str]) -> list[str]:
    text = options.get("paths")
    if text:
        try:
            found = json.loads(text)
        except json.JSONDecodeError:
            found = [text]
        paths = [str(path) for path in found]
    else:
        paths = [path.strip() for path in options.get("path", "").split(",")]
    try:
        paths = [address(path) for path in paths if path]
    except PathError as error:
        raise OptionError(str(error)) from None
    if not paths:
        raise OptionError(
            'metadata_log needs a path: load("/var/lib/kafka/metadata"), or option("path", ...)'
        )
    return paths


def _type(text: str) -> str:
    try:
        return type_named(text)
    except ValueError as error:
        raise OptionError(f"{error}; or all, or damage") from None


def _time(options: Mapping[str, str], name: str) -> int | None:
    try:
        return parse_time_ms(options[name]) if name in options else None
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"{name}: {text!r} is not a number of 0 or more")
    return int(text)


def _choice(options: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    text = options.get(name, allowed[0]).lower()
    if text not in allowed:
        raise OptionError(f"{name}: {text!r} is not one of {', '.join(allowed)}")
    return text


class SourceError(Exception):
    """A log cannot be read as requested. The text says where, and what to do."""


class PiecePartition(InputPartition):
    """A piece of a file or, for damage, a whole log. `whole_to`: in a stream that fails at damage, the offset
    up to which every batch must exist."""

    def __init__(
        self, piece: Piece | None, location: LogPlace | None = None, whole_to: int | None = None
    ) -> None:
        self.piece = piece
        self.location = location
        self.whole_to = whole_to

    def require(self) -> None:
        """Raises SourceError if this executor cannot read what the driver found."""
        from metaquorum.pipeline.logs.places import require_path, unseen, where

        path = self.piece.path if self.piece is not None else self.location.path if self.location else None
        try:
            if path is not None:
                require_path(StoreDisk(), path)
        except (OSError, StorageError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise SourceError(unseen(where(), path or "", said)) from None


_HIDE = "SPARK_HIDE_TRACEBACK"
P = ParamSpec("P")
R = TypeVar("R")


def _in_one_line(method: Callable[P, R]) -> Callable[P, R]:
    """Reports a user's mistake as Spark's error class and one line; any other error keeps its traceback.
    Spark's worker reads the variable when it reports an exception, and then continues."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        os.environ.pop(_HIDE, None)
        try:
            return method(*args, **kwargs)
        except (OptionError, NoLogsError, StorageError):
            os.environ[_HIDE] = "1"
            raise

    return call


class MetadataLogSource(DataSource):
    """The data source `metadata_log`."""

    @classmethod
    def name(cls) -> str:
        return "metadata_log"

    @_in_one_line
    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructField, StructType

        from metaquorum.pipeline.arrow import arrow_schema_of

        kind = Options(self.options).type
        meanings = {
            column.name: column.meaning for column in (DAMAGE_TABLE if kind == DAMAGE else RECORDS).columns
        }
        fields = []
        for at in from_arrow_schema(arrow_schema_of(kind)):
            meaning = meanings.get(at.name, "").removesuffix(" (partition column)")
            more = {"comment": meaning} if meaning else {}
            fields.append(StructField(at.name, at.dataType, at.nullable, {**at.metadata, **more}))
        return StructType(fields)

    @_in_one_line
    def reader(self, schema: StructType) -> MetadataLogReader:
        return MetadataLogReader(Options(self.options))

    @_in_one_line
    def streamReader(self, schema: StructType) -> MetadataLogStreamReader:
        options = Options(self.options)
        if options.type == DAMAGE or options.checkpoints != "false" or options.one_history:
            raise OptionError(
                "a stream has records of every node's log: leave out type=damage, checkpoints, nodes"
            )
        return MetadataLogStreamReader(options)


class MetadataLogReader(DataSourceReader):
    """Reads the present content of the logs."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._selection = options.selection
        self._nothing = False
        self._only: list[tuple[str, frozenset[Any]]] = []
        """Names and values of filters on columns that have one value per log."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Takes filters into the reader: cluster and node, which leave out whole logs, bounds of offset
        and timestamp and, in the wide view, the type. Spark checks the others, and lists those that
        were taken in EXPLAIN FORMATTED.

        A filter on the node stays with Spark if one history is read.
        """
        for one in filters:
            if not self._take_logs(one) and (self._options.type == DAMAGE or not self._take(one)):
                yield one

    def _take_logs(self, condition: Filter) -> bool:
        if self._options.one_history and condition.attribute == ("node_id",):  # type: ignore[attr-defined]
            return False  # which node's log is read depends on all of them
        match condition:
            case EqualTo(attribute=("cluster" | "node_id",), value=value):
                self._only.append((condition.attribute[0], frozenset([value])))
            case In(attribute=("cluster" | "node_id",), value=values):
                self._only.append((condition.attribute[0], frozenset(values)))
            case _:
                return False
        return True

    def _is_wanted(self, location: LogPlace) -> bool:
        given = {"cluster": location.cluster, "node_id": location.node_id}
        return all(given[name] is not None and given[name] in values for name, values in self._only)

    def _take(self, condition: Filter) -> bool:
        """Whether the reader fully applies the filter."""
        match condition:
            case EqualTo(attribute=("type",), value=str(name)) if self._options.type == ALL:
                return self._take_types((name,))
            case In(attribute=("type",), value=names) if self._options.type == ALL:
                return self._take_types(tuple(str(name) for name in names))
            case EqualTo(attribute=("offset",), value=int(value)):
                return self._take_offsets(value, value)
            case GreaterThanOrEqual(attribute=("offset",), value=int(value)):
                return self._take_offsets(value, None)
            case GreaterThan(attribute=("offset",), value=int(value)):
                return self._take_offsets(value + 1, None)
            case LessThanOrEqual(attribute=("offset",), value=int(value)):
                return self._take_offsets(None, value)
            case LessThan(attribute=("offset",), value=int(value)):
                return self._take_offsets(None, value - 1)
            case _:
                bounds = _time_bounds(condition)
                return bounds is not None and self._take_times(*bounds)

    def _take_types(self, names: tuple[str, ...]) -> bool:
        known = self._selection.types
        kept = tuple(name for name in names if not known or name in known)
        if not kept:
            self._nothing = True
        self._selection = _replaced(self._selection, types=kept)
        return True

    def _take_offsets(self, low: int | None, high: int | None) -> bool:
        at = self._selection
        self._selection = _replaced(
            at, from_offset=_tighter(max, at.from_offset, low), to_offset=_tighter(min, at.to_offset, high)
        )
        return True

    def _take_times(self, low: int, high: int) -> bool:
        at = self._selection
        self._selection = _replaced(
            at, from_ms=_tighter(max, at.from_ms, low), to_ms=_tighter(min, at.to_ms, high)
        )
        return True

    @_in_one_line
    def partitions(self) -> Sequence[InputPartition]:
        from metaquorum.pipeline.logs.cut import damage_places, record_pieces

        if self._nothing:
            return [PiecePartition(None)]
        options = self._options
        places = [place for place in options.places() if self._is_wanted(place)]
        if options.type == DAMAGE:
            return [PiecePartition(None, place) for place in damage_places(places)] or [PiecePartition(None)]
        pieces = record_pieces(
            places,
            self._selection,
            checkpoints=options.checkpoints,
            one_history=options.one_history,
            split_bytes=options.split_bytes,
        )
        return [PiecePartition(piece) for piece in pieces] or [PiecePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from metaquorum.pipeline.arrow import damage_batches, record_batches

        if not isinstance(partition, PiecePartition):
            raise TypeError(f"a partition of another source: {partition!r}")
        partition.require()
        if partition.location is not None:
            yield from damage_batches(partition.location, self._options.dialect)
        elif partition.piece is not None:
            yield from record_batches(self._options.type, partition.piece, self._selection)


def _replaced(selection: Selection, **changes: Any) -> Selection:
    import msgspec

    return msgspec.structs.replace(selection, **changes)


def _tighter(choose: Any, first: int | None, second: int | None) -> int | None:
    bounds = [bound for bound in (first, second) if bound is not None]
    return choose(bounds) if bounds else None


def _time_bounds(condition: Filter) -> tuple[int, int] | None:
    """The first and the last Unix ms of valid times that a filter on the timestamp accepts.
    None for any other filter."""
    if getattr(condition, "attribute", None) != ("timestamp",):
        return None
    time_us = _unix_us(getattr(condition, "value", None))
    if time_us is None:
        return None
    at_least, at_most = -(-time_us // 1000), time_us // 1000
    match condition:
        case EqualTo():
            return max(0, at_least), at_most
        case GreaterThanOrEqual():
            return max(0, at_least), MAX_TIME_MS
        case GreaterThan():
            return max(0, at_most + 1), MAX_TIME_MS
        case LessThanOrEqual():
            return 0, at_most
        case LessThan():
            return 0, at_least - 1
    return None


def _unix_us(value: Any) -> int | None:
    if not isinstance(value, datetime.datetime):
        return None
    at = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return (at - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


_CONTINUED = "to continue past it, set the option onDamage to skip; type=damage lists every such place"


def _require_offset(log: str, offset: int, pieces: list[Piece]) -> None:
    """Raises SourceError if a stream should continue at a record that is gone."""
    first = pieces[0].offset or 0
    if first > offset:
        raise SourceError(
            f"{log}: the records from offset {offset} to {first - 1} were deleted before the stream read "
            f"them; {_CONTINUED}"
        )


class MetadataLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows logs that grow. Its offset has the position of each log, by path."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._listed: list[LogPlace] = []
        """The logs as the planned trigger found them: they are listed once per trigger."""
        self._identities = Identities()
        self._seen: dict[str, LogEnd] = {}
        """The ends of the logs as they were last seen."""
        self._target: dict[str, LogEnd] | None = None
        """Under the trigger availableNow: the ends of the logs when the query began."""

    def initialOffset(self) -> StreamOffset:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that the options give."""
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.max_files is not None:
            return ReadMaxFiles(self._options.max_files)
        return ReadAllAvailable()

    @_in_one_line
    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends at the present ends of the logs, however many micro-batches it takes."""
        self._target = self._look({})

    def reportLatestOffset(self) -> StreamOffset | None:
        """The ends of the logs as the last trigger saw them."""
        return {path: list(end) for path, end in self._seen.items()} or None

    def _look(self, starts: Mapping[str, LogEnd]) -> dict[str, LogEnd]:
        disk = StoreDisk()
        self._listed = self._options.places(disk, self._identities)
        newer = {path: end for path, end in self._seen.items() if end.offset >= starts.get(path, end).offset}
        self._seen = log_ends(self._listed, {**starts, **newer}, disk)
        return self._seen

    @_in_one_line
    def latestOffset(self, start: StreamOffset, limit: Any) -> StreamOffset:
        """The present end of every log, or an earlier place within the limit. A log that became shorter, or
        is gone, keeps its old end."""
        starts = ends_of(start)
        if self._target is None:
            ends = self._look(starts)
        else:
            ends = {path: max(end, starts.get(path, end)) for path, end in self._target.items()}
        max_bytes, max_files = getattr(limit, "max_bytes", None), getattr(limit, "max_files", None)
        if max_bytes is not None or max_files is not None:
            ends = limited_ends(self._listed, starts, ends, max_bytes=max_bytes, max_files=max_files)
        return {**start, **{path: list(end) for path, end in ends.items()}}

    @_in_one_line
    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        options, starts, ends = self._options, ends_of(start), ends_of(end)
        partitions: list[PiecePartition] = []
        listed = self._listed if ends.keys() <= {place.path for place in self._listed} else options.places()
        for log_place in listed:
            begins, stops = starts.get(log_place.path, LogEnd()), ends.get(log_place.path, LogEnd())
            pieces = pieces_between(log_place, begins, stops, options.split_bytes)
            whole_to = None if options.skips_damage else stops.offset
            if log_place.path in starts and pieces and whole_to is not None:
                _require_offset(log_place.path, begins.offset, pieces)
            partitions += [PiecePartition(piece, whole_to=whole_to) for piece in pieces]
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from metaquorum.pipeline.arrow import record_batches
        from metaquorum.pipeline.logs.pieces import DamagedError

        if not isinstance(partition, PiecePartition) or partition.piece is None:
            return
        partition.require()
        selection, whole_to = self._options.selection, partition.whole_to
        try:
            yield from record_batches(self._options.type, partition.piece, selection, whole_to=whole_to)
        except DamagedError as error:
            raise SourceError(f"{error}; {_CONTINUED}") from None

    def commit(self, end: StreamOffset) -> None:
        """Does nothing: there is no state to keep."""

    def stop(self) -> None:
        """Does nothing: no resources are open."""
