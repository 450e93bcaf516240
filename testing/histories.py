"""Whether what consumers read is what producers were promised: each message once, in order, and committed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from metaquorum.testing.errors import ClusterError

SHOWN_MAX = 5
"""How many messages of a problem are named."""


class HistoryError(ClusterError, AssertionError):
    """A history breaks a promise of Kafka; the message says which, and shows the first messages."""


class SentMessage(NamedTuple):
    """A message that a broker acknowledged. `transaction`: any name of the transaction that it was sent in;
    None without one."""

    topic: str
    partition: int
    value: Hashable
    transaction: Hashable = None


class ReadMessage(NamedTuple):
    """A message that a consumer with `isolation.level=read_committed` got. `offset` -1: unknown."""

    topic: str
    partition: int
    value: Hashable
    offset: int = -1


def check_log(
    acknowledged: Iterable[Any],
    read: Iterable[Any],
    *,
    aborted: Iterable[Hashable] = (),
    unknown: Iterable[Hashable] = (),
) -> None:
    """Raises HistoryError unless every acknowledged message was read once, those of a partition in the order
    in which they were acknowledged, and no other message was read.

    `acknowledged`: `SentMessage` values, or tuples with their fields, in the order in which they were sent
    to each partition; values are unique. `read`: `ReadMessage` values, or tuples, in the order in which a
    consumer got them. `aborted`: transactions that were aborted. `unknown`: values whose sending has no known
    end, which may be read once or not at all.
    """
    sent = [SentMessage(*each) for each in acknowledged]
    got = [ReadMessage(*each) for each in read]
    is_aborted = set(aborted)
    twice = [value for value, count in Counter(each.value for each in sent).items() if count > 1]
    if twice:
        raise ClusterError(f"{_some(twice)} was acknowledged more than once: give messages unique values")
    wanted = [each for each in sent if each.transaction is None or each.transaction not in is_aborted]
    refused = {each.value for each in sent if each.transaction is not None and each.transaction in is_aborted}
    counts = Counter(each.value for each in got)
    expected = {each.value for each in wanted}
    problems = {
        "acknowledged, and never read": [each.value for each in wanted if not counts[each.value]],
        "read more than once": [value for value, count in counts.items() if count > 1],
        "read, although its transaction was aborted": [value for value in counts if value in refused],
        "read, and never acknowledged": [
            value for value in counts if value not in {*expected, *refused, *unknown}
        ],
        "read in another partition than it was acknowledged in": _misplaced(wanted, got),
        "read before a message that was acknowledged earlier": _out_of_order(wanted, got),
    }
    found = [f"{len(values)} {what}: {_some(values)}" for what, values in problems.items() if values]
    if found:
        raise HistoryError("; ".join(found))


def _misplaced(wanted: list[SentMessage], got: list[ReadMessage]) -> list[Hashable]:
    homes = {each.value: (each.topic, each.partition) for each in wanted}
    return [each.value for each in got if homes.get(each.value, each[:2]) != each[:2]]


def _out_of_order(wanted: list[SentMessage], got: list[ReadMessage]) -> list[Hashable]:
    """Values that were read before one that was acknowledged before them."""
    order = {each.value: number for number, each in enumerate(wanted)}
    by_partition: dict[tuple[str, int], list[Hashable]] = defaultdict(list)
    seen: set[Hashable] = set()
    for each in got:
        if each.value in order and each.value not in seen:
            seen.add(each.value)
            by_partition[each.topic, each.partition].append(each.value)
    early: list[Hashable] = []
    for values in by_partition.values():
        early += [one for one, other in pairwise(values) if order[one] > order[other]]
    return early


def _some(values: Iterable[Hashable]) -> str:
    listed = list(values)
    more = f" and {len(listed) - SHOWN_MAX} more" if len(listed) > SHOWN_MAX else ""
    return ", ".join(repr(value) for value in listed[:SHOWN_MAX]) + more
