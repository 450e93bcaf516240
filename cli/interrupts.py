"""Signal handling of commands: Ctrl-C while modules are imported, termination that leaves nothing behind.

It imports almost nothing, so that it is there first. `produce` and `local up --watch` have handlers of
their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

EXIT_TERMINATED = 143
"""The exit code that a shell reports for a program that SIGTERM ended."""


@contextlib.contextmanager
def quiet_interrupts() -> Iterator[None]:
    """While entered, Ctrl-C ends the process at once, without a message.

    Nothing has started yet that needs cleanup. A KeyboardInterrupt in the middle of an import prints a
    traceback, or is swallowed by a module that mistakes it for its own failure. A handler that was set
    elsewhere stays, and so does an ignored SIGINT (a background job).
    """
    try:
        mine = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if mine:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:  # not the main thread, which gets no signals
        mine = False
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def end_while_starting(role: str) -> None:
    """From now on SIGTERM ends a node at once with exit code 0, until the node is up and shuts down in order.

    Nothing relies on a node that is not up, and what startup writes survives a crash at any point.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os.write(sys.stderr.fileno(), f"metaquorum {role}: SIGTERM during startup: stopped\n".encode())
        os._exit(0)

    signal.signal(signal.SIGTERM, end)


@contextlib.contextmanager
def terminated_in_order() -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP end the command as Ctrl-C does, so that nothing is left behind."""
    from metaquorum.platforms import ENDING_SIGNALS

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(EXIT_TERMINATED)

    earlier = {each: signal.signal(each, end) for each in ENDING_SIGNALS}
    try:
        yield
    finally:
        for signal_number, handler in earlier.items():
            signal.signal(signal_number, handler)
