"""The result of a search over a log: the offset at which an expression turned, and how certain that is."""

from __future__ import annotations

import msgspec

from metaquorum.metadata.inspect.entities.diff import EntityChange, changes_between
from metaquorum.metadata.inspect.log.places import Limits
from metaquorum.metadata.inspect.walk.states import WalkStep
from metaquorum.metadata.records.batches import DecodedRecord

BINARY, SCAN, HEADERS = "binary search", "scan", "scan of batch headers"


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search.

    `step` is the batch with which the check turned false, with the states around it, and `record` the first
    of its records after which it is false (None: the batch as a whole). Both are None if the check never
    turns false (`always_false` False) and if it is false from the first state on (`always_false` True, at
    `from_offset`). `never_defined`: what it refers to is in no state, so it was neither true nor false.
    `method` is BINARY, SCAN or HEADERS, and `reason` says why. `snapshots` is the number available, `loaded`
    the number read. `batches` is the number evaluated one by one, and `unknown` the number of their records
    from a newer version. `limits` has what was not covered.
    """

    check: str
    method: str
    reason: str
    from_offset: int
    end_offset: int
    step: WalkStep | None = None
    record: DecodedRecord | None = None
    always_false: bool = False
    never_defined: bool = False
    snapshots: int = 0
    loaded: int = 0
    batches: int
    unknown: int
    limits: Limits

    @property
    def is_found(self) -> bool:
        return self.step is not None or self.always_false

    def changes(self) -> list[EntityChange]:
        """What the batch changed, by entity."""
        if self.step is None:
            return []
        quorums = (self.step.quorum_before, self.step.quorum_after)
        return changes_between(self.step.before, self.step.after, quorums=quorums)
