"""What a broker waits for before it serves and before it may stop: goals, deadlines, and progress lines."""

from __future__ import annotations

from metaquorum.metadata.requests.status import BrokerState

WAITING_LINE_MS = 10_000
_WAITS = frozenset({BrokerState.STARTING, BrokerState.RECOVERY, BrokerState.FENCED})


class StartUp:
    """`catch_up_offset`: the first high watermark that was learned; None if none yet. `is_caught_up`: the
    image has reached it. `give_up_ms`: when the broker stops if it is not registered by then; None once it
    is."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self.catch_up_offset: int | None = None
        self.is_caught_up = False
        self.give_up_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        self.give_up_ms = now_ms + self._timeout_ms

    def progressed(self, now_ms: int) -> None:
        """The log or a snapshot is arriving: a long catch-up is no reason to stop."""
        if not self.is_caught_up and self.give_up_ms is not None:
            self.begin(now_ms)

    def registered(self) -> None:
        self.give_up_ms = None

    def learn(self, high_watermark: int) -> bool:
        """A leader's high watermark. Returns True if it is the first one, the goal of this start."""
        if self.catch_up_offset is not None:
            return False
        self.catch_up_offset = high_watermark
        return True

    def reaches(self, applied_offset: int) -> bool:
        """Whether the image has just caught up: it was behind before."""
        goal = self.catch_up_offset
        if self.is_caught_up or goal is None or applied_offset < goal:
            return False
        self.is_caught_up = True
        return True

    def failure(self, now_ms: int, problem: str) -> str | None:
        """Why the start has failed, if its time is up; else None."""
        if self.give_up_ms is None or now_ms < self.give_up_ms:
            return None
        return (
            f"could not register within {self._timeout_ms} ms"
            f" (initial.broker.registration.timeout.ms): {problem}"
        )


class ControlledShutdown:
    """`give_up_ms`: when the broker stops without the controller's permission; None if it was not asked to
    stop."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self.give_up_ms: int | None = None

    def begin(self, now_ms: int) -> bool:
        """Returns False if it had already begun."""
        if self.give_up_ms is not None:
            return False
        self.give_up_ms = now_ms + self._timeout_ms
        return True

    def failure(self, now_ms: int) -> str | None:
        """Why it stops now, if its time is up; else None."""
        if self.give_up_ms is None or now_ms < self.give_up_ms:
            return None
        return (
            f"stopped: the controller did not grant the shutdown within {self._timeout_ms} ms "
            "(controlled.shutdown.timeout.ms); leaderships may not have been moved"
        )


class WaitingLine:
    """Call `look` after every input: a line is due every `WAITING_LINE_MS` while the broker waits."""

    __slots__ = ("_since_ms", "due_ms")

    def __init__(self) -> None:
        self._since_ms = 0
        self.due_ms: int | None = None

    def look(self, now_ms: int, state: BrokerState) -> str | None:
        """A line with the state and the time spent waiting, if one is due; else None."""
        if state not in _WAITS:
            self.due_ms = None
            return None
        if self.due_ms is None:
            self._since_ms, self.due_ms = now_ms, now_ms + WAITING_LINE_MS
        if now_ms < self.due_ms:
            return None
        self.due_ms = now_ms + WAITING_LINE_MS
        return f"has been waiting ({state.name}) for {(now_ms - self._since_ms) // 1000} s"
