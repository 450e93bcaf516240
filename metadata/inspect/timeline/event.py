"""One event of a timeline, and its severity."""

from __future__ import annotations

import msgspec

from metaquorum.metadata.inspect.causes.rule import INFO, SEVERITIES
from metaquorum.metadata.records.batch_cause import BatchCause


class TimelineEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened.

    `offset` is that of the first record that shows it; `time_ms` is Unix time. `rule` names the derived
    cause, if any (see `table`). `entities` are paths of everything that it is about, `entity` the first
    of them. `span_ms` is how long what ends here lasted (for an election: the silence before it), and `bound`
    the word before it (see `span`). `stamp_ms` is the batch's timestamp if it differs from the actual time
    (see `clock`). `asked` is what caused the batch, if the log says so.
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
    """The severities from `severity` up."""
    return frozenset(SEVERITIES[SEVERITIES.index(severity) :])
