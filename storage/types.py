"""Value types that name positions in a log."""

from __future__ import annotations

import msgspec


class LogPosition(msgspec.Struct, frozen=True, order=True):
    """A position in a log: everything before `offset`, whose last record has leader epoch `epoch`.

    Compares by epoch first, then offset: the order in which Raft calls one log more up to date than another
    (Raft paper 5.4.1, KIP-595). Also the identity of a snapshot (KIP-630), where `offset` is the snapshot's
    end offset (exclusive).
    """

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.offset} (epoch {self.epoch})"
