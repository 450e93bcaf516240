"""Mistakes in the way from a broker to the active controller."""

from __future__ import annotations

from tests.planted.bug import Bug

CHANNEL = "tests/unit/broker/test_channel.py"
SOURCE = "docs/architecture.md, A heartbeat"

CHANNEL_BUGS = (
    Bug(
        name="hint-ignored",
        breaks="a controller that names the active one is believed",
        source=SOURCE,
        file="broker/channel.py",
        old="self.current = hint",
        new="pass",
        caught_by=(CHANNEL,),
    ),
    Bug(
        name="hints-followed-for-ever",
        breaks="two controllers that name each other cost a wait and no busy loop",
        source=SOURCE,
        file="broker/channel.py",
        old="if self._hints_followed < self._channel.hints_max and self._channel.takes_hint",
        new="if self._channel.takes_hint",
        caught_by=(CHANNEL,),
    ),
    Bug(
        name="backoff-not-reset",
        breaks="a useful answer ends the waits",
        source=SOURCE,
        file="broker/channel.py",
        old="self.failures = 0\n        self.next_send_ms = 0",
        new="self.next_send_ms = 0",
        caught_by=(CHANNEL, "tests/unit/broker/test_small_laws.py"),
    ),
    Bug(
        name="second-request-in-flight",
        breaks="one request of a kind is in flight",
        source=SOURCE,
        file="broker/channel.py",
        old="return self.in_flight is None and now_ms >= self.next_send_ms",
        new="return now_ms >= self.next_send_ms",
        caught_by=(CHANNEL, "tests/sim/test_data_stories.py"),
    ),
    Bug(
        name="answer-to-another-request-taken",
        breaks="a report counts for its own request",
        source=SOURCE,
        file="broker/channel.py",
        old="if sent is None or (sent.target, sent.correlation_id) != (target, correlation_id):",
        new="if sent is None:",
        caught_by=(CHANNEL, "tests/properties/test_broker_session.py"),
    ),
    Bug(
        name="controller-left-twice",
        breaks="no answer of a controller that was left already moves nothing",
        source=SOURCE,
        file="broker/channel.py",
        old="if asked != self.current:",
        new="if asked is None:",
        caught_by=(CHANNEL,),
    ),
)
