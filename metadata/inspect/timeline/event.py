"""One event of a timeline, and how much it matters."""

from __future__ import annotations

import msgspec

from metaquorum.metadata.records.batch_cause import BatchCause

DETAIL, INFO, WARNING, CRITICAL = "detail", "info", "warning", "critical"
SEVERITIES = (DETAIL, INFO, WARNING, CRITICAL)
"""From what no one needs at first to what stops clients."""


class TimelineEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. `offset` is that of the first record which says so; `time_ms` is Unix time;
    `rule` names the cause (see `cause_rules`) where one is derived; `entities` are paths of everything that
    it is about, `entity` the first of them; `span_ms`, how long what ends here lasted (of an election: the
    silence before it), and `bound` what is said before it (see `span`); `stamp_ms`, its batch's stamp where
    that is not the time it was (see `clock`); `asked`, who or what caused its batch, where the log says so.
    """

    offset: int
    epoch: int
    time_ms: int
    kind: str
    entity: str
    text: str
    severity: str = INFO
    rule: str | None = None
    entities: tuple[str, ...] = ()
    span_ms: int | None = None
    bound: str = ""
    stamp_ms: int | None = None
    asked: BatchCause | None = None

    def is_about(self, wanted: str) -> bool:
        """Whether it is about `wanted` or a part of it."""
        own = self.entities or (self.entity,)
        return any(one == wanted or one.startswith(wanted + "/") for one in own)


def at_least(severity: str) -> frozenset[str]:
    """The severities from `severity` on."""
    return frozenset(SEVERITIES[SEVERITIES.index(severity) :])
