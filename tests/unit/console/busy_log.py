"""Logs in which everything changes that a table shows, drawn from a seed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from metaquorum.metadata.records import types as r
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.metadata.made_logs import Batch, leads, make_node

RACKS = ("east", "west", "north", None)
LOW_IDS, HIGH_IDS = (0, 1, 2, 3, 7), (1, 2, 10, 5000, 70_000)


def uuid(kind: str, number: int) -> bytes:
    return kind.encode() + number.to_bytes(15, "big")


class _Cluster:
    """What was written so far, so that every record applies."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ids = LOW_IDS if seed % 2 else HIGH_IDS
        self.offset, self.epoch, self.made = 0, 1, 0
        self.brokers: dict[int, tuple[int, list[bytes]]] = {}
        self.topics: dict[str, tuple[bytes, dict[int, list[int]]]] = {}
        self.acls: list[bytes] = []

    def broker(self) -> list[Any]:
        broker_id = self.random.choice(self.ids)
        known, what = self.brokers.get(broker_id), self.random.random()
        if known is None or what < 0.1:
            listed = [uuid("d", broker_id * 10 + at) for at in range(self.random.randint(1, 3))]
            self.brokers[broker_id] = self.offset, listed
            place = (r.BrokerEndpoint("PLAIN", f"host{broker_id}", 9092, 0),)
            rack = RACKS[self.ids.index(broker_id) % len(RACKS)]
            number = self.offset
            return [
                r.BrokerRecord(broker_id, uuid("i", number), number, place, (), rack, log_dirs=tuple(listed))
            ]
        epoch, listed = known
        if what < 0.15:
            del self.brokers[broker_id]
            return [r.UnregisterBrokerRecord(broker_id, epoch)]
        if what < 0.6:
            return [r.UnfenceBrokerRecord(broker_id, epoch)]
        if what < 0.75:
            return [r.FenceBrokerRecord(broker_id, epoch)]
        if what < 0.85:
            return [r.BrokerRegistrationChangeRecord(broker_id, epoch, in_controlled_shutdown=1)]
        self.brokers[broker_id] = epoch, listed[:1]
        return [r.BrokerRegistrationChangeRecord(broker_id, epoch, log_dirs=tuple(listed[:1]))]

    def topic(self) -> list[Any]:
        if self.topics and self.random.random() < 0.2:
            name = self.random.choice(sorted(self.topics))
            return [r.RemoveTopicRecord(self.topics.pop(name)[0])]
        self.made += 1
        name, topic_id = (
            self.random.choice(("Orders", "pay", "t", "logs")) + f"-{self.made}",
            uuid("t", self.made),
        )
        partitions = {at: self._replicas() for at in range(self.random.choice((1, 2, 3, 12)))}
        self.topics[name] = topic_id, partitions
        return [
            r.TopicRecord(name, topic_id),
            *(
                r.PartitionRecord(
                    at, topic_id, tuple(held), tuple(held), leader=held[0], leader_epoch=0, partition_epoch=0
                )
                for at, held in partitions.items()
            ),
        ]

    def _replicas(self) -> list[int]:
        return self.random.sample(self.ids, self.random.randint(1, 3))

    def partition(self) -> list[Any]:
        if not self.topics:
            return self.topic()
        topic_id, partitions = self.topics[self.random.choice(sorted(self.topics))]
        index = self.random.choice(sorted(partitions))
        held = partitions[index]
        change: dict[str, Any] = {}
        match self.random.randrange(5):
            case 0:
                change["isr"] = tuple(held[: self.random.randint(1, len(held))])
            case 1:
                change["leader"] = self.random.choice((-1, *held))
            case 2:
                change["isr"], change["leader"] = tuple(held), held[-1]
            case 3:
                partitions[index] = held = self._replicas()
                change = {"replicas": tuple(held), "isr": tuple(held), "leader": held[0]}
                change["adding_replicas"] = tuple(held[1:])
                change["removing_replicas"] = tuple(held[1:][:1]) if self.random.random() < 0.2 else ()
            case _:
                listed = [self.brokers.get(at, (0, [uuid("x", at)]))[1] for at in held]
                change["directories"] = tuple(self.random.choice(own) for own in listed)
        return [r.PartitionChangeRecord(index, topic_id, **change)]

    def setting(self) -> list[Any]:
        kind, names = self.random.choice(
            [(2, sorted(self.topics) or ["t"]), (4, ["", "1"]), (16, ["client"])]
        )
        keys = {
            2: ("min.insync.replicas", "retention.ms", "odd.key"),
            4: ("min.insync.replicas",),
            16: ("odd",),
        }
        key, value = self.random.choice(keys[kind]), self.random.choice(("1", "2", "3", "604800000", None))
        return [r.ConfigRecord(kind, self.random.choice(names), key, value)]

    def other(self) -> list[Any]:
        number = self.random.randrange(4)
        match self.random.randrange(8):
            case 0:
                self.acls.append(uuid("a", self.offset))
                name, who = self.random.choice(("pay", "*", "Orders-1")), f"User:u{number}"
                kind, does = self.random.choice((2, 3)), self.random.choice((2, 3, 4))
                return [
                    r.AccessControlEntryRecord(self.acls[-1], 2, name, 3 + number % 2, who, "*", does, kind)
                ]
            case 1 if len(self.acls) > 3:
                return [r.RemoveAccessControlEntryRecord(self.acls.pop(0))]
            case 2:
                return [
                    r.UserScramCredentialRecord(f"u{number}", 1 + number % 2, b"s", b"k", b"v", 4096 + number)
                ]
            case 3:
                entity = (r.QuotaEntity("user", f"u{number}" if number else None),)
                return [r.ClientQuotaRecord(entity, "consumer_byte_rate", number * 1.5, False)]
            case 4:
                return [r.DelegationTokenRecord(f"User:u{number}", "User:r", (), 5, 20, 10, f"token{number}")]
            case 5:
                return [r.ProducerIdsRecord(1, -1, self.offset * 1000)]
            case 6:
                place = (r.ControllerEndpoint("CONTROLLER", f"c{number}", 9093, 0),)
                return [r.ControllerRecord(3000 + number, uuid("c", number), False, place)]
        return [r.FeatureLevelRecord("transaction.version", number % 3)]

    def batch(self) -> Batch:
        draw = self.random.random()
        if draw < 0.03:
            self.epoch += 1
            made: list[Any] = [leads(3000 + self.epoch % 3)]
        elif draw < 0.3:
            made = self.broker()
        elif draw < 0.4:
            made = self.topic()
        elif draw < 0.7:
            made = self.partition()
        else:
            made = self.setting() if draw < 0.8 else self.other()
        self.offset += len(made)
        return self.epoch, made


def busy_log(home: Path, seed: int, batches: int = 300) -> Path:
    """A node's directory; odd seeds have low broker ids, even ones high ids, too."""
    cluster = _Cluster(seed)
    first: list[Batch] = [(1, [leads(3001)]), (1, [r.FeatureLevelRecord("metadata.version", 19)])]
    cluster.offset = len(first)
    make_node(PosixDisk(), [*first, *(cluster.batch() for _ in range(batches))], home=str(home))
    return home
