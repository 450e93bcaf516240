"""A coordinator's way from request to answer, with a state machine that counts: what is stored, when it is
answered, what a new leader finds."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.coordinator.coordinators import CoordinatorKind, Coordinators
from metaquorum.broker.coordinator.state import NOTHING, Ask, BatchOrigin, Decision, Now, Reply
from metaquorum.broker.replica.disk_work import (
    FoundDirectory,
    FoundReplica,
    PartitionRead,
    ReadPartition,
    ReplicaLog,
)
from metaquorum.broker.replica.events import DataRespond
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ConfigResource, MetadataImage
from metaquorum.metadata.requests.data import CoordinatorRequest, FetchPartition, FetchRequest
from metaquorum.raft.effects import Warn
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.batches.encode import control_key
from metaquorum.storage.batches.format import CONTROL, TRANSACTIONAL
from metaquorum.wire.messages import OffsetCommitKey, OffsetCommitValue
from metaquorum.wire.stored import StoredRecord, encode_stored
from tests.unit.broker.manager_world import A, Cluster, Host, answer_to, found, key_of, of_kind, topic_id
from tests.unit.broker.replica_world import WALL_MS, ListDisk

TOPIC = "__consumer_offsets"
KEY = key_of(TOPIC)


def tally(name: str, count: int) -> StoredRecord:
    return StoredRecord(
        OffsetCommitKey(group=name, topic="t", partition=0),
        OffsetCommitValue(offset=count, metadata="", commit_timestamp=WALL_MS),
        key_version=1,
        value_version=3,
    )


class Counting:
    """Counts `add NAME`; `get NAME` and `now NAME` read, `big` stores what no batch holds, `wait` waits for
    the next tick, which counts `ticks`."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.markers: list[tuple[int, bool]] = []
        self.producers: list[int] = []
        self.parked: list[object] = []
        self.due_ms: int | None = None

    def replay(self, record: StoredRecord, origin: BatchOrigin) -> None:
        self.counts[record.key.group] = 0 if record.value is None else record.value.offset
        self.producers.append(origin.producer_id)

    def replay_marker(self, origin: BatchOrigin, *, committed: bool) -> None:
        self.markers.append((origin.producer_id, committed))

    def loaded(self, image: MetadataImage, now: Now) -> Decision:
        return NOTHING

    def image_moved(self, image: MetadataImage, previous: MetadataImage, now: Now) -> Decision:
        return NOTHING

    def only_reads(self, body: Any) -> bool:
        return bool(body[0] in ("get", "now"))

    def decide(self, asked: Ask, now: Now) -> Decision:
        word, name = asked.body
        if word == "wait":
            self.parked.append(asked.key)
            self.due_ms = now.ms + 100
            return NOTHING
        if word in ("get", "now"):
            answer = Reply(asked.key, self.counts.get(name, 0))
            return Decision(replies=(answer,), at_once=word == "now")
        count = self.counts.get(name, 0) + 1
        records = (tally(name if word == "add" else "x" * 30_000, count),) * (1 if word == "add" else 60)
        return Decision(records=records, replies=(Reply(asked.key, count),))

    def tick(self, now: Now) -> Decision:
        replies = tuple(Reply(key, "ticked") for key in self.parked)
        self.parked, self.due_ms = [], None
        return Decision(records=(tally("ticks", self.counts.get("ticks", 0) + 1),), replies=replies)

    def next_deadline_ms(self) -> int | None:
        return self.due_ms


class World:
    """One broker of three that leads the topic's partition, with a coordinator on it."""

    def __init__(
        self,
        *directories: FoundDirectory,
        replicas: tuple[int, ...] = (1, 2, 3),
        batches: tuple[bytes, ...] = (),
    ) -> None:
        self.cluster = Cluster()
        self.states: list[Counting] = []
        self.host = Host(self.cluster, *directories, new_user=self._new_user)
        self.cluster.topic(TOPIC, place=A, replicas=replicas)
        self.host.start()
        if batches:
            disk = ListDisk()
            for each in batches:
                disk.append(each)
            disk.synced = len(disk.batches)
            self.host.disks[A, KEY] = disk
        self.host.publish()

    def _new_user(self, logs: Any, out: Any) -> Coordinators:
        def new_state(partition: int) -> Counting:
            self.states.append(Counting())
            return self.states[-1]

        return Coordinators({TOPIC: CoordinatorKind(new_state, commit_timeout_ms=5_000)}, logs, out)

    def ask(self, word: str, name: str = "n", key: object = "k", partition: int = 0) -> list[Any]:
        return self.host.ask(CoordinatorRequest(topic=TOPIC, partition=partition, body=(word, name)), key)

    def followers_hold(self, offset: int) -> list[Any]:
        """Both followers fetch from `offset`: they hold what is below it."""
        effects: list[Any] = []
        for broker in (2, 3):
            request = FetchRequest(
                replica_id=broker,
                replica_epoch=100 + broker,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1,
                partitions=(
                    FetchPartition(key=KEY, fetch_offset=offset, max_bytes=1, current_leader_epoch=0),
                ),
            )
            effects += self.host.ask(request, f"fetch{broker}")
        return effects


def error_of(effects: list[Any], key: object = "k") -> ErrorCode:
    answer = answer_to(effects, key)
    assert isinstance(answer, ApiError), answer
    return answer.code


def on_disk(*batches: bytes) -> World:
    """The same broker after a restart, with these batches in its log."""
    disk = ListDisk()
    for each in batches:
        disk.append(each)
    disk.synced = len(disk.batches)
    log = ReplicaLog(end_offset=disk.end, epochs=disk.opened().epochs)
    directory = FoundDirectory(
        path="/data/a",
        directory_id=A,
        problem=None,
        usable_bytes=-1,
        damaged=(),
        replicas=(FoundReplica(key=KEY, topic=TOPIC, incarnation=1, log=log),),
    )
    return World(directory, batches=batches)


def batch(base: int, *records: StoredRecord, producer_id: int = -1) -> bytes:
    pairs = [encode_stored(each) for each in records]
    return encode_batch(
        base_offset=base,
        leader_epoch=0,
        timestamp_ms=WALL_MS,
        keys=[key for key, _ in pairs],
        values=[value for _, value in pairs],
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        attributes=TRANSACTIONAL if producer_id >= 0 else 0,
    )


def marker(base: int, producer_id: int, kind: int) -> bytes:
    return encode_batch(
        base_offset=base,
        leader_epoch=0,
        timestamp_ms=WALL_MS,
        keys=[control_key(kind)],
        values=[b"\0\0\0\0\0\0"],
        producer_id=producer_id,
        producer_epoch=0,
        attributes=TRANSACTIONAL | CONTROL,
    )


def test_an_answer_leaves_when_every_replica_in_sync_has_its_records() -> None:
    world = World()
    world.host.work()
    assert not of_kind(world.ask("add"), DataRespond)
    assert world.states[0].counts == {"n": 1}
    assert not of_kind(world.host.work(), DataRespond)
    assert answer_to(world.followers_hold(1)).body == 1


def test_what_is_decided_after_it_waits_for_it_but_for_what_depends_on_nothing_stored() -> None:
    world = World()
    world.host.work()
    world.ask("add", key=1)
    assert not world.ask("get", key=2)
    assert answer_to(world.ask("now", key=3), 3).body == 1
    world.host.work()
    effects = world.followers_hold(1)
    assert answer_to(effects, 1).body == 1
    assert answer_to(effects, 2).body == 1
    assert answer_to(world.ask("get", key=4), 4).body == 1


def test_a_new_leader_reads_its_log_before_it_answers() -> None:
    world = on_disk(batch(0, tally("a", 1), tally("a", 2)), batch(2, tally("b", 7)))
    assert error_of(world.ask("get", "a")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.host.work()
    assert world.states[0].counts == {"a": 2, "b": 7}
    assert answer_to(world.ask("now", "b")).body == 7


def test_transactions_in_the_log_are_replayed_with_their_producer_and_their_end() -> None:
    world = on_disk(
        batch(0, tally("a", 1), producer_id=7),
        marker(1, 7, 1),
        batch(2, tally("b", 1), producer_id=8),
        marker(3, 8, 0),
    )
    world.host.work()
    assert world.states[0].producers == [7, 8]
    assert world.states[0].markers == [(7, True), (8, False)]


def test_records_of_a_newer_kafka_are_passed_over() -> None:
    unknown = encode_batch(
        base_offset=0, leader_epoch=0, timestamp_ms=0, keys=[b"\x00\x63key"], values=[b"\0\0value"]
    )
    world = on_disk(unknown, batch(1, tally("a", 1)))
    world.host.work()
    assert world.states[0].counts == {"a": 1}


def raw(base: int, key: bytes, value: bytes | None, attributes: int = 0) -> bytes:
    return encode_batch(
        base_offset=base, leader_epoch=0, timestamp_ms=0, keys=[key], values=[value], attributes=attributes
    )


KEY_OF_B = encode_stored(tally("b", 0))[0]
UNREADABLE = {
    "a key that ends early": raw(1, b"\0\1\0", b"\0\3"),
    "a value that ends early": raw(1, KEY_OF_B, b"\0\3"),
    "a value of a newer release": raw(1, KEY_OF_B, b"\0\x09" + bytes(40)),
    "a payload that is not gzip": raw(1, KEY_OF_B, b"", attributes=1),
}


def errors(effects: list[Any]) -> list[str]:
    return [each.message for each in effects if isinstance(each, Warn) and each.is_loss]


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_record_that_cannot_be_read_is_left_out_and_all_others_are_served(what: str) -> None:
    world = on_disk(batch(0, tally("a", 1)), UNREADABLE[what], batch(2, tally("c", 3)))
    (text,) = errors(world.host.work())
    assert "offset 1" in text or "offsets 1 to 1" in text
    assert what.startswith("a payload") or "key OffsetCommit(b, t, 0)" in text or "key 0x000100" in text
    assert world.states[0].counts == {"a": 1, "c": 3}
    assert answer_to(world.ask("now", "c")).body == 3


@pytest.mark.parametrize("key", [KEY_OF_B, b"\0\1\0"])
def test_a_record_that_cannot_be_read_and_is_deleted_later_is_not_reported(key: bytes) -> None:
    world = on_disk(raw(0, key, b"\0\3"), raw(1, key, None), batch(2, tally("c", 3)))
    assert errors(world.host.work()) == []
    assert world.states[0].counts["c"] == 3


def test_many_records_that_cannot_be_read_are_counted() -> None:
    keys = [encode_stored(tally(f"g{number}", 0))[0] for number in range(20)]
    world = on_disk(*(raw(number, key, b"\0\3") for number, key in enumerate(keys)))
    texts = errors(world.host.work())
    assert len(texts) == 6
    assert "15 more records" in texts[-1]


def test_damaged_bytes_are_no_empty_log() -> None:
    world = on_disk(batch(0, tally("a", 1)))
    read = next(each for each in world.host.queue if isinstance(each, ReadPartition))
    world.host.queue.clear()
    world.host.do(PartitionRead(token=read.token, data=None, problem="its CRC does not match"))
    assert error_of(world.ask("get")) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_who_waits_hears_that_another_broker_is_the_coordinator_and_the_state_is_read_again() -> None:
    world = World()
    world.host.work()
    world.ask("add", key=1)
    world.host.work()
    world.ask("wait", key=2)
    world.cluster.change(KEY, leader=2)
    effects = world.host.publish()
    assert {error_of(effects, 1), error_of(effects, 2)} == {ErrorCode.NOT_COORDINATOR}
    assert error_of(world.ask("add")) is ErrorCode.NOT_COORDINATOR
    world.host.work()
    world.cluster.change(KEY, leader=1)
    world.host.publish()
    world.host.work()
    assert [state.counts for state in world.states] == [{"n": 1}, {"n": 1}]
    assert world.states[0] is not world.states[1]


def test_a_leader_that_leads_on_in_a_newer_epoch_keeps_its_state() -> None:
    world = World()
    world.host.work()
    world.cluster.change(KEY, leader=1)
    world.host.publish()
    world.ask("add")
    world.host.work()
    assert len(world.states) == 1
    assert world.states[0].counts == {"n": 1}


def test_nothing_is_decided_while_too_few_replicas_are_in_sync_but_reads() -> None:
    world = World()
    world.host.work()
    world.ask("wait", key="w")
    world.cluster.configure(ConfigResource(2, TOPIC), "min.insync.replicas", "2")
    world.cluster.change(KEY, isr=(1,))
    world.host.publish()
    assert error_of(world.ask("add")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answer_to(world.ask("now")).body == 0
    assert not of_kind(world.host.tick(200), DataRespond)
    assert world.states[0].counts == {}
    world.cluster.change(KEY, isr=(1, 2, 3))
    world.host.publish()
    world.host.tick(1_000)
    assert world.states[0].counts == {"ticks": 1}


def test_what_is_due_is_carried_out_and_answered_when_it_is_committed() -> None:
    world = World()
    world.host.work()
    world.ask("wait", key=5)
    due_ms = world.host.manager.next_deadline_ms()
    assert due_ms is not None
    assert due_ms <= world.host.now_ms + 100
    world.host.tick(100)
    world.host.work()
    assert answer_to(world.followers_hold(1), 5).body == "ticked"


def test_what_a_change_of_metadata_or_a_timer_leaves_due_is_carried_out(monkeypatch: Any) -> None:
    """No request follows that would look at the state again."""
    world = World()
    world.host.work()
    state, ticks = world.states[0], list[int]()

    def due(now: Now) -> Decision:
        state.due_ms = now.ms + 100
        ticks.append(now.ms)
        return NOTHING

    monkeypatch.setattr(state, "image_moved", lambda image, previous, now: due(now))
    monkeypatch.setattr(state, "tick", due)
    world.host.publish()
    begun_ms = world.host.now_ms
    for _ in range(2):
        world.host.tick(100)
    assert ticks == [begun_ms, begun_ms + 100, begun_ms + 200]


def test_a_batch_that_the_log_does_not_take_changes_nothing() -> None:
    world = World()
    world.host.work()
    assert error_of(world.ask("big")) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.states[0].counts == {}


def test_what_no_record_can_hold_is_refused_and_the_broker_lives() -> None:
    world = World()
    world.host.work()
    assert error_of(world.ask("add", "n" * 40_000)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.states[0].counts == {}


def test_an_answer_does_not_wait_for_ever() -> None:
    world = World()
    world.host.work()
    world.ask("add", key=1)
    world.host.work()
    assert error_of(world.host.tick(5_001), 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("partition", [1, 49])
def test_other_partitions_are_not_coordinated_here(partition: int) -> None:
    world = World()
    world.host.work()
    assert error_of(world.ask("get", partition=partition)) is ErrorCode.NOT_COORDINATOR


def test_a_lost_directory_ends_its_coordinators() -> None:
    world = World(found(A), found(b"b" * 16))
    world.host.work()
    world.ask("add", key=1)
    assert error_of(world.host.fail(A), 1) is ErrorCode.NOT_COORDINATOR


def test_the_topic_that_comes_back_under_its_name_is_another_one() -> None:
    world = World()
    world.host.work()
    world.ask("add", key=1)
    world.cluster.delete(KEY)
    world.cluster.topic(TOPIC, place=A, as_id=topic_id("again"))
    assert error_of(world.host.publish(), 1) is ErrorCode.NOT_COORDINATOR
    world.host.work()
    assert world.states[-1].counts == {}
