"""Reports incidents in order, apart from the reading of the log: with retries, and memory that is bounded.

A report counts as done once it is noted; a watch that is killed between the two repeats it with the same id.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable

from metaquorum.cli.log.watch.incidents import ReportedSoFar, WatchIncident
from metaquorum.cli.log.watch.receivers import NotReported, Receiver
from metaquorum.network.backoff import BackoffPolicy
from metaquorum.storage.errors import StorageError

WAITING_MAX_BYTES = 16 * 1024 * 1024
"""The most bytes of reports that wait for a receiver; beyond that the oldest are given up."""
RETRY = BackoffPolicy(initial_ms=500, max_ms=60_000)


class Delivery:
    """One receiver (None: incidents are only counted), on a thread of its own. `note` makes a state durable,
    `warn` prints a line."""

    def __init__(
        self,
        receiver: Receiver | None,
        reported: ReportedSoFar,
        note: Callable[[ReportedSoFar], None],
        warn: Callable[[str], None],
        *,
        attempts: int,
        rng: random.Random,
        retry: BackoffPolicy = RETRY,
        waiting_max_bytes: int = WAITING_MAX_BYTES,
    ) -> None:
        self._receiver = receiver
        self._reported = reported
        self._note = note
        self._warn = warn
        self._attempts = attempts
        self._rng = rng
        self._retry = retry
        self._max_bytes = waiting_max_bytes
        self._waiting: deque[WatchIncident] = deque()
        self._bytes = 0
        self._missed = 0
        self._is_busy = False
        self._ends = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self.problem: StorageError | None = None
        """Why reports have ended."""
        self.delivered = 0
        self.given_up = 0

    def start(self) -> None:
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many incidents are not reported yet."""
        return len(self._waiting) + self._is_busy

    def take(self, incident: WatchIncident) -> None:
        """The next incident of the log. Never waits for the receiver."""
        with self._changed:
            self._waiting.append(incident)
            self._bytes += len(incident.report)
            dropped = 0
            while self._bytes > self._max_bytes and len(self._waiting) > 1:
                self._bytes -= len(self._waiting.popleft().report)
                dropped += 1
            self._missed += dropped
            self.given_up += dropped
            self._changed.notify_all()
        if dropped:
            self._warn(f"given up, too many reports wait: {dropped}")

    def nothing_left_below(self, offset: int) -> None:
        """Every incident below `offset` was taken: notes that, if all of them are done."""
        with self._changed:
            if self._waiting or self._is_busy:
                return
            before, self._reported = self._reported, self._reported.through(offset)
        if self._reported is not before:
            self._store()

    def close(self, wait_s: float) -> None:
        """Ends after the reports that wait, or after `wait_s`."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def _run(self) -> None:
        while self.problem is None:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ends)
                if not self._waiting:
                    return
                incident = self._waiting.popleft()
                self._bytes -= len(incident.report)
                missed, self._is_busy = self._missed, True
            is_done = self._deliver(incident, missed)
            with self._changed:
                if is_done:
                    self.delivered += 1
                    self._missed -= missed
                else:
                    self.given_up += 1
                    self._missed += 1
                self._reported = self._reported.after(incident)
            self._store()
            self._is_busy = False

    def _deliver(self, incident: WatchIncident, missed: int) -> bool:
        """Whether the receiver took a report."""
        if self._receiver is None:
            return True
        name = self._receiver.name
        for attempt in range(1, self._attempts + 1):
            try:
                outcome = self._receiver.report(incident, incident.body(missed))
            except NotReported as error:
                text = f"{incident.incident_id} was not reported to {name}: {error}"
                if attempt == self._attempts:
                    self._warn(f"{text}; given up after {count(attempt)}")
                    return False
                if attempt == 1:
                    self._warn(f"{text}; trying again")
                self._pause(self._retry.delay_ms(attempt, self._rng) / 1000)
            else:
                if outcome is not None or attempt > 1:
                    self._warn(f"{incident.incident_id} was reported to {name}: {outcome or count(attempt)}")
                return True
        return False

    def _pause(self, wait_s: float) -> None:
        """Waits, also while the watch ends: `close` has a limit of its own."""
        time.sleep(wait_s)

    def _store(self) -> None:
        try:
            self._note(self._reported)
        except StorageError as error:
            self.problem = error


def count(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
