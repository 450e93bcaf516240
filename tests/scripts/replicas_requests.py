"""What clients and operators ask a broker's replicas beside reading and writing, for `replicas_player`."""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.broker.replica.events import DataEffect
from metaquorum.metadata.requests.data import (
    AlterReplicaLogDirsRequest,
    BeginVerification,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    EpochPartition,
    InitProducerIdRequest,
    MarkLogDirOfflineRequest,
    OffsetForLeaderEpochRequest,
    ProducePartition,
    ProduceRequest,
    TransactionalPartition,
    WantedDirectory,
)
from metaquorum.storage.batches.batch import Batches
from tests.scripts.log_words import batch_of
from tests.scripts.player import Player
from tests.scripts.replicas_words import key, place_of
from tests.unit.broker.manager_world import Host, topic_id


class OtherRequests(Player):
    """The first word of each command is the caller."""

    @property
    def host(self) -> Host:
        raise NotImplementedError

    def take(self, effects: Iterable[DataEffect]) -> None:
        raise NotImplementedError

    def do_init(self, name: str) -> None:
        self.take(self.host.ask(InitProducerIdRequest(), name))

    def do_describe(self, name: str, *topics: str) -> None:
        wanted = tuple(topic_id(each) for each in topics) or None
        self.take(self.host.ask(DescribeLogDirsRequest(topic_ids=wanted), name))

    def do_mark(self, name: str, path: str = "-", directory: str = "-") -> None:
        request = MarkLogDirOfflineRequest(
            path=None if path == "-" else path,
            directory_id=None if directory == "-" else place_of(directory),
        )
        self.take(self.host.ask(request, name))

    def do_send(
        self,
        name: str,
        partition: str,
        *words: str,
        acks: str = "-1",
        timeout: str = "1000",
        guard: str = "-",
        coordinator: str = "no",
    ) -> None:
        """send KEY x-0 a:1/p7.0.0t guard=1: batches as in `log_words`."""
        records = b"".join(batch_of(word, 0, epoch=-1) for word in words)
        known = None if guard == "-" else int(guard)
        request = ProduceRequest(
            acks=int(acks),
            timeout_ms=int(timeout),
            partitions=(ProducePartition(key=key(partition), batch=Batches.arrived(records), guard=known),),
            by_coordinator=coordinator == "yes",
        )
        self.take(self.host.ask(request, name))

    def do_verify(self, name: str, *parts: str) -> None:
        """verify KEY x-0/7.0"""
        split = [each.partition("/") for each in parts]
        asked = [(word, *rest.split(".")) for word, _, rest in split]
        partitions = tuple(
            TransactionalPartition(key=key(word), producer_id=int(producer), producer_epoch=int(epoch))
            for word, producer, epoch in asked
        )
        self.take(self.host.ask(BeginVerification(partitions=partitions), name))

    def do_producers(self, name: str, *parts: str) -> None:
        request = DescribeProducersRequest(partitions=tuple(key(each) for each in parts))
        self.take(self.host.ask(request, name))

    def do_delete_records(self, name: str, *parts: str, timeout: str = "1000") -> None:
        """delete-records KEY x-0:5"""
        split = [each.split(":") for each in parts]
        partitions = tuple(DeleteRecordsPartition(key=key(word), offset=int(at)) for word, at in split)
        request = DeleteRecordsRequest(timeout_ms=int(timeout), partitions=partitions)
        self.take(self.host.ask(request, name))

    def do_epoch_ends(self, name: str, *parts: str) -> None:
        """epoch-ends KEY x-0:1/2: of epoch 1, by one who knows epoch 2."""
        split = [each.partition(":") for each in parts]
        asked = [(word, *[int(each) for each in rest.split("/")], -1)[:3] for word, _, rest in split]
        partitions = tuple(
            EpochPartition(key=key(word), leader_epoch=epoch, current_leader_epoch=known)
            for word, epoch, known in asked
        )
        self.take(self.host.ask(OffsetForLeaderEpochRequest(partitions=partitions), name))

    def do_move(self, name: str, *parts: str) -> None:
        """move KEY x-0:/data/b"""
        split = [each.partition(":") for each in parts]
        places = [(word.rpartition("-"), path) for word, _, path in split]
        wanted = tuple(
            WantedDirectory(path=path, topic=topic, partition=int(index))
            for (topic, _, index), path in places
        )
        self.take(self.host.ask(AlterReplicaLogDirsRequest(wanted=wanted), name))
