"""The structure of a summary: sections with a heading that sums up, and the most important rows."""

from __future__ import annotations

import msgspec

from metaquorum.metadata.inspect.causes.rule import INFO, SEVERITIES


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
