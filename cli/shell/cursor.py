"""Where the shell stands in a log, and the moves from there: to a place, one batch on, one batch back.

Going back costs as little as going on, for a while: the states before the newest batches are kept (images
share what did not change). Beyond them the log is replayed from the nearest snapshot. Knows no commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from metadata.image import MetadataImage
from metadata.inspect.log import InspectError, MetadataLog
from metadata.inspect.points import END, Point
from metadata.inspect.quorum import QuorumView
from metadata.inspect.states import FoundState, OnProblem, Step, earliest, state_at, steps_from

KEPT_STEPS = 1000
"""So many states before the one shown are kept for going back."""
BACK_OFFSETS = 2000
"""How far before the place to begin when they must be made again."""


class Cursor:
    """A place in a log and the state there."""

    def __init__(self, log: MetadataLog, on_problem: OnProblem, *, past_corruption: bool = False) -> None:
        """Stands nowhere before the first `seek`."""
        self.log = log
        self.last: Step | None = None
        self._on_problem = on_problem
        self._past_corruption = past_corruption
        self._found: FoundState | None = None
        self._ahead: Iterator[Step] | None = None
        self._behind: deque[FoundState] = deque(maxlen=KEPT_STEPS)

    @property
    def found(self) -> FoundState:
        """The state here, as `state_at` gives it."""
        if self._found is None:
            raise RuntimeError("the cursor stands nowhere yet; seek first")
        return self._found

    @property
    def offset(self) -> int:
        """Offset of the next record."""
        return self.found.end_offset

    @property
    def image(self) -> MetadataImage:
        """What is visible here."""
        return self.found.image

    @property
    def quorum(self) -> QuorumView:
        """Who led the quorum here."""
        return self.found.quorum

    @property
    def time_ms(self) -> int:
        """The time of the newest record here, Unix ms; -1 before the first."""
        return self.found.state.newest.provenance.timestamp_ms

    def seek(self, point: Point) -> FoundState:
        """Goes there. Raises InspectError where the log does not reach; then nothing has moved."""
        found = state_at(self.log, point, self._on_problem, past_corruption=self._past_corruption)
        self._found, self._ahead, self.last = found, None, None
        self._behind.clear()
        return found

    def start(self) -> Point:
        """The first place that can be known."""
        return END if self.log.is_checkpoint else earliest(self.log)

    def next(self) -> Step | None:
        """One batch on; None at the end, which a growing log moves."""
        if self.log.is_checkpoint:
            raise InspectError(f"{self.log.path} is one state, not a history; open the directory of its log")
        if self._ahead is None:
            self._ahead = self._steps(self.found)
        step = next(self._ahead, None)
        if step is None:
            self._ahead = None
            return None
        self._behind.append(self.found)
        self._found = _after(step)
        self.last = step
        return step

    def previous(self) -> Step | None:
        """One batch back; the batch that was taken back, None at the beginning."""
        if self.log.is_checkpoint:
            raise InspectError(f"{self.log.path} is one state, not a history; open the directory of its log")
        if not self._behind:
            self._refill()
        if not self._behind:
            return None
        target = self._behind.pop()
        undone = next(self._steps(target, Point(offset=self.offset)), None)
        if undone is None:
            raise InspectError(f"{self.log.path} has changed below offset {self.offset}; open it again")
        self._found, self._ahead, self.last = target, None, None
        return undone

    def search(self, wanted: Callable[[Step], bool]) -> Step | None:
        """On to behind the first batch for which `wanted` is true; None, and no move, if there is none."""
        origin = (self._found, self.last, tuple(self._behind))
        found: Step | None = None
        try:
            while found is None and (step := self.next()) is not None:
                found = step if wanted(step) else None
        finally:
            if found is None:  # also when it was interrupted, or `wanted` has a mistake
                self._found, self.last, behind = origin
                self._behind = deque(behind, maxlen=KEPT_STEPS)
                self._ahead = None
        return found

    def _steps(self, found: FoundState, end: Point = END) -> Iterator[Step]:
        return steps_from(self.log, found, end, self._on_problem, past_corruption=self._past_corruption)

    def _refill(self) -> None:
        """The states before the newest batches up to here, made again."""
        first = self.start().offset or 0
        if self.offset <= first:
            return
        begin = Point(offset=max(first, self.offset - BACK_OFFSETS))
        found = state_at(self.log, begin, past_corruption=self._past_corruption)
        for step in self._quiet_steps(found):
            self._behind.append(found)
            found = _after(step)

    def _quiet_steps(self, found: FoundState) -> Iterator[Step]:
        return steps_from(self.log, found, Point(offset=self.offset), past_corruption=self._past_corruption)


def _after(step: Step) -> FoundState:
    return FoundState(state=step.state_after, snapshot="", quorum=step.quorum_after)
