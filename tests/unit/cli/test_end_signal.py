"""A signal that interrupts the wait for it, at any moment."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

from metaquorum.cli.local.watch import EndSignal


def test_a_handler_may_interrupt_the_wait_anywhere() -> None:
    """At each call and return inside it, as the interpreter runs handlers between them."""
    found: list[bool] = []

    def wait() -> None:
        ended = EndSignal()

        def interrupt(frame: FrameType, event: str, argument: Any) -> None:
            sys.setprofile(None)
            ended.handle(signal.SIGTERM, None)
            sys.setprofile(interrupt)

        sys.setprofile(interrupt)
        try:
            found.append(ended.wait(60))
        finally:
            sys.setprofile(None)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(30)
    assert found == [True]


def test_without_a_signal_the_wait_ends_by_itself() -> None:
    ended = EndSignal()
    assert not ended.wait(0.001)
    ended.handle(signal.SIGINT, None)
    assert ended.wait(60) and not ended.wait(0.001)
