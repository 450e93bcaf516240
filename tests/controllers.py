"""A broker's channel to controllers, and reports on its requests, for tests that play the shell."""

from __future__ import annotations

import random
from typing import Any

from metaquorum.broker.channel import ControllerChannel, ControllerReported, NoAnswer, SendToController


def channel(*voters: int, seed: int = 0) -> ControllerChannel:
    """To these controllers; 1 to 3 if none is given."""
    return channel_of(voters or (1, 2, 3), random.Random(seed))


def channel_of(voters: tuple[int, ...], rng: random.Random) -> ControllerChannel:
    """With Kafka's waits."""
    return ControllerChannel(voters, rng, backoff_ms=50, backoff_max_ms=1_000)


def reported(sent: SendToController, outcome: Any) -> ControllerReported:
    """The report on a request: its answer, or the ApiError with which it was refused."""
    return ControllerReported(target=sent.target, correlation_id=sent.correlation_id, outcome=outcome)


def unanswered(sent: SendToController, reason: str = "lost") -> ControllerReported:
    return reported(sent, NoAnswer(reason))
