"""Follows a log that another process writes: waits until it grows, then reads what is new.

The reader is synchronous and holds no lock; polling and reading of records run in threads, so that Ctrl-C
works at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator

from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.story import GrowingStory
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage, LogReader

INTERVAL_S = 0.2
COPY_INTERVAL_S = 0.02
"""For a copy that this process makes: a record is shown soon after its commit."""
FENCE_S = 2.0
"""How long nothing may be added to a log before events are given out that wait for the fence of a broker."""


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
        state = await asyncio.to_thread(_state, path)
        if state != seen:
            seen = state
            while found := await asyncio.to_thread(reader.poll):
                for item in found:
                    if emit(item):
                        return
        if check is not None:
            check()
        await asyncio.sleep(interval_s)


def follow_story(
    story: GrowingStory,
    path: str,
    emit: Callable[[Iterator[TimelineEvent]], None],
    *,
    interval_s: float = INTERVAL_S,
    check: Callable[[], None] | None = None,
) -> None:
    """Gives the events of a log to `emit`, old ones first, until the end of the story's range; `emit` is
    called with none, too, whenever the log grew. `check` is as in `follow`."""
    seen: object = None
    grown_s = 0.0
    while not story.is_over:
        state = _state(path)
        if state != seen:
            seen, grown_s = state, time.monotonic()
            emit(story.more())
        elif story.holds_back and time.monotonic() - grown_s >= FENCE_S:
            emit(story.release())
        if check is not None:
            check()
        time.sleep(interval_s)


def _state(path: str) -> object:
    """A value that changes when the log grows: names and sizes of its segments."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    names = [name for name in os.listdir(path) if name.endswith(".log")]
    if not names:
        return ()
    newest = max(names)
    return len(names), newest, os.path.getsize(f"{path}/{newest}")
