"""What the page shows at a moment or between two: each view asks the functions of the log tools.

Every answer has `command`: the words of the command that prints the same.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from itertools import islice
from typing import Any

from msgspec.structs import asdict

from metaquorum.console.access import access, entries_about
from metaquorum.console.event_reader import is_users
from metaquorum.console.moments import place_of
from metaquorum.console.partitions import SHOWS, rows_in_trouble
from metaquorum.console.problems import ACTIVE_BROKERS, problems, severities
from metaquorum.console.record_bytes import record_bytes
from metaquorum.console.strip import ACTIVE, Strip, broker_states
from metaquorum.console.tables import GROUP_COLUMNS, TablePage, TableQuery, page_of, table_of
from metaquorum.lines import one_line
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.answers import (
    bisection_json,
    change_json,
    event_json,
    explanation_json,
    headline,
    span_json,
)
from metaquorum.metadata.inspect.causes.rule import CRITICAL, DETAIL, INFO, SPLIT_MS, WARNING
from metaquorum.metadata.inspect.checks.bisect import bisect
from metaquorum.metadata.inspect.checks.checks import predicate_check
from metaquorum.metadata.inspect.checks.predicate import PredicateError, compile_predicate
from metaquorum.metadata.inspect.entities.diff import EntityChange, diff_points
from metaquorum.metadata.inspect.entities.history import Span, history
from metaquorum.metadata.inspect.entities.targets import EntityTarget, continuations, parse_target, suggestion
from metaquorum.metadata.inspect.entities.views import Wanted, entities_below, entities_of, resolved
from metaquorum.metadata.inspect.log.clock import clock_of
from metaquorum.metadata.inspect.log.coverage import Limits, known_from
from metaquorum.metadata.inspect.log.entities import EntityNamer, entity_problem, is_below
from metaquorum.metadata.inspect.log.log import Item, MetadataLog, damage_line
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.walk.states import FoundState
from metaquorum.metadata.inspect.why.explain import explain
from metaquorum.metadata.text.dump import payload_json
from metaquorum.metadata.text.tree import acl_text
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.uuids import uuid_to_text

Answer = dict[str, Any]
Asking = Callable[[], list[dict[str, Any]]]
"""Asks a running cluster for its groups (a row for each partition of a group) or voters. Raises
InspectError."""
ENTITIES_MAX = 200
SPANS_MAX = 500
RECORDS_MAX = 200
SEARCHED_MAX = 20
KEPT_DIFFS, KEPT_CHANGES = 4, 20_000
"""How many differences between two moments are kept for the next page of their table, and how many changes
of all but the newest."""
_PROBLEMS_MAX = 50
VOTERS_S = 3.0
"""How long an answer of the voters is shown before they are asked again."""
_NO_VOTERS = (
    "The log says who the voters are. Which of them answer now, a running cluster says: start metaquorum"
    " console --bootstrap HOST:PORT."
)
_NO_GROUPS = (
    "A metadata log has no groups and no lag: a running cluster is asked for them. Start metaquorum console"
    " --bootstrap HOST:PORT with the address of a broker."
)


class Views:
    """The views of one log. Methods may be called from several threads; those that name something raise
    InspectError if the log does not have it."""

    def __init__(
        self,
        strip: Strip,
        words: tuple[str, ...],
        groups: Asking | None = None,
        voters: Asking | None = None,
    ) -> None:
        """`words` are the paths that were given, or `--bootstrap`, its value and other options, for command
        lines; `groups` and `voters` ask a running cluster."""
        self._groups = groups
        self._voters = voters
        self._asking_voters = threading.Lock()
        self._voters_asked_s = -VOTERS_S
        self._last_voters: list[Answer] = []
        self.moments = strip.moments
        self.strip = strip
        self._log: MetadataLog = strip.moments.log
        self._words = words
        self._is_live = words[:1] == ("--bootstrap",)
        self._last_log: Answer = {}
        self._diffs: OrderedDict[tuple[int, int, str], list[EntityChange]] = OrderedDict()

    def command(self, tool: str, *words: str) -> str:
        """A command line of `metaquorum log`. Tools that read one log get the first path."""
        takes_all = self._is_live or tool in ("timeline", "summary")
        paths = self._words if takes_all else self._words[:1]
        return shlex.join(["metaquorum", "log", tool, *paths, *words])

    def log(self) -> Answer:
        """Which log it is, from where to where it reaches and what is wrong with it. Of a log that can no
        longer be read, what was known last."""
        try:
            self._last_log = self._log_now()
        except Exception as error:
            if not is_users(error) or not self._last_log:
                raise
            return {**self._last_log, "trouble": one_line(error)}
        return self._last_log

    def _log_now(self) -> Answer:
        log, clock = self._log, self.moments.clock()
        identity = log.identity
        newest = self.strip.last_change()
        return {
            "name": _address(self._words[1]) if self._is_live else ", ".join(self._words),
            "clusterId": None if identity is None else identity.cluster_id,
            "startOffset": log.start_offset,
            "knownFrom": known_from(log),
            "endOffset": max(clock.end_offset, log.start_offset),
            "firstMs": clock.first_ms,
            "lastMs": clock.last_ms,
            "isState": log.is_checkpoint,
            "progress": self.strip.progress,
            "version": self.strip.version,
            "trouble": self.strip.trouble,
            "problems": self.strip.problems[:_PROBLEMS_MAX],
            "uncovered": [missing.tree() for missing in self.strip.uncovered],
            "unknownRecords": self.strip.unknown,
            "critical": None if newest is None else event_json(newest),
        }

    def moment(self, state: FoundState) -> Answer:
        """Where a state is, and what it lacks."""
        made = state.image.provenance
        quorum = state.quorum
        return {
            "offset": state.end_offset,
            "timeMs": None
            if made.timestamp_ms < 0
            else clock_time(self._log, made.offset, made.timestamp_ms),
            "epoch": made.epoch,
            "leader": quorum.leader_id if quorum.has_leader else None,
            "leaderEpoch": quorum.epoch if quorum.has_leader else None,
            "notes": [
                *state.problems,
                *(missing.line for missing in state.coverage),
                *([] if state.shown is None else [state.shown.text]),
                *(
                    [f"{state.unknown} records are of a newer release: what is not known changed nothing"]
                    * bool(state.unknown)
                ),
            ],
        }

    def state(self, where: str | None) -> FoundState:
        """The state at a place in the words of the tools."""
        return self.moments.state(place_of(where))

    def overview(self, where: str | None) -> Answer:
        """Health in five numbers, and what is wrong, the worst first."""
        state = self.state(where)
        image = state.image
        brokers = broker_states(image)
        active = sum(name == ACTIVE for name in brokers.values())
        rows = {show: rows_in_trouble(image, show) for show in SHOWS}
        lines = problems(state, brokers, rows, self.strip.losses)
        worst = severities(lines)
        numbers = [
            {
                "name": "active brokers",
                "value": active,
                "of": len(brokers),
                "severity": worst.get(ACTIVE_BROKERS, ""),
                "table": "brokers",
                "show": "",
            },
            *(
                {
                    "name": name,
                    "value": len(rows[show]),
                    "of": image.topics.partition_count,
                    "severity": worst.get(show, ""),
                    "table": "partitions",
                    "show": show,
                }
                for show, name in zip(
                    SHOWS, ("leaderless", "under min ISR", "out of sync", "reassigning"), strict=True
                )
            ),
        ]
        return {
            **self.moment(state),
            "numbers": numbers,
            "topics": len(image.topics),
            "partitions": image.topics.partition_count,
            "problems": lines[:_PROBLEMS_MAX],
            "warning": self._newest_warning(state.end_offset),
            "progress": self.strip.progress,
            "command": self.command("state", "--at", str(state.end_offset)),
        }

    def _newest_warning(self, end_offset: int) -> Answer | None:
        """The newest event before an offset that is more than info."""
        before = (event for event in reversed(self.strip.marked) if event.offset < end_offset)
        return next(map(event_json, before), None)

    def table(self, kind: str, where: str | None, query: TableQuery) -> tuple[TablePage, FoundState]:
        """A page of a table at a place."""
        state = self.state(where)
        return table_of(kind, state, query, self.strip.events), state

    def table_command(self, kind: str, state: FoundState) -> str:
        """The command for the entities of a table."""
        return self.command("state", entity_of_table(kind), "--at", str(state.end_offset))

    def groups(self, query: TableQuery) -> Answer:
        """The groups of a running cluster now, and their lag: no record of the log is about them. Of a log in
        files, `hint` says what to do."""
        if self._groups is None:
            return {"hint": _NO_GROUPS, "command": ""}
        page = page_of(GROUP_COLUMNS, self._groups(), query)
        words = ["metaquorum", "groups", "describe", "--all", *self._words]
        return {**asdict(page), "hint": "", "command": shlex.join(words)}

    def voters(self) -> Answer:
        """Which voters of a running quorum answer now, and how far they are; of a log in files, `hint` says
        what to do."""
        if self._voters is None:
            return {"hint": _NO_VOTERS, "rows": []}
        with self._asking_voters:  # several pages wait for one answer
            if time.monotonic() - self._voters_asked_s >= VOTERS_S:
                self._last_voters = self._voters()
                self._voters_asked_s = time.monotonic()
            return {"hint": "", "rows": self._last_voters}

    def entity(self, path: str, where: str | None) -> Answer:
        """The fields of an entity and of those below it."""
        _check(path)
        state = self.state(where)
        path = resolved(path, state.image)
        below = list(islice(entities_below(state.image, Wanted(path), state.quorum), ENTITIES_MAX + 1))
        return {
            **self.moment(state),
            "path": path,
            "exists": bool(below),
            "hint": "" if below else suggestion(path, state.image),
            "entities": [{"path": each, "fields": fields} for each, fields in below[:ENTITIES_MAX]],
            "isCut": len(below) > ENTITIES_MAX,
            "command": self.command("state", path, "--at", str(state.end_offset)),
        }

    def why(self, target: str, where: str | None, last: int) -> Answer:
        """The records that led to the state of an entity, the newest first, and a sentence about them."""
        wanted = _target(target)
        state = self.state(where)
        entity = resolved(wanted.entity, state.image)
        wanted = EntityTarget(entity=entity, field=wanted.field)
        moment = END if self._log.is_checkpoint else Point(offset=state.end_offset)
        is_partition = wanted.partition is not None
        parts = self.moments.parts_about(entity, state.end_offset, changes=is_partition, beside_ms=SPLIT_MS)
        brokers = self.moments.brokers
        answer = explain(
            self._log, wanted, moment, past_corruption=True, last=last, parts=parts, brokers=brokers
        )
        links = answer.links[-last:][::-1]
        return {
            **explanation_json(answer, links),
            "headline": headline(answer),
            "command": self.command("why", str(wanted), "--at", str(state.end_offset), "--last", str(last)),
        }

    def history(self, target: str, where: str | None) -> Answer:
        """The newest states of an entity over the whole log, the newest first."""
        wanted = _target(target)
        state = self.state(where)
        limits, entity = Limits(), resolved(wanted.entity, state.image)
        spans = self._newest_spans(entity, wanted.field, limits)
        return {
            "spans": [span_json(span) for span in spans[:SPANS_MAX]],
            "isCut": len(spans) > SPANS_MAX,
            "untilTime": self.moments.clock().last_ms,
            "uncovered": limits.coverage.tree(),
            "command": self.command("history", str(wanted)),
        }

    def _newest_spans(self, entity: str, field: str | None, limits: Limits) -> list[Span]:
        """The newest states, one more than are shown if there are so many: those of many are read from near
        the log's end."""
        wanted = Wanted(entity, field)
        for begun in self.moments.states_before(entity):
            parts = self.moments.parts_behind(entity, begun)
            rows = history(self._log, wanted, past_corruption=True, parts=parts, begun=begun)
            spans = _newest(span for span in rows if span.cause is not None)
            if len(spans) > SPANS_MAX:
                return spans
        whole = self.moments.parts_about(entity, changes=True)
        return _newest(history(self._log, wanted, limits=limits, past_corruption=True, parts=whole))

    def events(self, query: TableQuery, severity: str, window: tuple[str | None, str | None]) -> Answer:
        """Events of at least a severity, about an entity (`show`), with a text, from one place to another."""
        wanted, text = (
            at_least(_one_of(severity or WARNING, (DETAIL, INFO, WARNING, CRITICAL))),
            query.text.lower(),
        )
        start, until = (None if end is None else place_of(end) for end in window)
        low = None if start is None else self._offset(start, first=True)
        high = None if until is None else self._offset(until, first=False)
        listed = [
            event
            for event in self.strip.events
            if event.severity in wanted
            and (low is None or event.offset >= low)
            and (high is None or event.offset < high)
            and (not query.show or event.is_about(query.show))
            and (not text or text in event.text.lower() or text in event.kind)
        ]
        ordered = listed[::-1] if query.descending else listed
        ends = [
            word for name, end in zip(("--from", "--to"), window, strict=True) if end for word in (name, end)
        ]
        about = ["--entity", query.show] if query.show else []
        return {
            "events": [
                event_json(event) for event in ordered[query.start : query.start + (query.size or 100)]
            ],
            "count": len(listed),
            "progress": self.strip.progress,
            "command": self.command("timeline", "--severity", severity or WARNING, *about, *ends),
        }

    def _offset(self, point: Point, *, first: bool) -> int:
        """Where a window begins (`first`: with what happened at that time) or ends; a time before the log is
        its first record."""
        if point.time_ms is not None:
            point, _ = clock_of(self._log).place(point.time_ms, first=first)
        return self.moments.state(point).end_offset if point.offset is None else point.offset

    def records(self, start: int, count: int, entity: str) -> Answer:
        """Records from an offset on (about an entity, or about what is below it), with the entities that each
        is about."""
        first, count = max(start, self._log.start_offset), min(count, RECORDS_MAX)
        log = self._log
        end = max(log.start_offset, clock_of(log).end_offset)
        namer = self._namer(first)
        rows: list[Answer] = []
        for item in self._items(first, entity):
            if len(rows) >= count:
                break
            if isinstance(item, Damage):
                if item.offset >= first:
                    rows.append({"offset": item.offset, "damage": damage_line(item)})
                continue
            header = item.batch.header
            for decoded in item.records:
                about = namer.entities(decoded.record)
                is_wanted = not entity or any(is_below(path, entity) for path in about)
                if decoded.offset < first or not is_wanted:
                    continue
                rows.append(
                    {
                        "offset": decoded.offset,
                        "timeMs": decoded.timestamp_ms,
                        "epoch": header.leader_epoch,
                        "batchOffset": header.base_offset,
                        "entities": list(about),
                        **payload_json(decoded.record, decoded.version),
                    }
                )
        about_entity = ["--entity", entity] if entity else []
        return {
            "records": rows[:count],
            "endOffset": end,
            "command": self.command("dump", "--from-offset", str(first), *about_entity),
        }

    def _items(self, first: int, entity: str) -> Iterator[Item]:
        """The log's batches from an offset on; those of parts that do not mention the entity may be left
        out."""
        ranges = self.moments.ranges_about(entity, changes=True) if entity else None
        if ranges is None:
            yield from self._log.items(first or None)
            return
        for start, end in ranges:
            if end <= first:
                continue
            for item in self._log.items(max(first, start)):
                if (item.offset if isinstance(item, Damage) else item.batch.header.base_offset) >= end:
                    break
                yield item

    def _namer(self, first: int) -> EntityNamer:
        """A namer for the records from an offset on: of the topics that exist there."""
        known = known_from(self._log)
        if known is None:
            return self._log.namer()
        topics = self.moments.state(Point(offset=max(first, known))).image.topics
        return EntityNamer({topic.topic_id: topic.name for topic in topics.all()})

    def record(self, offset: int) -> Answer:
        """One record down to its bytes, with its batch."""
        answer = record_bytes(self._log, offset)
        command = self.command("dump", "--from-offset", str(offset), "--to-offset", str(offset), "--causes")
        return {**answer, "command": command}

    def diff(self, places: tuple[str | None, str | None], entity: str, query: TableQuery) -> Answer:
        """What differs between two moments, and the record that made each difference."""
        if entity:
            _check(entity)
        if self._log.is_checkpoint:
            raise InspectError("this is a single state, which has one moment; open the directory of its log")
        before, after = self.state(places[0]), self.state(places[1])
        wanted = Wanted(resolved(resolved(entity, before.image), after.image) if entity else None)
        key = before.end_offset, after.end_offset, wanted.path or ""
        if key not in self._diffs:
            self._diffs[key] = diff_points(self._log, before, after, wanted)
            while len(self._diffs) > 1 and (
                len(self._diffs) > KEPT_DIFFS or sum(map(len, self._diffs.values())) > KEPT_CHANGES
            ):
                self._diffs.popitem(last=False)
        changes = [
            change
            for change in self._diffs[key]
            if query.text.lower() in change.entity.lower() and query.show in ("", change.kind)
        ]
        words = [str(key[0]), str(key[1]), *([entity] if entity else [])]
        return {
            "from": self.moment(before),
            "to": self.moment(after),
            "changes": [
                change_json(each) for each in changes[query.start : query.start + (query.size or 100)]
            ],
            "count": len(changes),
            "total": len(self._diffs[key]),
            "command": self.command("diff", *words),
        }

    def bisect(self, predicate: str, window: tuple[str | None, str | None]) -> Answer:
        """The first moment at which a predicate turns false."""
        try:
            check = predicate_check(compile_predicate(predicate))
            answer = bisect(
                self._log,
                check,
                None if window[0] is None else place_of(window[0]),
                place_of(window[1]),
                past_corruption=True,
            )
        except PredicateError as error:
            raise InspectError(str(error)) from None
        ends = [
            word for name, end in zip(("--from", "--to"), window, strict=True) if end for word in (name, end)
        ]
        return {
            **bisection_json(answer),
            "neverDefined": answer.never_defined,
            "command": self.command("bisect", "--predicate", predicate, *ends),
        }

    def access(self, where: str | None, principal: str, operation: str, resource: str, host: str) -> Answer:
        """Whether a principal may do something, and why."""
        state = self.state(where)
        return {
            **access(state.image, principal, operation, resource, host or "*"),
            "command": self.command("state", "acl", "--at", str(state.end_offset)),
        }

    def search(self, text: str, where: str | None) -> Answer:
        """Moments, entities, access control entries, settings and events that a text names."""
        state = self.state(where)
        wanted = text.strip().lower()
        kinds = ("moments", "entities", "acls", "settings", "events")
        answers: dict[str, list[Answer]] = {kind: [] for kind in kinds}
        if not wanted:
            return answers
        try:
            point = place_of(text.strip())
            answers["moments"].append(self.moment(self.moments.state(point)))
        except InspectError:
            pass  # it names no moment of this log
        paths = dict.fromkeys(
            (*_entities(state.image, wanted), *_first(continuations(text.strip(), state.image)))
        )
        answers["entities"] = [{"path": path} for path in list(paths)[:SEARCHED_MAX]]
        answers["acls"] = _first(
            {"path": f"acl/{uuid_to_text(entry_id)}", "text": acl_text(acl)}
            for entry_id, acl in entries_about(state.image, text.strip())
        )
        answers["settings"] = _first(
            {"path": row["path"], "text": f"{row['resource']}: {row['key']}={row['value']}"}
            for row in table_of("configs", state, TableQuery(text=wanted, size=SEARCHED_MAX)).rows
        )
        answers["events"] = _first(event_json(event) for event in self._mentioning(wanted))
        return answers

    def _mentioning(self, text: str) -> Iterator[TimelineEvent]:
        return (event for event in self.strip.events if text in event.text.lower() or text in event.kind)


def entity_of_table(kind: str) -> str:
    """The path of everything that a table shows."""
    return {"partitions": "topic", "racks": "broker", "producer-ids": kind}.get(kind, kind.removesuffix("s"))


def _newest(spans: Iterable[Span]) -> list[Span]:
    return nlargest(SPANS_MAX + 1, spans, key=lambda span: span.from_offset)


def _first(several: Any, count: int = SEARCHED_MAX) -> list[Any]:
    return list(islice(iter(several), count))


def clock_time(log: MetadataLog, offset: int, stamp_ms: int) -> int:
    """The time of the record before an offset, on the log's clock."""
    return stamp_ms if log.is_checkpoint else clock_of(log).time_ms(max(0, offset - 1), stamp_ms)


def _address(addresses: str) -> str:
    """The first address of a cluster, and how many more were given."""
    first, *more = addresses.split(",")
    return f"{first} and {len(more)} more" if more else first


def _entities(image: MetadataImage, text: str) -> list[str]:
    topics = (f"topic/{topic.name}" for topic in image.topics.all() if text in topic.name.lower())
    others = (path for path in entities_of(image, with_topics=False) if text in path.lower())
    return [*_first(topics), *_first(others)]


def _check(path: str) -> None:
    problem = entity_problem(path)
    if problem is not None and path.partition("/")[0] not in ("quota", "scram"):
        raise InspectError(problem)


def _target(text: str) -> EntityTarget:
    try:
        return parse_target(text)
    except ValueError as error:
        raise InspectError(str(error)) from None


def _one_of(word: str, words: tuple[str, ...]) -> str:
    if word not in words:
        raise InspectError(f"{word!r} is not one of {', '.join(words)}")
    return word
