"""Signals: Ctrl-C while modules are loaded, and an end that leaves nothing behind. Knows no command, and
imports next to nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

EXIT_TERMINATED = 143
"""As a shell says it of a program that SIGTERM ended."""


@contextlib.contextmanager
def quiet_interrupts() -> Iterator[None]:
    """While it is entered Ctrl-C ends the process at once and without a word.

    Nothing has happened yet that had to be put in order; and KeyboardInterrupt in the middle of an import is
    a traceback at best, or is swallowed by a module that takes it for its own failure. A handler that
    someone else set, and a SIGINT that is ignored (a job in the background), stay.
    """
    try:
        mine = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if mine:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:  # not the main thread: no signal comes here
        mine = False
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def end_while_starting(role: str) -> None:
    """From now on SIGTERM ends a node at once with exit code 0, until the node is up and leaves in order.

    Nothing relies on a node that is not up, and what a start writes survives any end of the process.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os.write(sys.stderr.fileno(), f"metaquorum {role}: SIGTERM during startup: stopped\n".encode())
        os._exit(0)

    signal.signal(signal.SIGTERM, end)


@contextlib.contextmanager
def terminated_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command as Ctrl-C does, so that nothing is left behind."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(EXIT_TERMINATED)

    earlier = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in earlier.items():
            signal.signal(each, handler)
