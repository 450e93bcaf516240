"""A controller process's part in the quorum: health, and one log line per change.

Owns the memory of the last line and of the leader's last answer. Knows Raft's words for the roles and nothing
else of it; the driver reports changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

SEARCHES_BEFORE_SILENCE = 3
"""Consecutive attempts, in one epoch and without an answer from a leader, before one warning replaces the
rest."""

_log = logging.getLogger(__name__)

_Told = tuple[str, int, int | None, bool]


class Standing:
    """Call `fetched` for each successful answer of a leader, `moved` after every step. `others`: the other
    current voters."""

    def __init__(self, others: Callable[[], Iterable[int]]) -> None:
        self._others = others
        self._fetched_in_epoch = -1
        self._now: _Told | None = None
        self._told: _Told | None = None
        self._searches = 0

    def fetched(self, epoch: int) -> None:
        """A leader of `epoch` answered a fetch successfully."""
        self._fetched_in_epoch = epoch
        self._searches = 0

    @property
    def fetched_in_epoch(self) -> int:
        """The epoch of the leader that answered last; -1 if none has."""
        return self._fetched_in_epoch

    def moved(self, role: str, epoch: int, leader_id: int | None, *, active: bool) -> None:
        """The node's present role; logs one line if that is news."""
        now = (role, epoch, leader_id, active)
        if now != self._now:
            before, self._now = self._now, now
            if role != "follower":
                # Whatever a leader answered before: it has fallen silent, or this node took its place.
                self._fetched_in_epoch = -1
            if before is not None and before[1] != epoch:
                self._searches = 0
            if role == "prospective":
                self._searches += 1
                if self._searches == SEARCHES_BEFORE_SILENCE:
                    self._told = None
                    _log.warning(
                        "epoch %d: no leader, and no majority of voters answers; check that controllers "
                        "%s run and are reachable; this controller keeps trying",
                        epoch,
                        ", ".join(str(node_id) for node_id in self._others()),
                    )
        searching = role in ("prospective", "follower", "unattached")
        if now != self._told and not (searching and self._searches >= SEARCHES_BEFORE_SILENCE):
            self._told = now
            where = "no leader is known" if leader_id is None else f"node {leader_id} leads"
            _log.info(
                "epoch %d: %s%s, %s",
                *(epoch, role, " (active)" if active else "", where),
                extra={
                    "epoch": epoch,
                    "leader_id": -1 if leader_id is None else leader_id,
                    "quorum_role": role,
                    "active": active,
                    "source": "live",
                },
            )

    def takes_part(self, *, high_watermark: int) -> bool:
        """Whether this voter takes part in a quorum that makes progress, as far as it knows: it leads
        actively, or follows a leader that has answered it since it began to follow."""
        if self._now is None:
            return False
        role, epoch, _, active = self._now
        if role == "leader":
            return active
        return role == "follower" and self._fetched_in_epoch == epoch and high_watermark >= 0
