"""An account of a log made by replaying it batch by batch: what the generator's truth is held against."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.invariants import ERROR, check_image, check_step
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.types import (
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
)
from metaquorum.metadata.replay import Replayer
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.reader import Damage, LogReader

Key = tuple[bytes, int]


@dataclass
class Account:
    """What a replay saw. `states` holds (batch offset, time, leader, isr, epochs) of every partition."""

    records: int = 0
    batches: int = 0
    end_ms: int = 0
    types: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    epochs: list[tuple[int, int, int]] = field(default_factory=list)
    broker_states: list[tuple[int, str, int]] = field(default_factory=list)
    unclean: list[int] = field(default_factory=list)
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    states: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)
    image: MetadataImage | None = None


def min_isr(image: MetadataImage, topic: str) -> int:
    for resource in (ConfigResource(TOPIC_RESOURCE, topic), ConfigResource(BROKER_RESOURCE, "")):
        value = (image.configs.get(resource) or {}).get("min.insync.replicas")
        if value is not None:
            return int(value)
    return 1


def account(log: Path, *, until: int | None = None) -> Account:
    """Replays a log directory; raises what the replay raises."""
    found = Account()
    engine = Replayer()
    before = engine.state().image
    open_spans: dict[tuple[str, Key], int] = {}
    reader = LogReader(PosixDisk(), str(log), tolerant=True)
    for item in reader:
        if isinstance(item, Damage):
            found.damage.append(item)
            continue
        engine.apply_batch(item)
        after = engine.state().image
        time_ms = item.header.max_timestamp_ms
        found.batches += 1
        found.end_ms = time_ms
        keys: dict[Key, None] = {}
        for decoded in decode_batch(item):
            found.records += 1
            found.types[decoded.record.type_name] += 1
            _brokers(found, decoded.record, decoded.offset)
            if isinstance(decoded.record, PartitionRecord | PartitionChangeRecord):
                keys[decoded.record.topic_id, decoded.record.partition_id] = None
                if isinstance(decoded.record, PartitionChangeRecord):
                    found.totals["partition_changes"] += 1
            elif isinstance(decoded.record, RemoveTopicRecord):
                keys.update({key: None for key in found.states if key[0] == decoded.record.topic_id})
            elif decoded.record.type_name == "LEADER_CHANGE":
                found.epochs.append((item.header.leader_epoch, decoded.record.leader_id, decoded.offset))
        for key in keys:
            _partition(found, before, after, key, item.header.base_offset, time_ms, open_spans)
        for violation in [*check_image(after), *check_step(before, after)]:
            if violation.severity == ERROR:
                found.errors.append((item.header.base_offset, violation.rule, violation.where))
        before = after
        if until is not None and after.provenance.offset >= until:
            break
    reader.close()
    for (kind, _), since in open_spans.items():
        found.totals[kind] += found.end_ms - since
        found.totals[f"{kind}_open"] += 1
    found.image = before
    return found


def _brokers(found: Account, record: object, offset: int) -> None:
    match record:
        case BrokerRecord():
            found.broker_states.append((record.broker_id, "fenced", offset))
        case BrokerRegistrationChangeRecord(fenced=1):
            found.broker_states.append((record.broker_id, "fenced", offset))
        case BrokerRegistrationChangeRecord(fenced=-1):
            found.broker_states.append((record.broker_id, "active", offset))
        case BrokerRegistrationChangeRecord(in_controlled_shutdown=1):
            found.broker_states.append((record.broker_id, "controlled_shutdown", offset))


def _partition(
    found: Account,
    before: MetadataImage,
    after: MetadataImage,
    key: Key,
    offset: int,
    time_ms: int,
    open_spans: dict[tuple[str, Key], int],
) -> None:
    old, new = before.topics.partition(*key), after.topics.partition(*key)
    if old is not None and new is not None:
        found.totals["leader_changes"] += old.leader != new.leader
        found.totals["isr_shrinks"] += bool((set(old.isr) - set(new.isr)) & set(new.replicas))
        found.totals["isr_expands"] += bool(set(new.isr) - set(old.isr))
        if new.leader_recovery_state == 1 and new.leader not in old.isr:
            found.totals["unclean_elections"] += 1
            found.unclean.append(offset)
    leaderless = short = False
    if new is not None:
        topic = after.topics.topic(key[0])
        assert topic is not None
        leaderless = new.leader == -1
        short = len(new.isr) < min(min_isr(after, topic.name), len(new.replicas))
        found.states.setdefault(key, []).append(
            {
                "batch_offset": offset,
                "time_ms": time_ms,
                "leader": new.leader,
                "isr": sorted(new.isr),
                "leader_epoch": new.leader_epoch,
                "partition_epoch": new.partition_epoch,
            }
        )
    for kind, holds in (("leaderless_partition_ms", leaderless), ("under_min_isr_partition_ms", short)):
        if holds:
            open_spans.setdefault((kind, key), time_ms)
        elif (kind, key) in open_spans:
            found.totals[kind] += time_ms - open_spans.pop((kind, key))
