"""The tables of a state, sorted, filtered and cut into pages here and not in the browser.

Cells are the values that `log state --json` prints; partitions and topics are in `partitions`, by column.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from metaquorum.console.access import entries_about
from metaquorum.console.partitions import leaders_and_in_sync, partition_rows, topic_rows
from metaquorum.console.strip import ACTIVE, broker_states
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.features import metadata_version_name
from metaquorum.metadata.inspect.entities.diff import sort_key
from metaquorum.metadata.inspect.entities.views import config_path, entities_of, fields_of
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.walk.states import FoundState
from metaquorum.metadata.secrets import setting_shown
from metaquorum.metadata.settings.configs import key_of
from metaquorum.metadata.text.cause_text import brief_text
from metaquorum.metadata.text.tree import DEFAULT_ENTITY, config_kind
from metaquorum.storage.uuids import uuid_to_text

Row = dict[str, Any]
"""A row's cells by column; `path` is the entity that it is about."""
PAGE_MAX = 1000
GROUP_COLUMNS = ("group", "state", "topic", "partition", "committed", "end", "lag", "member", "host")


class TableQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What a page of a table shows: rows that contain `text`, of those that `show` selects, sorted by a
    column; `size` rows from number `start` on, or all rows if it is 0."""

    text: str = ""
    show: str = ""
    sort: str = ""
    descending: bool = False
    start: int = 0
    size: int = 100


class TablePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows, how many fit the query and how many there are."""

    columns: tuple[str, ...]
    rows: list[Row]
    count: int
    total: int
    shows: tuple[str, ...] = ()
    """What `show` may be."""


def table_of(
    kind: str, state: FoundState, query: TableQuery, events: Sequence[TimelineEvent] = ()
) -> TablePage:
    """A page of a table. Of `events`, those of the log, the settings have their last change.
    Raises InspectError for an unknown table or column."""
    if kind not in TABLES:
        raise InspectError(f"there is no table {kind!r}; known are {', '.join(TABLES)}")
    columns, rows = TABLES[kind]
    if kind in ("topics", "partitions"):
        _check_column(query.sort, columns)
        made = topic_rows if kind == "topics" else partition_rows
        page = made(state.image, query.text, query.show, (query.sort, query.descending), _window(query))
        return TablePage(
            columns=columns, rows=page.rows, count=page.fitting, total=page.total, shows=page.shows
        )
    listed = list(rows(state))
    total = len(listed)
    if kind == "acls" and query.text:
        about = {
            f"acl/{uuid_to_text(entry_id)}" for entry_id, _ in entries_about(state.image, query.text.strip())
        }
        listed = [row for row in listed if row["path"] in about or _has_text(row, query.text)]
        query = msgspec.structs.replace(query, text="")
    if kind == "configs":
        changes = _last_changes(events, state.end_offset)
        listed = [{**row, **changes.get(f"{row['path']}/{row['key']}", _NO_CHANGE)} for row in listed]
    found = page_of(columns, [row for row in listed if query.show in ("", row.get("state"))], query)
    shows = ("active", "fenced", "shutdown") if kind == "brokers" else ()
    return msgspec.structs.replace(found, total=total, shows=shows)


def page_of(columns: tuple[str, ...], rows: Iterable[Row], query: TableQuery) -> TablePage:
    """A page of rows: those with the query's text, sorted (what has no value is last either way), and cut.
    Raises InspectError for an unknown column."""
    listed = list(rows)
    total = len(listed)
    if query.text:
        listed = [row for row in listed if _has_text(row, query.text)]
    _check_column(query.sort, columns)
    if query.sort:
        present = [row for row in listed if row.get(query.sort) is not None]
        present.sort(key=lambda row: _order(row[query.sort]), reverse=query.descending)
        listed = present + [row for row in listed if row.get(query.sort) is None]
    start, end = _window(query)
    return TablePage(columns=columns, rows=listed[start:end], count=len(listed), total=total)


def _has_text(row: Row, text: str) -> bool:
    return any(text.lower() in cell_text(cell).lower() for cell in row.values())


def _window(query: TableQuery) -> tuple[int, int | None]:
    return query.start, query.start + min(query.size, PAGE_MAX) if query.size else None


def _check_column(name: str, columns: tuple[str, ...]) -> None:
    if name and name not in columns:
        raise InspectError(f"there is no column {name!r}; known are {', '.join(columns)}")


def _order(cell: Any) -> tuple[Any, ...]:
    """Numbers by value and before texts; paths part by part."""
    match cell:
        case bool() | int() | float():
            return (0, cell)
        case list() | dict():
            return (1, sort_key(cell_text(cell)))
    return (1, sort_key(str(cell)))


def cell_text(cell: Any) -> str:
    """A cell as text, for filters and CSV: lists with commas, nothing for what is absent."""
    match cell:
        case None:
            return ""
        case bool():
            return "true" if cell else "false"
        case list():
            return ",".join(map(cell_text, cell))
        case dict():
            return " ".join(f"{name}={cell_text(value)}" for name, value in cell.items())
    return str(cell)


def csv_text(page: TablePage) -> str:
    """A table as CSV (RFC 4180), with its columns in the first line. A cell that a spreadsheet would take for
    a formula begins with an apostrophe."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(page.columns)
    for row in page.rows:
        writer.writerow([_harmless(cell_text(row.get(name))) for name in page.columns])
    return out.getvalue()


def _harmless(text: str) -> str:
    is_number = text.removeprefix("-").replace(".", "", 1).isdigit()
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") and not is_number else text


def _brokers(state: FoundState) -> Iterable[Row]:
    topics = state.image.topics
    held = topics.replica_counts()
    leaders, in_sync = leaders_and_in_sync(state.image)
    for broker_id, name in broker_states(state.image).items():
        path = f"broker/{broker_id}"
        fields = fields_of(state.image, path) or {}
        yield {
            "path": path,
            "broker": broker_id,
            "state": name,
            "rack": fields["rack"],
            "leaders": leaders[broker_id],
            "replicas": held.get(broker_id, 0),
            "inSync": in_sync[broker_id],
            "directories": len(fields["logDirs"]),
            "listeners": [f"{name}://{at['host']}:{at['port']}" for name, at in fields["endPoints"].items()],
            "epoch": fields["epoch"],
        }


def _racks(state: FoundState) -> Iterable[Row]:
    """The load of each rack: the sums over its brokers."""
    racks: dict[str | None, Row] = {}
    for row in _brokers(state):
        of_rack = racks.setdefault(
            row["rack"], {"path": None, "rack": row["rack"], **dict.fromkeys(_SUMMED, 0), "ids": []}
        )
        of_rack["ids"].append(row["broker"])
        of_rack["brokers"] += 1
        of_rack["active"] += row["state"] == ACTIVE
        for name in ("leaders", "replicas", "inSync"):
            of_rack[name] += row[name]
    total = max(1, sum(row["leaders"] for row in racks.values()))
    for _, row in sorted(racks.items(), key=lambda item: item[0] or ""):
        yield {**row, "leadersShare": round(row["leaders"] / total, 4)}


_SUMMED = ("brokers", "active", "leaders", "replicas", "inSync")


def _configs(state: FoundState) -> Iterable[Row]:
    for resource, entries in state.image.configs.items_sorted():
        path = config_path(resource)
        for key in sorted(entries):
            key_row = key_of(resource.resource_type, key)
            default = None if key_row is None else key_row.default_text
            yield {
                "path": path,
                "resource": f"{config_kind(resource)}/{resource.name or DEFAULT_ENTITY}",
                "key": key,
                "value": setting_shown(key, entries[key]),
                "default": default,
                "differs": key_row is None or entries[key] != default,
            }


_NO_CHANGE: Row = {"changeTimestampMs": None, "changedBy": None}


def _last_changes(events: Sequence[TimelineEvent], end_offset: int) -> dict[str, Row]:
    """When each setting last changed before an offset, and who asked for it, by path. A setting that has no
    event (it is older than the log, or the log is still being read) is absent."""
    changes: dict[str, Row] = {}
    for event in events:
        if event.kind == "config changed" and event.offset < end_offset:
            asked = None if event.asked is None else brief_text(event.asked)
            row = {"changeTimestampMs": event.time_ms, "changedBy": asked}
            changes.update(dict.fromkeys(event.entities, row))
    return changes


def _features(state: FoundState) -> Iterable[Row]:
    """Only the levels of metadata.version are named after releases of Kafka."""
    for row in _kind("feature", "feature")(state):
        is_version = row["feature"] == "metadata.version"
        yield {**row, "release": metadata_version_name(row["level"]) if is_version else None}


def _kind(kind: str, name: str) -> Callable[[FoundState], Iterable[Row]]:
    """A table of all entities of a kind: the rest of their path as the column `name`, and their fields."""

    def rows(state: FoundState) -> Iterable[Row]:
        for path in entities_of(state.image, with_topics=False):
            head, _, rest = path.partition("/")
            if head == kind:
                yield {"path": path, name: rest or kind, **(fields_of(state.image, path) or {})}

    return rows


def _users(state: FoundState) -> Iterable[Row]:
    for path in entities_of(state.image, with_topics=False):
        kind, _, rest = path.partition("/")
        if kind == "scram":
            mechanism, _, user = rest.partition("/")
            fields = fields_of(state.image, path) or {}
            yield {"path": path, "user": user, "mechanism": mechanism, "iterations": fields.get("iterations")}


def _quotas(state: FoundState) -> Iterable[Row]:
    for row in _kind("quota", "entity")(state):
        for key, value in row.items():
            if key not in ("path", "entity"):
                yield {"path": row["path"], "entity": row["entity"], "key": key, "value": value}


def _quorum(state: FoundState) -> Iterable[Row]:
    quorum = state.quorum
    voters = set(quorum.voters)
    for node in sorted(voters | set(state.image.controllers)):
        registration = fields_of(state.image, f"controller/{node}")
        yield {
            "path": "quorum" if registration is None else f"controller/{node}",  # a voter may have none
            "controller": node,
            "leads": quorum.has_leader and quorum.leader_id == node,
            "voter": node in voters,
            "listeners": [
                f"{name}://{at['host']}:{at['port']}"
                for name, at in (registration or {}).get("endPoints", {}).items()
            ],
        }


def _nothing(state: FoundState) -> Iterable[Row]:
    return ()


TABLES: dict[str, tuple[tuple[str, ...], Callable[[FoundState], Iterable[Row]]]] = {
    "brokers": (
        ("broker", "state", "rack", "leaders", "replicas", "inSync", "directories", "listeners", "epoch"),
        _brokers,
    ),
    "racks": (("rack", *_SUMMED[:3], "leadersShare", *_SUMMED[3:], "ids"), _racks),
    "topics": (("topic", "partitions", "replicas", "leaderless", "underMinIsr", "outOfSync"), _nothing),
    "partitions": (
        ("topic", "partition", "state", "leader", "isr", "replicas", "leaderEpoch", "partitionEpoch"),
        _nothing,
    ),
    "configs": (
        ("resource", "key", "value", "default", "differs", *_NO_CHANGE),
        _configs,
    ),
    "features": (("feature", "level", "release"), _features),
    "acls": (
        (
            *("principal", "permissionType", "operation", "resourceType", "resourceName"),
            *("patternType", "host"),
        ),
        _kind("acl", "id"),
    ),
    "users": (("user", "mechanism", "iterations"), _users),
    "quotas": (("entity", "key", "value"), _quotas),
    "tokens": (
        ("token", "owner", "requester", "renewers", "issueTimestampMs", "expirationTimestampMs"),
        _kind("token", "token"),
    ),
    "producer-ids": (("producer-ids", "nextProducerId"), _kind("producer-ids", "producer-ids")),
    "quorum": (("controller", "leads", "voter", "listeners"), _quorum),
}
"""The columns of each table, and how its rows are made."""
