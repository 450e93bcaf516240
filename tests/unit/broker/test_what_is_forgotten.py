"""Small memories of a broker's replicas: what is gone is forgotten, counters come round, limits are whole.

And what a message leaves out means nothing.
"""

from __future__ import annotations

from typing import cast
from unittest import mock

import msgspec
import pytest

from metaquorum.broker.channel import SendToController
from metaquorum.broker.replica import disk_work
from metaquorum.broker.replica.disk_work import CompactPartition, FindOffset, ReadPartition
from metaquorum.broker.replica.events import (
    DataEffect,
    DataRequestCancelled,
    DataRespond,
    SendFetch,
)
from metaquorum.broker.replica.fetch_sessions import LAST_EPOCH, FetchSession
from metaquorum.broker.replica.partition import leader
from metaquorum.broker.replica.requests.own_logs import OwnLogs
from metaquorum.broker.replica.requests.partitioned import Produces
from metaquorum.broker.replica.topic_settings import SettingsOfTopics
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests import data as messages
from metaquorum.metadata.requests.data import InitProducerIdRequest, ListOffsetsPartition, ListOffsetsRequest
from metaquorum.raft.effects import Outbox
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.batches.format import TRANSACTIONAL
from tests.controllers import reported
from tests.unit.broker.manager_world import A, B, Cluster, Host, answer_to, key_of, of_kind, only
from tests.unit.broker.manager_world import found as directory
from tests.unit.broker.replica_world import KEY, WALL_MS, Replica, batch, info
from tests.unit.broker.test_fetch_loops import following, respond
from tests.unit.broker.test_manager_requests import at, fetch, leading


def kept(host: Host) -> dict[str, int]:
    """How much the leader's side of fetches remembers of each thing."""
    fetches = host.manager._fetches
    names = ("_watchers", "_by_key", "_by_session", "_reads", "woken")
    return {name: len(getattr(fetches, name)) for name in names}


def test_nothing_is_remembered_of_fetches_and_sessions_that_are_over() -> None:
    _, host = leading("x", "y")
    x, y = key_of("x"), key_of("y")
    empty = kept(host)
    assert set(empty.values()) == {0}
    response = answer_to(host.ask(fetch(at(x, 0), at(y, 0), session=(0, 0), wait_ms=0)))
    session = response.session_id
    assert kept(host)["_watchers"] == 2
    host.ask(fetch(session=(session, 1), wait_ms=0, forgotten=(x,)))
    assert kept(host)["_watchers"] == 1
    host.ask(fetch(at(x, 0), session=(session, -1), wait_ms=0), "last")
    assert kept(host) == empty
    for number, (wait_ms, key) in enumerate([(500, x), (500, y), (0, x)]):
        host.ask(fetch(at(key, 0), wait_ms=wait_ms), number)
    assert kept(host)["_by_key"] == kept(host)["_watchers"] == 2
    host.manager._fetches.cancel(0)
    host.tick(500)
    assert kept(host) == empty


@pytest.mark.parametrize(("epoch", "following"), [(1, 2), (LAST_EPOCH - 1, LAST_EPOCH), (LAST_EPOCH, 1)])
def test_epochs_of_a_session_come_round_to_one(epoch: int, following: int) -> None:
    assert LAST_EPOCH == 2**31 - 1
    session = FetchSession(5, 2, 0)
    session.next_epoch = epoch
    session.advance()
    assert session.next_epoch == following


@pytest.mark.parametrize(("epoch", "then"), [(7, 8), (LAST_EPOCH - 1, LAST_EPOCH), (LAST_EPOCH, 1)])
def test_a_follower_counts_the_epochs_of_its_session_as_its_leader_does(epoch: int, then: int) -> None:
    _, host = following("x")
    sent = only(host.publish(), SendFetch)
    sent = only(respond(host, sent), SendFetch)
    (loop,) = host.manager._fetchers._loops.values()
    loop.epoch = epoch
    again = only(respond(host, sent), SendFetch)
    assert again.request.session_epoch == then


@pytest.mark.parametrize(("room", "fits"), [(0, True), (-1, False)])
def test_what_waits_for_the_disk_has_a_whole_limit(room: int, fits: bool) -> None:
    """Two batches wait; the third fills the limit to the byte, or is a byte too much."""
    replica = Replica()
    replica.lead(info(isr=(1,), replicas=(1,)))
    size = len(batch(b"v"))
    with mock.patch.object(leader, "UNWRITTEN_LIMIT_BYTES", 3 * size + room):
        tickets = [replica.send(batch(b"v")) for _ in range(3)]
        refused = [each.result.error for each in tickets if each.results]
        assert refused == ([] if fits else [ErrorCode.REQUEST_TIMED_OUT])
        replica.settle()
        assert replica.send(batch(b"v")).results == []


# ---- defaults --------------------------------------------------------------------------------------

CONFIG = {
    "log_flush_before_ack": True,
    "log_cleaner_backoff_ms": 15_000,
    "replica_lag_time_max_ms": 30_000,
    "replica_fetch_max_bytes": 1_048_576,
    "replica_fetch_response_max_bytes": 10_485_760,
    "replica_fetch_min_bytes": 1,
    "replica_fetch_wait_max_ms": 500,
    "replica_fetch_backoff_ms": 1_000,
    "replica_high_watermark_checkpoint_interval_ms": 5_000,
    "replica_request_timeout_ms": 30_000,
    "log_retention_check_interval_ms": 300_000,
    "log_dir_assignment_timeout_ms": 30_000,
    "controller_request_timeout_ms": 1_000,
    "fetch_max_bytes": 57_671_680,
    "max_incremental_fetch_session_cache_slots": 1_000,
    "producer_id_expiration_ms": 86_400_000,
    "produce_purgatory_max_requests": 10_000,
    "fetch_purgatory_max_requests": 10_000,
    "log_tail_cache_max_bytes": 33_554_432,
    "replication_quota_window_ms": 1_000,
    "replication_quota_window_num": 11,
    "replica_selector_is_rack_aware": False,
}
MESSAGES = {
    "ProduceResult": {
        "base_offset": -1,
        "log_append_time_ms": -1,
        "log_start_offset": -1,
        "leader_epoch": -1,
    },
    "FetchPartition": {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1},
    "ProduceRequest": {"by_coordinator": False},
    "FetchRequest": {
        "replica_id": -1,
        "replica_epoch": -1,
        "session_id": 0,
        "session_epoch": -1,
        "read_committed": False,
    },
    "FetchedPartition": {
        "high_watermark": -1,
        "log_start_offset": -1,
        "leader_epoch": -1,
        "last_stable_offset": -1,
        "preferred_read_replica": -1,
    },
    "ListOffsetsRequest": {"replica_id": -1, "read_committed": False},
    "CoordinatorRequest": {"version": 0},
    "ListOffsetsPartition": {"current_leader_epoch": -1},
    "ListedOffset": {"offset": -1, "timestamp_ms": -1, "leader_epoch": -1},
    "DeletedRecords": {"low_watermark": -1},
    "EpochEnd": {"end_offset": -1, "leader_epoch": -1},
    "EpochPartition": {"current_leader_epoch": -1},
}
DISK_WORK = {
    "ReplicaLog": {"start_offset": 0, "end_offset": 0, "high_watermark": 0, "size_bytes": 0},
    "CutPartition": {"start_over": False},
    "CreateReplica": {"future": False},
    "FoundReplica": {"future": False},
    "FoundDirectory": {"total_bytes": -1, "usable_bytes": -1, "ignores_case": False},
    "LogSettings": {
        "segment_bytes": 1_073_741_824,
        "segment_ms": 604_800_000,
        "retention_bytes": -1,
        "retention_ms": 604_800_000,
        "file_delete_delay_ms": 60_000,
        "deletes": True,
        "compacts": False,
    },
}


def numbers_of(module: object) -> dict[str, dict[str, int]]:
    """Numbers that the values of a module have where nothing is said, by class and field."""
    numbers: dict[str, dict[str, int]] = {}
    for name, value in vars(module).items():
        if getattr(value, "__module__", "") != module.__name__:  # type: ignore[attr-defined]
            continue
        is_struct = isinstance(value, type) and issubclass(value, msgspec.Struct)
        for each in msgspec.structs.fields(value) if is_struct else ():
            if type(each.default) in (int, bool):
                numbers.setdefault(name, {})[each.name] = each.default
    return numbers


def test_what_is_left_out_of_a_message_or_a_configuration() -> None:
    assert numbers_of(messages) == MESSAGES
    assert numbers_of(disk_work) == DISK_WORK
    known = {
        each.name: each.default
        for each in msgspec.structs.fields(ReplicaConfig)
        if isinstance(each.default, int)
    }
    assert known == CONFIG, "a new setting: say its default here"


# ---- what concerns somebody else, or nobody ------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "concerned"),
    [
        (ConfigResource(TOPIC_RESOURCE, "x"), [key_of("x")]),
        (ConfigResource(TOPIC_RESOURCE, "gone"), []),
        (ConfigResource(BROKER_RESOURCE, "2"), []),
        (ConfigResource(BROKER_RESOURCE, "1"), None),
        (ConfigResource(BROKER_RESOURCE, ""), None),
    ],
)
def test_whose_settings_may_be_others(
    resource: ConfigResource, concerned: list[tuple[bytes, int]] | None
) -> None:
    """None: everybody's. A topic that has the name of another broker is not that broker."""
    cluster, host = leading("x", "2")
    before = cluster.image()
    cluster.configure(resource, "max.message.bytes", "5")
    settings = SettingsOfTopics(host.config)
    assert settings.changed(before, before) == []
    assert settings.changed(cluster.image(), before) == concerned


@pytest.mark.parametrize(("failing", "answered"), [(A, ["of A"]), (B, ["of B"]), (b"c" * 16, [])])
def test_look_ups_in_a_directory_that_fails_are_answered_and_no_others(
    failing: bytes, answered: list[str]
) -> None:
    cluster = Cluster()
    places = {"x": A, "y": B}
    for name, place in places.items():
        cluster.topic(name, place=place, replicas=(1,))
    host = Host(
        cluster, directory(A, [("x", 0)], end=1), directory(B, [("y", 0)], end=1), directory(b"c" * 16)
    )
    host.publish()
    for name, key in (("x", "of A"), ("y", "of B")):
        wanted = ListOffsetsPartition(key=key_of(name), timestamp_ms=123)
        only(host.ask(ListOffsetsRequest(partitions=(wanted,)), key), FindOffset)
    assert [each.key for each in of_kind(host.fail(failing), DataRespond)] == answered


def test_a_coordinators_read_in_a_directory_that_fails_is_made_where_the_replica_has_moved() -> None:
    replica, out = Replica(), Outbox[DataEffect]()
    replica.lead(info(isr=(1,), replicas=(1,)))
    logs = OwnLogs(lambda key: replica.partition, cast(Produces, None), iter(range(9)).__next__, out)
    logs.read(KEY, 0, 1, 100, lambda data, problem: None)
    (first,) = of_kind(out.take(), ReadPartition)
    replica.partition.move(B, 2, now_ms=0)
    logs.directory_failed(B)
    assert out.take() == []
    logs.directory_failed(first.directory_id)
    (again,) = of_kind(out.take(), ReadPartition)
    assert (again.directory_id, again.from_offset) == (B, 0)


def test_a_producer_that_was_cancelled_leaves_no_deadline() -> None:
    _, host = leading("x")
    producer_ids = host.manager._producer_ids
    call = only(host.ask(InitProducerIdRequest(), "p"), SendToController)
    host.do(DataRequestCancelled(key="p"))
    refused = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "later")
    host.do(reported(call, refused))
    assert producer_ids.next_deadline_ms() is None
    assert of_kind(host.tick(60_000), DataRespond) == []


def test_replicas_that_were_found_in_a_bad_directory_do_not_exist() -> None:
    cluster = Cluster()
    cluster.topic("x", place=A, replicas=(1,))
    host = Host(cluster, directory(A, [("x", 0)], problem="EIO"), directory(B))
    host.publish()
    assert host.manager.partitions == {}
    assert host.manager._placement.copies.of(key_of("x")) == {}


def test_after_its_end_a_broker_says_nothing_whatever_the_time() -> None:
    _, host = leading("x", replicas=(1, 2))
    host.start()
    host.manager.stop(now_ms=host.now_ms, wall_ms=0)
    assert [host.tick(after) for after in (1, 1_000, 60_000, 600_000)] == [[]] * 4


def test_an_open_transaction_is_not_compacted_and_old_producers_are_forgotten() -> None:
    cluster, host = leading("x", log_cleaner_backoff_ms=10_000)
    cluster.configure(ConfigResource(TOPIC_RESOURCE, "x"), "cleanup.policy", "compact")
    host.publish()
    for sequence, data in enumerate((sent(6, b"k"), sent(7, b"k", TRANSACTIONAL))):
        part = messages.ProducePartition(key=key_of("x"), batch=Batches.arrived(data))
        host.ask(messages.ProduceRequest(acks=1, timeout_ms=1, partitions=(part,), by_coordinator=True))
        host.work()
        assert host.manager.partitions[key_of("x")].high_watermark == sequence + 1
    assert only(host.tick(10_000), CompactPartition).below_offset == 1
    host.manager.tick(now_ms=10**9, wall_ms=WALL_MS + host.config.producer_id_expiration_ms + 1)
    assert [one.producer_id for one in host.manager.partitions[key_of("x")].producers.all()] == [7]


def sent(producer: int, key: bytes, attributes: int = 0) -> bytes:
    return encode_batch(
        base_offset=0,
        leader_epoch=-1,
        timestamp_ms=WALL_MS,
        keys=[key],
        values=[b"v"],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        attributes=attributes,
    )
