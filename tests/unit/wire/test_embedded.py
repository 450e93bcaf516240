"""What a coordinator reads of a consumer's subscription: as leniently as Kafka, no more than version 0."""

from __future__ import annotations

import struct

import pytest

from metaquorum.wire.embedded import consumer_subscription, subscribed_topics


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


TOPICS = struct.pack(">i", 2) + text("t") + text("u")
USER_DATA = struct.pack(">i", 3) + b"abc"
NO_USER_DATA = struct.pack(">i", -1)
OWNED = struct.pack(">i", 1) + text("t") + struct.pack(">ii", 1, 0)
WHOLE = (USER_DATA + OWNED, struct.pack(">i", 7), text("rack"))
BODIES = {
    "the topics alone": (TOPICS, False),
    "cut off in the user data": (TOPICS + USER_DATA[:-1], False),
    "to the user data": (TOPICS + USER_DATA, True),
    "no user data": (TOPICS + NO_USER_DATA, True),
    "cut off in what is owned": (TOPICS + USER_DATA + OWNED[:-3], True),
    "to what is owned": (TOPICS + WHOLE[0], True),
    "to the generation": (TOPICS + b"".join(WHOLE[:2]), True),
    "whole": (TOPICS + b"".join(WHOLE), True),
    "of a later version": (TOPICS + b"".join(WHOLE) + b"what later versions add", True),
    "nonsense after the user data": (TOPICS + USER_DATA + b"\x7f\xff\xff\xff!", True),
}


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 32767])
@pytest.mark.parametrize("name", BODIES)
def test_topics_are_read_whatever_version_is_declared(name: str, version: int) -> None:
    body, is_read = BODIES[name]
    data = struct.pack(">h", version) + body
    assert subscribed_topics(data) == (("t", "u") if is_read else None)


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff" + TOPICS + USER_DATA])
def test_what_is_no_subscription_has_no_topics(data: bytes) -> None:
    assert subscribed_topics(data) is None


def test_whoever_needs_the_rest_reads_the_declared_version() -> None:
    assert consumer_subscription(b"\0\1" + TOPICS + USER_DATA) is None
    found = consumer_subscription(b"\0\3" + TOPICS + b"".join(WHOLE))
    assert found is not None and (found.value.generation_id, found.value.rack_id) == (7, "rack")
