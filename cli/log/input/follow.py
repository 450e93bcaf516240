"""Follows a log that another process writes: waits until it grows, then reads what is new.

The reader is synchronous and holds no lock; polling and reading run in threads, so that Ctrl-C works at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiofiles.os

from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage, LogReader

INTERVAL_S = 0.2
COPY_INTERVAL_S = 0.02
"""For a copy that this process makes: a record is shown soon after its commit."""


async def follow(
    reader: LogReader,
    path: str,
    emit: Callable[[RecordBatch | Damage], bool],
    *,
    interval_s: float = INTERVAL_S,
    check: Callable[[], None] | None = None,
) -> None:
    """Gives every batch to `emit`, old ones first, until `emit` returns True (enough). `check`, for the copy
    of a running quorum, raises once nothing more comes.

    Raises LogTruncatedError if the log became shorter meanwhile, and what LogReader raises.
    """
    seen: object = None
    while True:
        state = await _state(path)
        if state != seen:
            seen = state
            while found := await asyncio.to_thread(reader.poll):
                for item in found:
                    if emit(item):
                        return
        if check is not None:
            check()
        await asyncio.sleep(interval_s)


async def _state(path: str) -> object:
    """A value that changes when the log grows: names and sizes of its segments."""
    if not await aiofiles.os.path.isdir(path):
        return await aiofiles.os.path.getsize(path)
    names = [name for name in await aiofiles.os.listdir(path) if name.endswith(".log")]
    if not names:
        return ()
    newest = max(names)
    return len(names), newest, await aiofiles.os.path.getsize(f"{path}/{newest}")
