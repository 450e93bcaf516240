"""The messages of `metaquorum produce`: lines of standard input, or a generator, at a given rate.

Owns reading that does not block the event loop: a pipe or a terminal is watched, a file is read directly.
Knows no producer and no keys.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator

from metaquorum.cli.errors import Failure

READ_BYTES = 256 * 1024
LINE_MAX_BYTES = 7 * 1024 * 1024
"""The longest line: a message must fit into a batch."""
RUN_MAX = 4096
PACE_S = 0.005
"""With a rate, messages pass in groups of about this many seconds."""


async def lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lines without their line ends, in groups as they arrive. The last one needs no line end. Raises Failure
    for a line that is too long."""
    rest = b""
    number = 0
    async for piece in _pieces(descriptor):
        found = (rest + piece).split(b"\n")
        rest = found.pop()
        if len(rest) > LINE_MAX_BYTES or any(len(line) > LINE_MAX_BYTES for line in found):
            at = (
                number
                + 1
                + next((i for i, line in enumerate(found) if len(line) > LINE_MAX_BYTES), len(found))
            )
            raise Failure(f"line {at} of the input is longer than {LINE_MAX_BYTES} bytes; split it")
        number += len(found)
        for start in range(0, len(found), RUN_MAX):
            yield found[start : start + RUN_MAX]
    if rest:
        yield [rest]


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    """Pieces of bytes from the descriptor, until its end."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        while piece := os.read(descriptor, READ_BYTES):
            yield piece
            await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except OSError:
        # A file that cannot be watched (/dev/null) never blocks.
        while piece := os.read(descriptor, READ_BYTES):
            yield piece
        return
    try:
        while True:
            await readable.wait()
            readable.clear()
            piece = os.read(descriptor, READ_BYTES)
            if not piece:
                return
            yield piece
    finally:
        loop.remove_reader(descriptor)


async def generated(count: int, size_bytes: int) -> AsyncIterator[list[bytes]]:
    """`count` messages of `size_bytes`: a number, as far as it fits, and padding."""
    filling = b"." * max(0, size_bytes - 12)
    digits = min(12, size_bytes)
    modulus = 10**digits
    for start in range(0, count, RUN_MAX):
        numbers = range(start, min(start + RUN_MAX, count))
        yield [b"%0*d%b" % (digits, number % modulus, filling) if digits else b"" for number in numbers]


async def paced(runs: AsyncIterator[list[bytes]], per_second: float | None) -> AsyncIterator[list[bytes]]:
    """The same messages, at most `per_second`; None: as they arrive."""
    loop = asyncio.get_running_loop()
    group = len_max = RUN_MAX if per_second is None else max(1, round(per_second * PACE_S))
    due = loop.time()
    async for run in runs:
        for start in range(0, len(run), len_max):
            part = run[start : start + group]
            if per_second is not None:
                now = loop.time()
                # After a pause of the input, keep the rate instead of catching up.
                due = max(due, now - 1.0)
                if due > now:
                    await asyncio.sleep(due - now)
                due += len(part) / per_second
            yield part
