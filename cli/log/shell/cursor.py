"""The place in a log where the shell is, and its moves: to a place, one batch forward, one batch back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.walk.states import (
    FoundState,
    OnProblem,
    WalkStep,
    earliest,
    state_at,
    steps_from,
    with_quorum,
)

KEPT_STEPS = 1000
KEPT_BYTES = 32 * 1024 * 1024
"""Steps kept for moving back, and the bytes of batches in them."""
BACK_OFFSETS = 2000
"""How many offsets before the place to start when steps must be made again."""


class Cursor:
    """A place in a log and the state there."""

    def __init__(self, log: MetadataLog, on_problem: OnProblem, *, past_corruption: bool = False) -> None:
        """Is at no place before the first `seek`."""
        self.log = log
        self.last: WalkStep | None = None
        self._on_problem = on_problem
        self._past_corruption = past_corruption
        self._found: FoundState | None = None
        self._ahead: Iterator[WalkStep] | None = None
        self._behind: deque[WalkStep] = deque()
        self._behind_bytes = 0

    @property
    def found(self) -> FoundState:
        """The state here, as `state_at` gives it."""
        if self._found is None:
            raise RuntimeError("the cursor has no position yet; seek first")
        return self._found

    @property
    def offset(self) -> int:
        """The offset of the next record."""
        return self.found.end_offset

    @property
    def image(self) -> MetadataImage:
        """The image here."""
        return self.found.image

    @property
    def quorum(self) -> QuorumView:
        """The quorum here."""
        return self.found.quorum

    @property
    def time_ms(self) -> int:
        """The time of the newest record here, in Unix ms; -1 before the first."""
        return self.found.state.newest.provenance.timestamp_ms

    def seek(self, point: Point) -> FoundState:
        """Moves to `point`. Raises InspectError, without a move, if it is outside the log."""
        found = state_at(self.log, point, self._on_problem, past_corruption=self._past_corruption)
        self._know_quorum(found)
        self._found, self._ahead, self.last = found, None, None
        self._behind.clear()
        self._behind_bytes = 0
        return found

    def start(self) -> Point:
        """The first place whose state can be known."""
        return END if self.log.is_checkpoint else earliest(self.log)

    def next(self) -> WalkStep | None:
        """Moves one batch forward. None: at the end, which a growing log moves."""
        if self.log.is_checkpoint:
            raise InspectError(
                f"{self.log.path} is a single state, not a history; open the directory of its log"
            )
        if self._ahead is None:
            self._ahead = steps_from(
                self.log, self.found, END, self._on_problem, past_corruption=self._past_corruption
            )
        step = next(self._ahead, None)
        if step is None:
            self._ahead = None
            return None
        self._keep(step)
        self._found = FoundState(state=step.state_after, snapshot="", quorum=step.quorum_after)
        self.last = step
        return step

    def previous(self) -> WalkStep | None:
        """Moves one batch back. Returns the batch that was undone, None at the start."""
        if self.log.is_checkpoint:
            raise InspectError(
                f"{self.log.path} is a single state, not a history; open the directory of its log"
            )
        if not self._behind:
            self._refill()
        if not self._behind:
            return None
        step = self._behind.pop()
        self._behind_bytes -= len(step.batch.data)
        self._found = FoundState(state=step.state_before, snapshot="", quorum=step.quorum_before)
        self._ahead, self.last = None, None
        return step

    def search(self, wanted: Callable[[WalkStep], bool]) -> WalkStep | None:
        """Moves behind the first batch for which `wanted` is true. None, without a move, if there is none."""
        origin = (self._found, self.last, tuple(self._behind), self._behind_bytes)
        found: WalkStep | None = None
        try:
            while found is None and (step := self.next()) is not None:
                found = step if wanted(step) else None
        finally:
            if found is None:  # also after an interrupt or an error in `wanted`
                self._found, self.last, behind, self._behind_bytes = origin
                self._behind = deque(behind)
                self._ahead = None
        return found

    def _know_quorum(self, found: FoundState) -> None:
        """Finds the leader. Snapshots do not name it: its election may be before the loaded one."""
        if not self.log.is_checkpoint:
            with_quorum(self.log, found)

    def _keep(self, step: WalkStep) -> None:
        self._behind.append(step)
        self._behind_bytes += len(step.batch.data)
        while len(self._behind) > KEPT_STEPS or (self._behind_bytes > KEPT_BYTES and len(self._behind) > 1):
            self._behind_bytes -= len(self._behind.popleft().batch.data)

    def _refill(self) -> None:
        """Makes the newest steps up to here again."""
        first = self.start().offset or 0
        if self.offset <= first:
            return
        begin = Point(offset=max(first, self.offset - BACK_OFFSETS))
        found = state_at(self.log, begin, past_corruption=self._past_corruption)
        self._know_quorum(found)
        end = Point(offset=self.offset)
        for step in steps_from(self.log, found, end, past_corruption=self._past_corruption):
            self._keep(step)
