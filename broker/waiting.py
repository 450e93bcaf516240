"""When a broker that is not let in says again what it waits for: the clock of these lines, not their text."""

from __future__ import annotations

WAITING_LINE_MS = 10_000


class WaitingLine:
    """`look` after every input: a line is due every so often for as long as the broker waits."""

    __slots__ = ("_since_ms", "due_ms")

    def __init__(self) -> None:
        self._since_ms = 0
        self.due_ms: int | None = None

    def look(self, now_ms: int, *, waits: bool) -> int | None:
        """How long it has waited, in ms, if that is to be said now; None: nothing is to be said."""
        if not waits:
            self.due_ms = None
            return None
        if self.due_ms is None:
            self._since_ms, self.due_ms = now_ms, now_ms + WAITING_LINE_MS
        if now_ms < self.due_ms:
            return None
        self.due_ms = now_ms + WAITING_LINE_MS
        return now_ms - self._since_ms
