"""The records that a story's batches are written with: Python expressions over a few short names.

`Broker(1)` and the like are the record classes of `metadata.records.types` without "Record", with keywords as
there; the lower-case names below are what a controller writes most, with what it would fill in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from metaquorum.metadata.errors import UnsupportedVersionError
from metaquorum.metadata.image.directories import damaged_in, given_up_in
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.metadata.records.types import BrokerEndpoint, QuotaEntity

KINDS = {"topic": 2, "broker": 4, "cluster": 4}
VOTERS = (3000, 3001, 3002)


def uuid(name: str) -> bytes:
    """An id that follows from a name."""
    return hashlib.sha256(name.encode()).digest()[:16]


def voter(node_id: int, port: int = 9093, directory: str | None = None) -> control.Voter:
    """A dynamic voter with the directory of the node that a story writes, unless another is named."""
    own = b"made" + node_id.to_bytes(12, "big") if directory is None else uuid(directory)
    at = control.VoterEndpoint(name="CONTROLLER", host=f"c{node_id}", port=port)
    return control.Voter(node_id, own, (at,), control.KRaftVersionFeature(0, 1))


def voters(*listed: int | control.Voter) -> control.VotersRecord:
    """A voter set: ids, or voters that differ from what `voter` makes of an id."""
    return control.VotersRecord(tuple(voter(one) if isinstance(one, int) else one for one in listed))


class Records:
    """Makes records; remembers broker epochs and how many partitions a topic has."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._incarnations: dict[int, int] = {}
        self._next = 0
        self._names: dict[str, Any] = {
            name.removesuffix("Record"): self._noted(cls)
            for name, cls in vars(r).items()
            if name.endswith("Record") and isinstance(cls, type)
        }
        own = (
            "by",
            "registers",
            "stays",
            "unfences",
            "fences",
            "stops",
            "unregisters",
            "dirs",
            "topic",
            "adds",
            "moves",
            "sets",
        )
        self._names.update({name: getattr(self, name) for name in own})
        self._names.update(uuid=uuid, level=self.level, Endpoint=BrokerEndpoint, QuotaEntity=QuotaEntity)
        self._names.update(
            damaged_in=lambda one: damaged_in(uuid(one)), given_up_in=lambda one: given_up_in(uuid(one))
        )

    def values(self, text: str, offset: int) -> list[bytes]:
        """The encoded values of one batch; `text` is one expression or several between commas."""
        self._next = offset
        made = eval(f"[{text}]", {"__builtins__": {"range": range}, **self._names})
        return [_encoded(one) for one in _flat(made)]

    def leader_change(
        self, node_id: int, votes: str | None, voters: str | None
    ) -> tuple[list[bytes], list[bytes]]:
        ids = VOTERS if voters is None else tuple(map(int, voters.split(",")))
        granting = ids[:2] if votes is None else tuple(int(one) for one in votes.split(",") if one)
        listed = tuple(control.LeaderVoter(voter) for voter in ids)
        message = control.LeaderChangeMessage(
            node_id, listed, tuple(control.LeaderVoter(voter) for voter in granting)
        )
        key, value = encode_control(message)
        return [key], [value]

    def control(self, text: str) -> tuple[list[bytes], list[bytes]]:
        names = {"uuid": uuid, "voter": voter, "voters": voters}
        made = eval(f"[{text}]", {**vars(control), "__builtins__": {}, **names})
        pairs = [encode_control(one) for one in made]
        return [key for key, _ in pairs], [value for _, value in pairs]

    def _noted(self, cls: type[Any]) -> Any:
        def make(*args: Any, **fields: Any) -> Any:
            self._next += 1
            return cls(*_frozen(args), **{name: _frozen(value) for name, value in fields.items()})

        return make

    def _made(self, record: Any) -> Any:
        self._next += 1
        return record

    def by(self, *who: Any, **fields: Any) -> r.NoOpRecord:
        """What caused the batch that begins with it: by("CreateTopics", principal="User:alice"...)."""
        return self._made(cause_record(BatchCause(*who, **fields)))

    # ---- brokers ---------------------------------------------------------------------------------

    def registers(
        self, broker: int, *dirs: str | bytes, again: bool = False, **fields: Any
    ) -> r.BrokerRecord:
        """A broker starts; `again`, the same process registers once more."""
        if not again:
            self._incarnations[broker] = self._incarnations.get(broker, 0) + 1
        self._epochs[broker] = self._next
        return self._made(
            r.BrokerRecord(
                broker,
                uuid(f"{broker} {self._incarnations[broker]}"),
                self._next,
                log_dirs=tuple(map(place, dirs)),
                **{name: _frozen(value) for name, value in fields.items()},
            )
        )

    def stays(self, broker: int, **fields: Any) -> r.BrokerRegistrationChangeRecord:
        """A change of the registration that the broker has."""
        frozen = {name: _frozen(value) for name, value in fields.items()}
        return self._made(r.BrokerRegistrationChangeRecord(broker, self._epochs[broker], **frozen))

    def unfences(self, broker: int) -> Any:
        return self.stays(broker, fenced=-1)

    def fences(self, broker: int) -> Any:
        return self.stays(broker, fenced=1)

    def stops(self, broker: int) -> Any:
        return self.stays(broker, in_controlled_shutdown=1)

    def unregisters(self, broker: int) -> Any:
        return self._made(r.UnregisterBrokerRecord(broker, self._epochs[broker]))

    def dirs(self, broker: int, *names: str | bytes) -> Any:
        return self.stays(broker, log_dirs=tuple(map(place, names)))

    # ---- topics ----------------------------------------------------------------------------------

    def topic(self, name: str, *partitions: Iterable[int], **fields: Any) -> list[Any]:
        """A topic with its partitions: a list of replicas each, the first one leads."""
        made = [self._made(r.TopicRecord(name, uuid(name)))]
        return made + [self.adds(f"{name}-{index}", on, **fields) for index, on in enumerate(partitions)]

    def adds(self, partition: str, on: Iterable[int], **fields: Any) -> r.PartitionRecord:
        name, _, index = partition.rpartition("-")
        replicas = tuple(on)
        filled = {"isr": replicas, "leader": replicas[0], "leader_epoch": 0, "partition_epoch": 0}
        filled |= {key: _frozen(value) for key, value in fields.items()}
        return self._made(r.PartitionRecord(int(index), uuid(name), replicas, **filled))

    def moves(self, partition: str, **fields: Any) -> r.PartitionChangeRecord:
        """A change of a partition: `moves("orders-0", leader=2, isr=[2])`."""
        name, _, index = partition.rpartition("-")
        frozen = {key: _frozen(value) for key, value in fields.items()}
        return self._made(r.PartitionChangeRecord(int(index), uuid(name), **frozen))

    def sets(self, where: str, key: str, value: str | None) -> r.ConfigRecord:
        """`sets("topic/orders", "retention.ms", "1")`; None removes."""
        kind, _, name = where.partition("/")
        return self._made(r.ConfigRecord(KINDS[kind], name, key, value))

    def level(self, number: int, name: str = "metadata.version") -> r.FeatureLevelRecord:
        return self._made(r.FeatureLevelRecord(name, number))


def place(word: str | bytes) -> bytes:
    """A directory by its name, or its id itself."""
    return uuid(word) if isinstance(word, str) else word


def _flat(made: Iterable[Any]) -> Iterable[Any]:
    for one in made:
        if isinstance(one, list):
            yield from _flat(one)
        else:
            yield one


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list | tuple) else value


def _encoded(record: Any) -> bytes:
    """In the lowest version that can carry it."""
    for version in SCHEMA_BY_CLASS[type(record)].versions:
        try:
            return encode(record, version)
        except UnsupportedVersionError:
            continue
    raise ValueError(f"no version carries {msgspec.structs.asdict(record)}")
