"""What happened, on one screen: a timeline's events summed up in sections, the worst of each listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from metaquorum.metadata.inspect.causes.elections import CHANGED_LEADER
from metaquorum.metadata.inspect.causes.rule import CRITICAL, INFO, SEVERITIES, WARNING
from metaquorum.metadata.inspect.causes.table import is_orderly, word_of
from metaquorum.metadata.inspect.log.coverage import offsets_text
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.nodes.lost import LostCommitted, find_losses, holding
from metaquorum.metadata.inspect.nodes.merge import NodesReport
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.event_groups import count, duration
from metaquorum.metadata.inspect.timeline.spans import PERHAPS
from metaquorum.metadata.text.cause_text import brief_text
from metaquorum.storage.log.epochs import EpochTable

# The structure of a summary: sections with a heading that sums up, and the most important rows.


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a section: when and where, about what, and how severe. `span_ms`: how long it lasted."""

    offset: int
    time_ms: int
    entity: str
    text: str
    severity: str = INFO
    span_ms: int | None = None


class Section(msgspec.Struct, kw_only=True):
    """A heading that sums up, and its rows, the worst first. `figures` are the totals as numbers."""

    name: str
    text: str
    rows: list[Row] = msgspec.field(default_factory=list)
    figures: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def severity(self) -> str:
        return max((row.severity for row in self.rows), key=SEVERITIES.index, default=INFO)


# Spans without a leader or under min ISR, and brokers' fenced times, summed up from events.

Place = tuple[int, int]
"""(offset, Unix ms)."""

KEPT = 10_000
"""How many spans are kept, the longest ones; sums include all."""


class PartitionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span that some partitions share, beginning at `begun`; `ended` None means until the
    end of what was read."""

    begun: Place
    ended: Place | None
    first: str
    partitions: int
    span_ms: int
    bound: str = ""
    """Precedes `span_ms` in texts (see `timeline.span`)."""


class OpenSpans:
    """Opens and closes spans by partition path; collects the closed ones."""

    def __init__(self) -> None:
        self.closed: list[PartitionSpan] = []
        self.touched: set[str] = set()
        self.total_ms = 0
        self.open: dict[str, tuple[Place, str]] = {}

    def begin(self, paths: tuple[str, ...], moment: Place, bound: str = "") -> None:
        for path in paths:
            self.open.setdefault(path, (moment, bound))

    def end(
        self, paths: tuple[str, ...], moment: Place, since: Place, bound: str = "", *, ended: bool = True
    ) -> None:
        """Closes the open spans of `paths`; `since` is where the requested range begins."""
        together: dict[tuple[Place, str], list[str]] = {}
        for path in paths:
            opened = self.open.pop(path, None)
            if opened is not None:
                together.setdefault(opened, []).append(path)
        for (begun, own), closed in together.items():
            span_ms = max(0, moment[1] - max(begun[1], since[1]))
            if moment[0] <= since[0]:
                continue  # over before the requested range began
            self.total_ms += span_ms * len(closed)
            self.touched.update(closed)
            self.closed.append(
                PartitionSpan(
                    begun=begun,
                    ended=moment if ended else None,
                    first=closed[0],
                    partitions=len(closed),
                    span_ms=span_ms,
                    bound="" if begun[0] <= since[0] else bound or own,  # what is before does not count
                )
            )
        if len(self.closed) > 2 * KEPT:
            self.closed = self.worst(KEPT)

    def end_below(self, path: str, moment: Place, since: Place) -> None:
        """The same for everything below a path, when a topic is deleted."""
        if self.open:
            below = tuple(one for one in self.open if one.startswith(path + "/"))
            self.end(below, moment, since)

    def worst(self, number: int) -> list[PartitionSpan]:
        """The longest ones; if equal, those with the most partitions."""
        return sorted(self.closed, key=lambda one: (-one.span_ms, -one.partitions, one.begun))[:number]


@dataclass(slots=True)
class BrokerSum:
    """A broker's fences in the requested range. `open` is where the current one began; `bounds` are the words
    before their durations."""

    fences: int = 0
    total_ms: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    longest_ms: int = -1
    longest: Place = (0, 0)
    longest_rule: str | None = None
    open: Place | None = None
    open_rule: str | None = None
    bounds: set[str] = field(default_factory=set)
    _open_bound: str = ""

    def fence(self, moment: Place, rule: str, bound: str = "", *, counts: bool) -> None:
        if counts:
            self.fences += 1
            self.rules[rule] += 1
        if self.open is None:
            self.open, self.open_rule, self._open_bound = moment, rule, bound
        if self.longest_ms < 0:
            self.longest = moment

    def close(self, moment: Place, since: Place, bound: str = "") -> None:
        """Ends the fence: the broker was unfenced or unregistered, or the records end."""
        begun, self.open = self.open, None
        if begun is None or moment[0] <= since[0]:
            return
        self.bounds.add(bound or self._open_bound)
        span_ms = max(0, moment[1] - max(begun[1], since[1]))
        self.total_ms += span_ms
        if span_ms > self.longest_ms:
            self.longest_ms, self.longest, self.longest_rule = span_ms, begun, self.open_rule


_CHANGES = {
    "topic created": ("topic", "created"),
    "topic deleted": ("topic", "deleted"),
    "partitions added": ("topic", "grown"),
    "config changed": ("setting change", ""),
    "feature": ("feature", ""),
    "acl added": ("ACL", "added"),
    "acl removed": ("ACL", "removed"),
    "user changed": ("user", ""),
    "quota changed": ("quota", ""),
    "token set": ("token", ""),
    "token removed": ("token", "removed"),
    "broker unregistered": ("broker", "unregistered"),
    "controller unregistered": ("controller", "unregistered"),
    "directory moved": ("directory move", ""),
}
"""Kinds of events that are counted: what changed, and how."""
_MAY_BE_PLANNED = frozenset(
    f"{how}{kind}"
    for kind in ("leaderless", "under min isr", "total outage", "no broker")
    for how in ("", "already ", "still ")
)
"""Events that are no fault while a cluster is shut down: their rows say how bad they are."""
_NEVER: Place = (1 << 62, 1 << 62)
"""The start of a range that has not begun: nothing counts."""
_TROUBLE = ("record does not apply", "unknown record", "transaction aborted", "transaction unclear")
_OF_BROKERS = ("slow to return", "still fenced", "already fenced", "no longer fenced")
_ROWS = {
    "clock jumped": "clocks",
    "voters changed": "voters",
    "replica damaged": "damaged",
    **dict.fromkeys(_TROUBLE, "trouble"),
}


class Summary:
    """Feed it every event in order, from the log's beginning on; then call `finish`."""

    def __init__(self, start: Point | None = None, start_ms: int | None = None) -> None:
        """Events before `start`, which is at `start_ms`, count only for the state there."""
        self._start = start
        self._start_ms = start_ms if start is None or start.time_ms is None else start.time_ms
        self._in_range = start is None or start.is_end
        self._since: Place = (-1, 0) if self._in_range else _NEVER
        self.severity = INFO
        self.names_who = False
        self.counts: Counter[str] = Counter()
        self._rows: dict[str, list[Row]] = {}
        self._brokers: dict[int, BrokerSum] = {}
        self._leaderless, self._under = OpenSpans(), OpenSpans()
        self._moving: dict[str, TimelineEvent] = {}
        self._still_moving: dict[str, int] = {}
        self._moved: Counter[str] = Counter()
        self._leader: str | None = None
        self._outage: TimelineEvent | None = None
        self._unsettled: TimelineEvent | None = None
        self._planned: list[tuple[Place, int]] = []
        self._stopping: dict[str, Place] = {}
        self._silence_ms = 0
        self.sections: list[Section] = []

    def begin(self, quorum: QuorumView) -> None:
        """Takes the leader where reading begins."""
        if quorum.has_leader:
            self._leader = str(quorum.leader_id)

    def take(self, event: TimelineEvent) -> None:  # noqa: C901, PLR0912
        if not self._in_range and _reaches(event, self._start):
            self._in_range = True
            self._since = (event.offset - 1, event.time_ms if self._start_ms is None else self._start_ms)
        moment = (event.offset, event.time_ms)
        if self._in_range:
            self.counts[event.kind] += 1
            self.names_who = self.names_who or event.asked is not None
            if event.kind not in _MAY_BE_PLANNED:
                self._raise_to(event.severity)
        self._note_stops(event)
        if (removed := _removed(event)) is not None:
            self._row("removed", event, text=_with_who(removed, event))
        match event.kind:
            case "election":
                self._election(event)
            case "leaderless" | "already leaderless":
                self._leaderless.begin(_partitions(event), moment, event.bound)
            case "leader changed" | "partition changed" | "no longer leaderless":
                if event.kind != "partition changed" or event.span_ms is not None:
                    self._leaderless.end(_partitions(event), moment, self._since, event.bound)
            case "unclean election":
                self._leaderless.end(_partitions(event), moment, self._since, event.bound)
                self._unclean(event)
            case "under min isr" | "already under min isr":
                self._under.begin(_partitions(event), moment, event.bound)
            case "min isr restored" | "no longer under min isr":
                self._under.end(_partitions(event), moment, self._since, event.bound)
            case "still leaderless":
                self._leaderless.end(_partitions(event), moment, self._since, event.bound, ended=False)
            case "still under min isr":
                self._under.end(_partitions(event), moment, self._since, event.bound, ended=False)
            case "topic deleted":
                self._leaderless.end_below(event.entity, moment, self._since)
                self._under.end_below(event.entity, moment, self._since)
            case "total outage" | "already no broker":
                self._outage = self._unsettled = event
            case "total outage ended" | "still no broker":
                self._outage_over(event)
            case "gap in time":
                self._row("gaps", event, text=event.text.partition(";")[0])
            case "directory failed":
                self._row("directories", event, text=event.text.replace(" left online", " left"))
            case kind if kind.startswith("broker ") or kind in _OF_BROKERS:
                self._broker(event, moment)
            case kind if "reassign" in kind or kind == "replicas changed":
                self._reassignment(event)
            case kind if kind in _ROWS:
                self._row(_ROWS[kind], event)
            case "feature" | "config changed":
                self._row("changes", event, text=_with_who(event.text, event))

    def _raise_to(self, severity: str) -> None:
        self.severity = max(self.severity, severity, key=SEVERITIES.index)

    def _note_stops(self, event: TimelineEvent) -> None:
        """Notes when brokers shut down cleanly, and which total outages begin so."""
        if event.kind == "broker in controlled shutdown":
            self._stopping[event.entity] = (event.offset, event.time_ms)
        elif event.kind == "broker unfenced":
            self._stopping.pop(event.entity, None)
        if self._outage is not None and event.offset > self._outage.offset:
            self._settle_outage()

    def _settle_outage(self) -> None:
        """Decides whether an outage is a shutdown of the cluster: no broker failed before it."""
        outage, self._unsettled = self._unsettled, None
        if outage is None:
            return
        fenced = {number: one for number, one in self._brokers.items() if one.open is not None}
        stopped = [one for one in fenced.values() if is_orderly(one.open_rule)]
        if not stopped or any(one.open_rule and not is_orderly(one.open_rule) for one in fenced.values()):
            return
        begun = [one.open for one in stopped if one.open is not None]
        begun += [self._stopping[path] for number in fenced if (path := f"broker/{number}") in self._stopping]
        self._planned.append((min(begun), outage.offset))

    def _is_planned(self, begun: Place, ended: Place | None) -> bool:
        """Whether a span is part of a shutdown of the cluster."""
        return any(
            first <= begun and begun[0] <= outage and (ended is None or ended[0] > outage)
            for first, outage in self._planned
        )

    def _row(
        self, section: str, event: TimelineEvent, entity: str | None = None, text: str | None = None
    ) -> None:
        if self._in_range:
            self._rows.setdefault(section, []).append(
                Row(
                    offset=event.offset,
                    time_ms=event.time_ms,
                    entity=entity or event.entity,
                    text=text or event.text,
                    severity=event.severity,
                    span_ms=event.span_ms,
                )
            )

    def _election(self, event: TimelineEvent) -> None:
        leader = event.entity.rpartition("/")[2]
        before, self._leader = self._leader, leader
        text = f"{leader} leads epoch {event.epoch}"
        if event.span_ms is not None:
            word = word_of(event.rule) if event.rule in CHANGED_LEADER else "last wrote"
            since = "it last wrote" if before == leader else f"{before or 'the one before'} {word}"
            text += f", {duration(max(0, event.span_ms))} after {since}"
            if self._in_range:
                self._silence_ms += max(0, event.span_ms)
        self._row("quorum", event, "quorum", text)

    def _unclean(self, event: TimelineEvent) -> None:
        paths = _partitions(event)
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        after = "" if event.span_ms is None else f" after {duration(event.span_ms)}"
        leader = event.entity.rpartition("/")[2]
        text = f"{paths[0]}{more}: {leader} leads{after}, not in the ISR"
        self._row("unclean", event, paths[0], _with_who(text, event))

    def _outage_over(self, event: TimelineEvent) -> None:
        begun, self._outage = self._outage, None
        lasted = event.span_ms or 0
        how = (
            ""
            if begun is None
            else begun.text.partition(": ")[2].replace(" was the last", " last").replace(", it ", ", ")
        )
        text = f"for {event.bound}{duration(lasted)}"
        if event.kind == "still no broker":
            text += ", to the end"
        if self._in_range:
            start = event if begun is None else begun
            row = Row(
                offset=start.offset,
                time_ms=start.time_ms,
                entity=start.entity,
                text=text + (f"; {how}" if how else ""),
                severity=INFO if self._is_planned((start.offset, start.time_ms), None) else CRITICAL,
                span_ms=lasted,
            )
            self._rows.setdefault("outages", []).append(row)

    def _broker(self, event: TimelineEvent, moment: Place) -> None:
        _, _, number = event.entity.partition("/")
        if not number.isdigit():
            return
        broker_sum = self._brokers.setdefault(int(number), BrokerSum())
        match event.kind:
            case "broker fenced":
                broker_sum.fence(moment, event.rule or "broker-restarted", counts=self._in_range)
            case "broker registered" if event.severity == WARNING:
                broker_sum.fence(moment, event.rule or "broker-restarted", counts=self._in_range)
            case "already fenced":
                broker_sum.fence(moment, "", event.bound, counts=False)
            case "broker unfenced" | "broker unregistered" | "no longer fenced":
                broker_sum.close(moment, self._since, event.bound)
            case "slow to return":
                text = f"broker {number}: unfenced {duration(event.span_ms or 0)} after it registered"
                self._row("brokers", event, text=text)
            case "still fenced":
                broker_sum.close(moment, self._since, event.bound)
                if event.severity == WARNING:
                    self._row("brokers", event, text=f"still fenced: {event.text}")

    def _reassignment(self, event: TimelineEvent) -> None:
        paths = _partitions(event)
        what = event.kind.rpartition(" ")[2]
        if event.kind in ("reassignment started", "already reassigning"):
            self._moving.update((path, event) for path in paths)
        elif event.kind == "still reassigning":
            self._still_moving = {path: self._moving.get(path, event).offset for path in paths}
        if event.kind == "still reassigning" and event.severity == WARNING:
            text = _with_who(f"hangs: {event.text}", self._moving.get(event.entity, event))
            self._row("reassignments", event, event.entity, text)
        if self._in_range and what != "reassigning":
            self._moved[what] += len(paths)
            if what == "cancelled":
                text = _with_who(f"cancelled: {event.text}", event)
                self._row("reassignments", event, paths[0] if paths else None, text)

    @property
    def begins(self) -> Place | None:
        """Where the requested range begins: the first event in it; None for the log's beginning."""
        return None if self._since[0] < 0 or not self._in_range else (self._since[0] + 1, self._since[1])

    @property
    def leader(self) -> int | None:
        """The controller elected last."""
        return None if self._leader is None else int(self._leader)

    @property
    def uncertain_fences(self) -> int:
        """Fences for which the log does not show whether the broker shut down cleanly."""
        return sum(
            known.rules["stopped-or-silent"] + known.rules["idle-fenced-early"]
            for known in self._brokers.values()
        )

    def finish(self) -> list[Section]:
        """Returns the sections (also in `sections`): quorum, brokers, changes, and any others with
        content."""
        self._settle_outage()
        made = [
            self._quorum_section(),
            self._listed("voters", "voters changed", ""),
            self._listed("outages", "total outages", "no broker unfenced"),
            self._listed("gaps", "gaps in time", self._gap_meaning()),
            self._listed("clocks", "clock jumps", "times are those of the batches around"),
            self._broker_section(),
            self._span_section("leaderless", self._leaderless, CRITICAL),
            self._listed("unclean", "unclean elections", "records may be lost"),
            self._span_section("under min isr", self._under, WARNING),
            self._listed("directories", "directories failed", ""),
            self._listed("damaged", "replicas damaged", ""),
            self._reassignment_section(),
            self._listed("trouble", "records that tools or nodes cannot apply", ""),
            self._listed("removed", "removed", "this cannot be undone"),
            self._change_section(),
        ]
        self.sections = [section for section in made if section is not None]
        for section in self.sections:
            for row in section.rows:
                self._raise_to(row.severity)
        return self.sections

    def _gap_meaning(self) -> str:
        elected = {row.offset for row in self._rows.get("quorum", [])}
        if {row.offset for row in self._rows.get("gaps", [])} <= elected:
            return "nothing was written, so no controller led"
        return "nothing was written; where no election follows, the same controller paused"

    def _quorum_section(self) -> Section:
        rows = self._rows.get("quorum", [])
        if not rows:
            return Section(name="quorum", text="no election")
        text = count(len(rows), "election")
        worst = max((row.span_ms or 0 for row in rows), default=0)
        if self._silence_ms:
            most = f", {duration(worst)} at most" if worst < self._silence_ms else ""
            text += f", {duration(self._silence_ms)} without writes before them{most}"
        figures = {"elections": len(rows), "silenceMs": self._silence_ms, "longestMs": worst}
        return Section(name="quorum", text=text, rows=_worst(rows), figures=figures)

    def _listed(self, key: str, name: str, meaning: str) -> Section | None:
        rows = self._rows.get(key)
        if not rows:
            return None
        total = sum(row.span_ms or 0 for row in rows)
        text = str(len(rows))
        if total:
            text += f", {duration(total)} in total"
        if meaning:
            text += f": {meaning}"
        return Section(
            name=name, text=text, rows=_worst(rows), figures={"count": len(rows), "totalMs": total}
        )

    def _broker_section(self) -> Section:
        rules: Counter[str] = Counter()
        rows = list(self._rows.get("brokers", []))
        for broker, broker_sum in self._brokers.items():
            for rule, number in broker_sum.rules.items():
                rules[word_of(rule)] += number
            if broker_sum.fences or broker_sum.longest_ms >= 0:
                rows.append(_broker_row(broker, broker_sum))
        fences = sum(rules.values())
        touched = sum(known.fences > 0 for known in self._brokers.values())
        text = "none was fenced"
        if fences:
            how = ", ".join(f"{number} {word}" for word, number in rules.most_common())
            text = f"{count(fences, 'fence')} of {touched}: {how}"
        total = sum(known.total_ms for known in self._brokers.values())
        return Section(
            name="brokers", text=text, rows=_worst(rows), figures={"fences": fences, "fencedMs": total}
        )

    def _span_section(self, name: str, spans: OpenSpans, severity: str) -> Section | None:
        if not spans.closed:
            return None
        longest = spans.worst(1)[0]
        still = sum(one.partitions for one in spans.closed if one.ended is None)
        most = f"{longest.bound}{duration(longest.span_ms)}"
        text = f"{count(len(spans.touched), 'partition')}, longest {most}" + (
            f"; {still} still at the end" if still else ""
        )
        rows = [
            Row(
                offset=span.begun[0],
                time_ms=span.begun[1],
                entity=span.first,
                text=span.first
                + (f" and {span.partitions - 1} more" if span.partitions > 1 else "")
                + f": {span.bound}{duration(span.span_ms)}"
                + (f", until {span.ended[0]}" if span.ended is not None else ", and still"),
                severity=INFO if self._is_planned(span.begun, span.ended) else severity,
                span_ms=span.span_ms,
            )
            for span in spans.worst(len(spans.closed))
        ]
        figures = {
            "partitions": len(spans.touched),
            "still": still,
            "longestMs": longest.span_ms,
            "partitionMs": spans.total_ms,
        }
        return Section(name=name, text=text, rows=rows, figures=figures)

    def _reassignment_section(self) -> Section | None:
        still = self._still_moving
        if not self._moved and not still:
            return None
        parts = [f"{number} {what}" for what, number in self._moved.items()]
        if still:
            parts.append(f"{len(still)} under way since {min(still.values())}")
        figures = {**self._moved, "underWay": len(still)}
        text = ", ".join(parts)
        return Section(
            name="reassignments", text=text, rows=self._rows.get("reassignments", []), figures=figures
        )

    def _change_section(self) -> Section:
        figures = {kind: self.counts[kind] for kind in _CHANGES if self.counts[kind]}
        words = [
            f"{count(number, _CHANGES[kind][0])} {_CHANGES[kind][1]}" for kind, number in figures.items()
        ]
        text = ", ".join(word.strip() for word in words) or "none"
        rows = sorted(self._rows.get("changes", []), key=lambda row: row.entity.startswith("config/"))
        features = [row for row in rows if not row.entity.startswith("config/")]
        settings = [row for row in rows if row.entity.startswith("config/")]
        return Section(name="changes", text=text, rows=features[::-1] + settings[::-1], figures=figures)


def _removed(event: TimelineEvent) -> str | None:
    """What an event removed for good; None for any other event."""
    match event.kind:
        case "topic deleted":
            return f"topic {event.text}"
        case "acl removed":
            return f"ACL {event.text}"
        case "token removed":
            return f"token {event.text}"
        case "user changed" if event.text.endswith(" removed"):
            return event.text
    return None


def _with_who(text: str, event: TimelineEvent) -> str:
    """With the request that caused it, if the log says so."""
    return text if event.asked is None else f"{text}; {brief_text(event.asked)}"


def _broker_row(broker: int, broker_sum: BrokerSum) -> Row:
    text = f"broker {broker}: {count(broker_sum.fences, 'fence') if broker_sum.fences else 'fenced before'}"
    word = word_of(broker_sum.longest_rule) if broker_sum.longest_rule else ""
    if broker_sum.longest_ms >= 0:
        bounds = broker_sum.bounds - {""}
        bound = bounds.pop() if len(bounds) == 1 else PERHAPS if bounds else ""
        text += f", {bound}{duration(broker_sum.total_ms)}"
        text += f"; one {duration(broker_sum.longest_ms)}" if broker_sum.fences > 1 else ""
    text += f" ({word})" if word else ""
    bad = any(number and not is_orderly(rule) for rule, number in broker_sum.rules.items())
    return Row(
        offset=broker_sum.longest[0],
        time_ms=broker_sum.longest[1],
        entity=f"broker/{broker}",
        text=text,
        severity=WARNING if bad else INFO,
        span_ms=broker_sum.total_ms,
    )


def _worst(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (-SEVERITIES.index(row.severity), -(row.span_ms or 0), -row.offset))


def _partitions(event: TimelineEvent) -> tuple[str, ...]:
    return tuple(path for path in event.entities if path.startswith("topic/"))


def _reaches(event: TimelineEvent, start: Point | None) -> bool:
    if start is None:
        return True
    if start.offset is not None:
        return event.offset >= start.offset
    return start.time_ms is None or event.time_ms >= start.time_ms


# The summary's section about committed records that are lost, according to the nodes' own notes.

NAME = "committed records lost"


def lost_section(
    log: MetadataLog, report: NodesReport | None, end_offset: int, time_ms: Callable[[int], int]
) -> Section | None:
    """What some node of `report` (None: the node of this log) knew to be committed and is lost. `time_ms`
    returns the time at an offset."""
    lost = list(_of_one(log, end_offset) if report is None else _of_nodes(report))
    if not lost:
        return None
    rows = [
        Row(offset=offset, time_ms=time_ms(offset), entity="quorum", text=text, severity=CRITICAL)
        for offset, text in lost
    ]
    text = f"{len(rows)}: `metaquorum log check` compares the nodes, `metaquorum log salvage` ranks them"
    return Section(name=NAME, text=text, rows=rows, figures={"count": len(rows)})


def _of_one(log: MetadataLog, end_offset: int) -> Iterator[tuple[int, str]]:
    if not log.is_checkpoint:
        for loss in find_losses([holding(log, end_offset, EpochTable())]):
            yield end_offset, _own(loss)


def _of_nodes(report: NodesReport) -> Iterator[tuple[int, str]]:
    listed = set()
    for node in report.nodes:
        gone = node.departure
        if gone is not None and gone.committed:
            listed.add(node.path)
            knew = f"{node.name} knew {offsets_text(gone.offset, gone.committed)} to be committed"
            yield gone.offset, f"{knew}, {gone.other} has other records there"
    names = {node.path: node.name for node in report.nodes}
    for loss in report.losses:
        if loss.path in listed:
            continue
        if loss.missing == (loss.path,):
            end_offset = next(node.end_offset for node in report.nodes if node.path == loss.path)
            yield end_offset, _own(loss, names[loss.path])
        else:
            missing = ", ".join(names[path] for path in loss.missing)
            knew = f"{names[loss.path]} knew all below offset {loss.offset} to be committed"
            yield loss.offset - 1, f"{knew}, not all of it is in {missing}"


def _own(loss: LostCommitted, name: str = "its own node") -> str:
    knew = f"{name} knew all below offset {loss.offset} to be committed"
    return f"{knew}, its log ends before or has other records"
