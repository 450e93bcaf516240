"""Reads the events of a log in pieces, for the strip: those of a large log in a process of their own.

There the interpreter is not shared with the page's questions, so a move of the handle does not wait for it.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pickle import PicklingError
from typing import Any

import msgspec

from metaquorum.lines import one_line
from metaquorum.metadata.errors import ApiError, InspectError, RecordDecodeError, ReplayError
from metaquorum.metadata.inspect.causes.rule import INFO
from metaquorum.metadata.inspect.log.coverage import Uncovered
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.timeline.story import Seen, events
from metaquorum.metadata.inspect.timeline.timeline import SpanCounts
from metaquorum.metadata.inspect.walk.mentions import Mentions, mentions_of
from metaquorum.platforms import interrupts_held, lower_priority
from metaquorum.storage.errors import StorageError

APART_FROM_BYTES = 4 << 20
"""A log of at least this size is read in another process, which takes about a second to start."""
_EVENTS_AT_ONCE = 500
_PIECE_S = 0.2
_LOOK_S = 0.2
_NICE = 10
"""By how much the other process steps back behind the one that answers the page."""


def is_users(error: Exception) -> bool:
    """Whether an error says what is wrong with a log or a question, in a sentence; others are bugs."""
    return isinstance(
        error, InspectError | StorageError | RecordDecodeError | ReplayError | ApiError | OSError
    )


class EventPiece(msgspec.Struct, frozen=True, kw_only=True):
    """The next events of a log, what holds after each batch that changed it, and lines about damage."""

    events: list[TimelineEvent]
    counts: list[SpanCounts]
    problems: list[str]


class EventsEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The log was read up to this offset; what the events do not cover, and how many records are unknown."""

    end_offset: int
    uncovered: list[Uncovered]
    unknown: int


class ReaderLostError(Exception):
    """The other process is gone, or could not be started."""


Piece = Mentions | EventPiece | EventsEnd


def pieces(log: MetadataLog) -> Iterator[Piece]:
    """Where a sound log mentions what, then the events of the whole log, read in this process. Raises errors
    of which `is_users` holds."""
    if (mentions := mentions_of(log)) is not None:
        yield mentions
    made: list[TimelineEvent] = []
    counts: list[SpanCounts] = []
    problems: list[str] = []
    last: tuple[int | None, int | None] | None = None

    def count(point: SpanCounts) -> None:
        nonlocal last
        if (point.leaderless, point.under_min_isr) != last:
            last = point.leaderless, point.under_min_isr
            counts.append(point)

    seen = Seen(on_counts=count)
    began_s = time.monotonic()
    for event in events(log, problems.append, seen=seen, shown=at_least(INFO)):
        made.append(event)
        if len(made) >= _EVENTS_AT_ONCE or time.monotonic() - began_s > _PIECE_S:
            yield EventPiece(events=made, counts=list(counts), problems=list(problems))
            made, began_s = [], time.monotonic()
            counts.clear()
            problems.clear()
    yield EventPiece(events=made, counts=counts, problems=problems)
    yield EventsEnd(
        end_offset=max(seen.end_offset, log.start_offset),
        uncovered=list(seen.limits.coverage),
        unknown=seen.limits.unknown,
    )


class _Failed(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    is_users: bool


def pieces_apart(log: MetadataLog, is_stopped: Callable[[], bool]) -> Iterator[Piece]:
    """As `pieces`, read in another process; ends early once `is_stopped`. Raises ReaderLostError if that
    process cannot be started or ends by itself."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process: Any = context.Process(
        target=_send_pieces, args=(log, theirs), name="events of the log", daemon=True
    )
    try:
        with interrupts_held():  # Ctrl-C is for this process, which ends the other one
            process.start()
        theirs.close()
        while not is_stopped():
            if mine.poll(_LOOK_S):
                piece = mine.recv()
                if isinstance(piece, _Failed):
                    raise InspectError(piece.text) if piece.is_users else RuntimeError(piece.text)
                yield piece
                if isinstance(piece, EventsEnd):
                    return
    except (EOFError, OSError, PicklingError, TypeError, AttributeError) as error:  # or it cannot be sent
        raise ReaderLostError(str(error)) from error
    finally:
        mine.close()
        if process.pid is not None:
            process.terminate()
            process.join()


def _send_pieces(log: MetadataLog, to: Connection) -> None:
    """What the other process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lower_priority(_NICE)
    log.on_read = None
    try:
        for piece in pieces(log):
            to.send(piece)
    except (BrokenPipeError, ConnectionError):
        return  # the console has ended
    except Exception as error:
        text = one_line(error)
        to.send(_Failed(text=text if is_users(error) else traceback.format_exc(), is_users=is_users(error)))
