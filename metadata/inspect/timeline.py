"""What happened, told from a log: elections, registrations, fences, topics and who led what.

Owns the translation of records into events for people. Knows no files, and keeps only what an event's
text needs: topic names, broker states and current leaders. It judges nothing; `replay` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metadata import control_records as control
from metadata import records as r
from metadata.inspect.entities import EntityNamer

_NAMED_PARTITIONS = 3
"""So many partitions are named in an event's text before it says how many more there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One thing that happened. `offset` is that of the first record which says so; `time_ms` is Unix time."""

    offset: int
    epoch: int
    time_ms: int
    kind: str
    entity: str
    text: str


class Timeline:
    """Feed it every batch in log order; it answers with the events that the batch tells of."""

    def __init__(self) -> None:
        self._namer = EntityNamer()
        self._leaders: dict[tuple[bytes, int], int] = {}
        self._brokers: dict[int, str] = {}

    def batch(self, epoch: int, time_ms: int, records: Iterable[tuple[int, object]]) -> list[TimelineEvent]:
        """Events of one batch: `records` are (offset, decoded record)."""
        told: list[TimelineEvent] = []
        moves: dict[tuple[int, int], list[tuple[int, str]]] = {}
        partitions: dict[bytes, int] = {}

        def tell(offset: int, kind: str, entity: str, text: str) -> None:
            told.append(
                TimelineEvent(
                    offset=offset, epoch=epoch, time_ms=time_ms, kind=kind, entity=entity, text=text
                )
            )

        topics: list[tuple[int, r.TopicRecord]] = []
        for offset, record in records:
            names = self._namer.entities(record)
            match record:
                case r.TopicRecord():
                    topics.append((offset, record))
                case r.PartitionRecord(topic_id=topic_id, partition_id=index, leader=leader):
                    partitions[topic_id] = partitions.get(topic_id, 0) + 1
                    self._leaders[topic_id, index] = leader
                case r.PartitionChangeRecord(leader=None):
                    pass
                case r.PartitionChangeRecord(topic_id=topic_id, partition_id=index, leader=int(leader)):
                    old = self._leaders.get((topic_id, index), r.NO_LEADER)
                    self._leaders[topic_id, index] = leader
                    if old != leader:
                        name = f"{self._namer.topic_name(topic_id)}-{index}"
                        moves.setdefault((old, leader), []).append((offset, name))
                case _:
                    event = self._single(record, names)
                    if event is not None:
                        tell(offset, *event)
        for offset, topic in topics:
            count = partitions.get(topic.topic_id, 0)
            tell(
                offset, "topic created", f"topic/{topic.name}", f"{topic.name}, {_count(count, 'partition')}"
            )
        for (old, new), moved in moves.items():
            text = f"{_listed([name for _, name in moved])}: {_leader(old)} -> {_leader(new)}"
            tell(moved[0][0], "leader changed", f"broker/{new}" if new >= 0 else f"broker/{old}", text)
        return sorted(told, key=lambda event: event.offset)

    def _single(self, record: object, names: Sequence[str]) -> tuple[str, str, str] | None:
        match record:
            case control.LeaderChangeMessage(leader_id=leader, voters=voters):
                ids = ",".join(str(voter.voter_id) for voter in voters)
                return "election", f"controller/{leader}", f"controller {leader} leads (voters {ids})"
            case r.FeatureLevelRecord(name=name, feature_level=level):
                return "feature", f"feature/{name}", f"{name} is at level {level}"
            case r.ControllerRecord(controller_id=node):
                return "controller registered", f"controller/{node}", f"controller {node}"
            case r.RemoveTopicRecord(topic_id=topic_id):
                name = self._namer.topic_name(topic_id)
                return "topic deleted", f"topic/{name}", name
            case r.AbortTransactionRecord(reason=reason):
                return "transaction aborted", "transaction", reason or "no reason given"
        return self._broker(record)

    def _broker(self, record: object) -> tuple[str, str, str] | None:
        match record:
            case r.BrokerRecord(broker_id=node, broker_epoch=epoch, fenced=fenced):
                again = " again" if node in self._brokers else ""
                self._brokers[node] = "fenced" if fenced else "unfenced"
                return "broker registered", f"broker/{node}", f"broker {node}{again}, broker epoch {epoch}"
            case r.UnregisterBrokerRecord(broker_id=node):
                self._brokers.pop(node, None)
                return "broker unregistered", f"broker/{node}", f"broker {node}"
            case (
                r.FenceBrokerRecord(id=node)
                | r.BrokerRegistrationChangeRecord(broker_id=node, fenced=r.FENCED)
            ):
                return self._turned(node, "fenced")
            case (
                r.UnfenceBrokerRecord(id=node)
                | r.BrokerRegistrationChangeRecord(broker_id=node, fenced=r.UNFENCED)
            ):
                return self._turned(node, "unfenced")
            case r.BrokerRegistrationChangeRecord(
                broker_id=node, in_controlled_shutdown=r.IN_CONTROLLED_SHUTDOWN
            ):
                return self._turned(node, "in controlled shutdown")
            case r.BrokerRegistrationChangeRecord(broker_id=node, log_dirs=tuple(directories)):
                online = _count(len(directories), "log directory", "log directories")
                return "directories changed", f"broker/{node}", f"broker {node} has {online} online"
        return None

    def _turned(self, node: int, state: str) -> tuple[str, str, str]:
        before = self._brokers.get(node, "unknown")
        self._brokers[node] = state
        return f"broker {state}", f"broker/{node}", f"broker {node} (was {before})"


def _leader(node: int) -> str:
    return "none" if node == r.NO_LEADER else str(node)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED_PARTITIONS])
    more = len(names) - _NAMED_PARTITIONS
    return f"{shown} and {more} more" if more > 0 else shown
