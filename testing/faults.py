"""What can go wrong on a faulty disk: how likely, at which operation, and the power loss."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class PowerLossError(Exception):
    """The power failed during this operation (see `FaultyDisk.crash_after`). Call `crash()` for what is left.

    No StorageError on purpose: code that handles disk errors must not handle this.
    """


class FaultProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How likely what is, from 0.0 to 1.0, and what operations cost in milliseconds.

    At a power loss an unsynced name operation survives with `keep_name`. Unsynced contents survive wholly
    with `keep_contents`, else as far as a random byte; behind that follow, with `zero_tail` and
    `garbage_tail`, zeros or random bytes up to the length that the file had.
    """

    keep_name: float = 0.5
    keep_contents: float = 0.2
    zero_tail: float = 0.25
    garbage_tail: float = 0.25
    sync_error: float = 0.0
    write_error: float = 0.0
    read_error: float = 0.0
    slow: float = 0.0
    slow_ms: int = 500
    sync_ms: int = 1
    capacity_bytes: int | None = None


@dataclass(slots=True)
class Injection:
    """An error for a directory: the `after`-th matching operation from now on fails, `count` times."""

    directory: str
    operation: str | None
    after: int
    count: int | None
    reason: str
