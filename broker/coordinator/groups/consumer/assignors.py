"""The two server-side assignors of KIP-848: which member of a group gets which partitions.

Pure functions of the subscriptions, the number of partitions, and each member's present assignment. Every
partition of a subscribed topic goes to exactly one member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

Parts = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """`topics`: ids of the topics that exist. `has`: its partitions in the last assignment."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    has: Parts


Assignor = Callable[[tuple[Subscriber, ...], Mapping[bytes, int]], dict[str, dict[bytes, frozenset[int]]]]
"""Takes the subscribers and the number of partitions by topic id."""


def _wanted(subscribers: tuple[Subscriber, ...], counts: Mapping[bytes, int]) -> list[bytes]:
    return sorted(topic for topic in counts if any(topic in each.topics for each in subscribers))


def assign_range(
    subscribers: tuple[Subscriber, ...], counts: Mapping[bytes, int]
) -> dict[str, dict[bytes, frozenset[int]]]:
    """Assigns consecutive partitions of each topic, as evenly as possible; static members keep their place in
    the order when their ids change."""
    given: dict[str, dict[bytes, frozenset[int]]] = {each.member_id: {} for each in subscribers}
    in_order = sorted(
        subscribers, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id)
    )
    for topic in _wanted(subscribers, counts):
        members = [each for each in in_order if topic in each.topics]
        share, more = divmod(counts[topic], len(members))
        start = 0
        for at, member in enumerate(members):
            end = start + share + (at < more)
            if end > start:
                given[member.member_id][topic] = frozenset(range(start, end))
            start = end
    return given


def assign_uniform(
    subscribers: tuple[Subscriber, ...], counts: Mapping[bytes, int]
) -> dict[str, dict[bytes, frozenset[int]]]:
    """As even over all topics as the subscriptions allow, with as few moves as that needs: a member keeps
    what it has up to its share; the rest goes to the members that have least."""
    held: dict[str, set[tuple[bytes, int]]] = {each.member_id: set() for each in subscribers}
    subscribed = {each.member_id: each.topics for each in subscribers}
    owner: dict[tuple[bytes, int], str] = {}
    for subscriber in sorted(subscribers, key=lambda one: one.member_id):
        for topic in sorted(subscriber.has):
            for partition in sorted(subscriber.has[topic]):
                at = (topic, partition)
                if topic in subscriber.topics and partition < counts.get(topic, 0) and at not in owner:
                    owner[at] = subscriber.member_id
                    held[subscriber.member_id].add(at)
    for topic in _wanted(subscribers, counts):
        for partition in range(counts[topic]):
            if (topic, partition) not in owner:
                least = min(
                    (name for name in held if topic in subscribed[name]),
                    key=lambda name: (len(held[name]), name),
                )
                owner[topic, partition] = least
                held[least].add((topic, partition))
    _even_out(held, subscribed)
    given: dict[str, dict[bytes, frozenset[int]]] = {}
    for name, parts in held.items():
        topics = {topic for topic, _ in parts}
        given[name] = {
            topic: frozenset(index for other, index in parts if other == topic) for topic in topics
        }
    return given


def _even_out(held: dict[str, set[tuple[bytes, int]]], subscribed: Mapping[str, frozenset[bytes]]) -> None:
    """Moves partitions from members that have most to members that have at least two fewer, while there are
    such members and subscriptions allow it. Each move reduces the sum of squares, so it ends."""
    moved = True
    while moved:
        moved = False
        for rich in sorted(held, key=lambda name: (-len(held[name]), name)):
            poor = sorted(held, key=lambda name: (len(held[name]), name))
            for partition in sorted(held[rich]):
                taker = next((name for name in poor if partition[0] in subscribed[name]), rich)
                if len(held[taker]) + 1 < len(held[rich]):
                    held[rich].discard(partition)
                    held[taker].add(partition)
                    poor.sort(key=lambda name: (len(held[name]), name))
                    moved = True


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""By name; the first is the default."""
