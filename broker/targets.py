"""Which controller a broker sends its requests to, and how long it waits after a failure.

Owns the rotation over the voters, leader hints and the backoff. Knows no requests.
"""

from __future__ import annotations

import random


class ControllerTargets:
    """The next controller to try: the known leader, else the hint that was given, else the next voter."""

    def __init__(self, voters: tuple[int, ...], rng: random.Random) -> None:
        if not voters:
            raise ValueError(
                "no controllers are configured: set controller.quorum.voters, or "
                "controller.quorum.bootstrap.servers"
            )
        self._voters = voters
        self._leader: int | None = None
        self._redirects = 0
        self.current = voters[rng.randrange(len(voters))]

    def voters_are(self, voters: tuple[int, ...]) -> None:
        """The set of voters changed. The present target stays as long as its answers are useful."""
        self._voters = voters or self._voters

    def leader_known(self, leader_id: int | None) -> bool:
        """The leader as the metadata fetcher knows it. Returns True if the next request now goes
        elsewhere."""
        self._leader = leader_id
        if self._leader is None or self._leader == self.current:
            return False
        self.current = self._leader
        return True

    def answered(self) -> None:
        """The current controller acts as the active one."""
        self._redirects = 0

    def redirect(self, asked: int, hint: int | None) -> bool:
        """`asked` is not active and names `hint`. Returns True to try the hint at once, False to wait and
        then use `current`.

        Follows at most one hint per voter in a row, so two controllers that name each other (each behind in
        its own way) cost a backoff and no busy loop.
        """
        if (
            hint is not None
            and hint in (*self._voters, self._leader)
            and hint != asked
            and self._redirects < len(self._voters)
        ):
            self._redirects += 1
            self.current = hint
            return True
        self._redirects = 0
        self.failed(asked)
        return False

    def failed(self, asked: int) -> None:
        """`asked` gave no useful answer: try the leader if that is another node, else the next voter."""
        if self._leader is not None and self._leader != asked:
            self.current = self._leader
            return
        self._leader = None
        at = self._voters.index(asked) if asked in self._voters else -1
        self.current = self._voters[(at + 1) % len(self._voters)]


def backoff_ms(failures: int, *, base_ms: int, max_ms: int, rng: random.Random) -> int:
    """The wait after the `failures`-th consecutive failure (from 1): doubled each time, bounded, and spread
    over its upper half so that brokers that failed together do not retry together."""
    bound = min(max_ms, base_ms << min(failures - 1, 20))
    return max(1, bound - rng.randrange(bound // 2 + 1))
