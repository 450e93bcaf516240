"""What `log watch` reports: incidents with an id that never changes, and the note of what was reported."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from metaquorum.metadata.inspect.answers import event_json
from metaquorum.metadata.inspect.timeline.event import TimelineEvent

ENTITIES_MAX = 1_000
"""The most entities that one report lists; `moreEntities` counts the rest."""


class WatchIncident(msgspec.Struct, frozen=True, kw_only=True):
    """An event to report. `report` is JSON in one line, without the braces around it."""

    incident_id: str
    offset: int
    severity: str
    kind: str
    report: bytes

    def body(self, missed: int = 0) -> bytes:
        """The report; `missed`: how many before it were given up."""
        suffix = b',"missed":%d' % missed if missed else b""
        return b"{" + self.report + suffix + b"}"


class WatchIncidents:
    """Makes incidents of a cluster's events, which come in the order of the log."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._offset = -1
        self._seen: Counter[str] = Counter()

    def incident(self, event: TimelineEvent) -> WatchIncident:
        """The incident of an event. Its id names cluster, offset, kind and entity: a reader that begins
        elsewhere, or again, gives it the same one."""
        if event.offset != self._offset:
            self._offset = event.offset
            self._seen.clear()
        name = f"{self._cluster_id}:{event.offset}:{event.kind.replace(' ', '-')}:{event.entity}"
        self._seen[name] += 1
        count = self._seen[name]
        incident_id = name if count == 1 else f"{name}:{count}"
        fields: dict[str, Any] = {"id": incident_id, "clusterId": self._cluster_id, **event_json(event)}
        more = len(fields["entities"]) - ENTITIES_MAX
        if more > 0:
            fields |= {"entities": fields["entities"][:ENTITIES_MAX], "moreEntities": more}
        return WatchIncident(
            incident_id=incident_id,
            offset=event.offset,
            severity=event.severity,
            kind=event.kind,
            report=msgspec.json.encode(fields)[1:-1],
        )


class ReportedSoFar(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was reported of a cluster: every incident below `offset`, and at `offset` those in `ids`."""

    cluster_id: str
    offset: int
    ids: tuple[str, ...] = ()

    def has(self, incident: WatchIncident) -> bool:
        """Whether it was reported."""
        return incident.offset < self.offset or (
            incident.offset == self.offset and incident.incident_id in self.ids
        )

    def after(self, incident: WatchIncident) -> ReportedSoFar:
        """The note after one more report."""
        if incident.offset < self.offset:
            return self
        ids = self.ids if incident.offset == self.offset else ()
        return ReportedSoFar(
            cluster_id=self.cluster_id, offset=incident.offset, ids=(*ids, incident.incident_id)
        )

    def through(self, offset: int) -> ReportedSoFar:
        """The note if nothing below `offset` is left to report."""
        return self if offset <= self.offset else ReportedSoFar(cluster_id=self.cluster_id, offset=offset)
