"""A plan for new committed offsets of a group, partition by partition, within what the logs hold.

Owns Kafka's rules: an offset outside a log is moved to its nearest end, a time after the newest record means
the end, and a shift starts at the committed offset. Does not commit anything: `groups` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from metaquorum.metadata.errors import ErrorCode
from metaquorum.runtime.kafka.admin.groups import Committed
from metaquorum.runtime.kafka.admin.log_ends import EARLIEST, LATEST, Place, leaders_of, log_offsets
from metaquorum.runtime.kafka.client.cluster import KafkaClient

Found = Mapping[Place, int | ErrorCode]


class Aim(Enum):
    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    TIME = "--to-datetime"
    OFFSET = "--to-offset"
    SHIFT = "--shift-by"
    GIVEN = "--from-file"


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a reset. `value`: a time in ms, an offset or a shift, depending on `aim`; `given`:
    offsets by partition."""

    aim: Aim
    value: int = 0
    given: Mapping[Place, int] = msgspec.field(default_factory=dict)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The new offset of a partition. `new` None: there is none, and `note` is the reason; otherwise `note`
    says how the offset was adjusted, if it was."""

    place: Place
    committed: int | None
    new: int | None
    note: str = ""


async def partitions_of(
    client: KafkaClient, wanted: Iterable[tuple[str, Sequence[int] | None]]
) -> tuple[list[Place], list[str]]:
    """Returns the partitions of topics (None: all), and one line per partition or topic that does not
    exist."""
    wanted = list(wanted)
    found = await leaders_of(client, [topic for topic, _ in wanted])
    places, missing = [], []
    for topic, indexes in wanted:
        known = found.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if isinstance(known, ErrorCode):
            missing.append(f"{known.name}: topic {topic}")
            continue
        for index in sorted(known) if indexes is None else indexes:
            if index in known:
                places.append((topic, index))
            else:
                count = "1 partition" if len(known) == 1 else f"{len(known)} partitions"
                missing.append(f"{topic}-{index} does not exist: the topic has {count}")
    return sorted(set(places)), missing


async def plan_reset(
    client: KafkaClient, goal: Goal, places: Sequence[Place], committed: Mapping[Place, Committed]
) -> list[Planned]:
    """The planned offset of each partition."""

    async def at(time_ms: int, some: Iterable[Place] = places) -> Found:
        return await log_offsets(client, dict.fromkeys(some, time_ms))

    before = {place: committed[place].offset for place in places if place in committed}
    match goal.aim:
        case Aim.EARLIEST:
            return _settled(places, before, await at(EARLIEST))
        case Aim.LATEST:
            return _settled(places, before, await at(LATEST))
        case Aim.CURRENT:
            ends = await at(LATEST, [place for place in places if place not in before])
            notes = dict.fromkeys(ends, "nothing was committed: the end of the log")
            return _settled(places, before, {**ends, **before}, notes)
        case Aim.TIME:
            found = await at(goal.value)
            ends = await at(LATEST, [place for place, offset in found.items() if offset == -1])
            notes = dict.fromkeys(ends, "no record is as new: the end of the log")
            return _settled(places, before, {**found, **ends}, notes)
        case Aim.OFFSET | Aim.SHIFT | Aim.GIVEN:
            return _within(places, before, _wanted(goal, before), await at(EARLIEST), await at(LATEST))


def _wanted(goal: Goal, before: Mapping[Place, int]) -> Callable[[Place], int | None]:
    if goal.aim is Aim.SHIFT:
        return lambda place: before[place] + goal.value if place in before else None
    return lambda place: goal.value if goal.aim is Aim.OFFSET else goal.given[place]


def _settled(
    places: Iterable[Place],
    before: Mapping[Place, int],
    found: Found,
    notes: Mapping[Place, str] | None = None,
) -> list[Planned]:
    return [_planned(place, before, found[place], (notes or {}).get(place, "")) for place in places]


def _planned(place: Place, before: Mapping[Place, int], found: int | ErrorCode, note: str) -> Planned:
    if isinstance(found, ErrorCode):
        return Planned(place=place, committed=before.get(place), new=None, note=found.name)
    return Planned(place=place, committed=before.get(place), new=found, note=note)


def _within(
    places: Iterable[Place],
    before: Mapping[Place, int],
    wanted: Callable[[Place], int | None],
    starts: Found,
    ends: Found,
) -> list[Planned]:
    plan = []
    for place in places:
        offset, start, end = wanted(place), starts[place], ends[place]
        if isinstance(start, ErrorCode) or isinstance(end, ErrorCode):
            plan.append(_planned(place, before, start if isinstance(start, ErrorCode) else end, ""))
        elif offset is None:
            plan.append(Planned(place=place, committed=None, new=None, note="nothing was committed to shift"))
        elif offset < start:
            plan.append(_planned(place, before, start, f"{offset} is below the start of the log"))
        elif offset > end:
            plan.append(_planned(place, before, end, f"{offset} is past the end of the log"))
        else:
            plan.append(_planned(place, before, offset, ""))
    return plan
