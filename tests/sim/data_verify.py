"""After healing: every acknowledged record is in the log once, at the acknowledged offset, and in order."""

from __future__ import annotations

from metaquorum.metadata.image import MetadataImage
from tests.sim.data_broker import DataBroker
from tests.sim.data_laws import DataLaws
from tests.sim.data_producers import Lane, Life
from tests.sim.errors import SafetyError


def verify_lane(lane: Lane, image: MetadataImage, brokers: dict[int, DataBroker], laws: DataLaws) -> None:
    """Checks the log of the topic that a lane writes to now; earlier topics of that name are gone."""
    if not lane.lives or not lane.promises:
        return
    life = lane.lives[-1]
    partition = image.topics.partition(*life.key)
    if partition is None:
        return  # the topic was recreated, and this lane had nothing for it
    leader = brokers[partition.leader]
    replica = leader.partitions()[life.key]
    stored: dict[int, list[int]] = {}
    for batch in laws.batches_of(leader, replica):
        for record in batch.records():
            writer, number, _ = (record.value or b"").decode().split(":", 2)
            if writer == lane.name:
                stored.setdefault(int(number), []).append(record.offset)
    _require_acknowledged(lane, life, stored, replica.start_offset, loses=laws.may_lose(life.key))


def _require_acknowledged(
    lane: Lane, life: Life, stored: dict[int, list[int]], start_offset: int, *, loses: bool
) -> None:
    again: set[int] = set()
    for batch in life.sent:
        numbers = range(batch.number, batch.number + batch.count)
        if batch.renumbered:
            again.update(numbers)
            continue
        for at, number in enumerate(numbers):
            offsets = stored.get(number, [])
            if len(offsets) > 1:
                raise SafetyError(f"{lane.name}: record {number} is stored at {offsets}")
            if loses or batch.acknowledged is None or batch.acknowledged + at < start_offset:
                continue
            if offsets != [batch.acknowledged + at]:
                raise SafetyError(
                    f"{lane.name}: record {number} was acknowledged at {batch.acknowledged + at} and is"
                    f" stored at {offsets}"
                )
    if again:
        return
    in_order = [number for number, _ in sorted(stored.items(), key=lambda item: item[1][0])]
    if in_order != sorted(in_order):
        raise SafetyError(f"{lane.name}: its records are stored in the order {in_order}")
