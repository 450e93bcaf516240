"""In all of these tests: deciding changes nothing. What follows from a turn leaves in its outcome alone."""

from __future__ import annotations

import pytest

from metaquorum.controller import node
from metaquorum.controller.active.active import ActiveController
from metaquorum.controller.active.outcome import Outcome, Turn
from metaquorum.controller.ledger import encode_records_batch
from metaquorum.metadata.errors import RecordEncodeError
from metaquorum.storage.errors import BatchError

CACHED = frozenset({"_scans", "_candidates_of", "_candidates", "rng", "_seen", "_collects", "_sweeps"})
"""What can be computed again, and the source of random ids, which is set back below."""


class CheckedController(ActiveController):
    """Decides each turn twice: the state is as before, and the outcomes are equal."""

    def decide(self, turn: Turn, *, now_ms: int, wall_ms: int) -> Outcome:
        before, drawn = self._soft_state(), self._state.rng.getstate()
        try:
            first = super().decide(turn, now_ms=now_ms, wall_ms=wall_ms)
        finally:
            assert self._soft_state() == before, f"{turn} was decided, and what it was decided on changed"
        self._state.rng.setstate(drawn)
        second = super().decide(turn, now_ms=now_ms, wall_ms=wall_ms)
        assert self._shown(first) == self._shown(second)
        return second

    def _soft_state(self) -> object:
        state = self._state
        ledger = state.ledger
        pending = [(entry.end_offset, id(entry.state), tuple(entry.replies)) for entry in ledger.pending]
        kept = [
            {name: repr(value) for name, value in vars(part).items() if name not in CACHED}
            for part in (state, state.sessions, state.presence, state.mutations, self._steps, self)
        ]
        return kept, pending, id(ledger.newest), ledger.replies_waiting

    def _shown(self, outcome: Outcome) -> object:
        """Columns of records do not compare: their bytes do."""
        shown = [getattr(outcome, name) for name in Outcome.__struct_fields__ if name != "batch"]
        if outcome.batch is None:
            return shown, None
        level = self._state.image.features.metadata_version
        written = outcome.batch.records
        try:
            data = encode_records_batch(
                written, base_offset=0, epoch=0, timestamp_ms=0, metadata_version=level
            )
        except (BatchError, RecordEncodeError):
            return shown, tuple(written)
        return shown, data, outcome.batch.wake_observers


@pytest.fixture(autouse=True)
def deciding_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "ActiveController", CheckedController)
