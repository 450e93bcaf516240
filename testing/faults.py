"""What can go wrong on a faulty disk: chances, injected errors, and the power loss."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class PowerLossError(Exception):
    """The power failed during this operation (see `FaultyDisk.crash_after`). `FaultyDisk.crash` returns what
    is left.

    Deliberately not a StorageError: code that handles disk errors must not handle this.
    """


class FaultProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of each fault, from 0.0 to 1.0, and the cost of operations in milliseconds.

    At a power loss, `keep_name` is the probability that an unsynced create, rename or remove survives.
    Unsynced contents survive entirely with probability `keep_contents`, otherwise up to a random byte. After
    that byte, the file is filled with zeros (probability `zero_tail`) or random bytes (`garbage_tail`), both
    of random length up to the size it had, or ends there.

    `slow` adds `slow_ms` to an operation; a sync costs `sync_ms`. `capacity_bytes` None: the disk never fills
    up.
    """

    keep_name: float = 0.5
    keep_contents: float = 0.2
    zero_tail: float = 0.25
    garbage_tail: float = 0.25
    slow: float = 0.0
    slow_ms: int = 500
    sync_ms: int = 1
    capacity_bytes: int | None = None


@dataclass(slots=True)
class Injection:
    """An error for the operations below `directory`: after `after` of them have succeeded, `count` fail.

    `operation` None matches every operation, `count` None never ends. `reason` is that of the DiskError.
    """

    directory: str
    operation: str | None
    after: int
    count: int | None
    reason: str
