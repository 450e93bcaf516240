"""A log directory fails below metadata.version 3.7-IV2, which cannot say so; then the cluster is upgraded."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from metaquorum.broker.channel import SendToController
from metaquorum.broker.replica.disk_work import CreateReplica, FoundDirectory
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.controller.partitions.log_dirs import decide_assign_replicas
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.metadata.image import MIGRATING, NO_LEADER, PartitionInfo
from metaquorum.metadata.image.directories import NOT_FOUND, damaged_in
from metaquorum.metadata.meanings import merge_change
from metaquorum.metadata.records.types import PartitionChangeRecord
from metaquorum.metadata.requests.partitions import AssignReplicasToDirsRequest
from metaquorum.raft.events import Stop
from tests.unit.broker.manager_world import ME, A, B, Cluster, Host, found, of_kind, only

BEFORE = 10
READABLE, UNREADABLE = found(B, problem="EIO"), found(None, problem="EIO")
"""Whether the file with the directory's id can still be read."""


class Upgraded:
    """Broker 1 starts, after the upgrade, with these directories; topic t was never recorded in one."""

    def __init__(self, *directories: FoundDirectory, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        self.cluster = Cluster()
        known = self.cluster._builder.freeze().brokers.get(ME)
        assert known is not None
        self.cluster._builder.put_broker(
            replace(
                known, directories=tuple(each.directory_id or b"" for each in directories if not each.problem)
            )
        )
        self.key = self.cluster.topic("t", place=MIGRATING, leader=1, isr=isr)
        self.start(*directories)

    def start(self, *directories: FoundDirectory) -> None:
        """Until what it tells the controller changes nothing."""
        self.host = Host(self.cluster, *directories)
        self.host.start()
        self.told: list[bytes] = []
        effects = self.host.publish() + self.host.work()
        for _ in range(5):
            for sent in of_kind(effects, SendToController):
                assert isinstance(sent.request, AssignReplicasToDirsRequest)
                self._decide(sent.request)
            effects = self.host.answer_controller(of_kind(effects, SendToController))
            effects += self.host.publish() + self.host.work()

    def _decide(self, request: AssignReplicasToDirsRequest) -> None:
        """As the active controller does."""
        self.told += [each.directory_id for each in request.assignments]
        image = self.cluster.image()
        rules = rules_of(image, image.brokers.is_active)
        for record in decide_assign_replicas(image, request, rules, records_max=10).records:
            assert isinstance(record, PartitionChangeRecord)
            self.cluster._put(merge_change(self.partition, record, offset=1))

    @property
    def partition(self) -> PartitionInfo:
        info = self.cluster.image().topics.partition(*self.key)
        assert info is not None
        return info


def test_before_the_upgrade_the_broker_stops_and_says_what_to_do() -> None:
    cluster = Cluster(level=BEFORE)
    cluster.topic("t", place=MIGRATING)
    host = Host(cluster, found(A), found(B, [("t", 0)]))
    host.start()
    host.publish()
    stop = only(host.fail(B), Stop)
    assert stop.failed and "/data/b (EIO)" in stop.reason
    assert "upgrade first, with metaquorum features upgrade metadata.version=3.7" in stop.reason


@pytest.mark.parametrize("offline", [READABLE, UNREADABLE], ids=["readable", "unreadable"])
def test_after_it_the_replica_is_reported_and_leader_and_isr_move(offline: FoundDirectory) -> None:
    site = Upgraded(found(A), offline)
    assert site.told == [offline.directory_id or NOT_FOUND], "once"
    assert site.partition.leader in (2, 3)
    assert sorted(site.partition.isr) == [2, 3]
    assert "/data/" in site.host.manager._placement.offline[site.key]


@pytest.mark.parametrize("offline", [READABLE, UNREADABLE], ids=["readable", "unreadable"])
def test_the_last_replica_in_sync_stays_so_and_leads_again_with_its_data(offline: FoundDirectory) -> None:
    site = Upgraded(found(A), offline, isr=(1,))
    assert (site.partition.leader, site.partition.isr) == (NO_LEADER, (1,))
    known = site.cluster._builder.freeze().brokers.get(ME)
    assert known is not None
    site.cluster._builder.put_broker(replace(known, directories=(A, B)))
    site.start(found(A), found(B, [("t", 0)], end=7))
    assert site.told == ([] if offline is READABLE else [damaged_in(B), B])
    assert site.partition.directory_of(ME) == B
    assert site.partition.isr == (1,)


@pytest.mark.parametrize("offline", [READABLE, UNREADABLE], ids=["readable", "unreadable"])
def test_a_directory_that_is_taken_out_starts_over_and_does_not_lead_empty(offline: FoundDirectory) -> None:
    site = Upgraded(found(A), offline, isr=(1,))
    site.start(found(A))
    assert site.partition.leader == NO_LEADER, "only an unclean election may lose what was acknowledged"
    assert site.partition.directory_of(ME) != A


def test_with_several_offline_directories_none_is_named_and_nothing_is_created() -> None:
    site = Upgraded(found(A), found(B, problem="EIO"), found(b"c" * 16, problem="EIO"))
    assert site.told == [NOT_FOUND]
    created: list[DataEffect] = [each for each in site.host.queue if isinstance(each, CreateReplica)]
    assert created == [] and site.key not in site.host.manager.partitions


def test_what_is_in_a_good_directory_is_assigned_there_and_goes_on() -> None:
    site = Upgraded(found(A, [("t", 0)]), UNREADABLE)
    assert site.told == [A]
    assert site.partition.leader == 1
    assert site.host.manager.partitions[site.key].role is ReplicaRole.LEADER
