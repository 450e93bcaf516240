"""What a broker does with requests for its partitions: produced, fetched, looked up, refused."""

from __future__ import annotations

import pytest

from metaquorum.broker.channel import SendToController
from metaquorum.broker.replica import manager
from metaquorum.broker.replica.disk_work import (
    AppendPartition,
    ChangeLogSettings,
    CheckpointHighWatermarks,
    EnforceRetention,
    FindOffset,
    OffsetFound,
    PartitionRead,
    ReadPartition,
    ReplicaLogTrimmed,
)
from metaquorum.broker.replica.events import (
    DataRequestCancelled,
    DataRespond,
    PeerFetchFailed,
    SendFetch,
)
from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource
from metaquorum.metadata.requests import data as data_requests
from metaquorum.metadata.requests.partitions import AlterPartitionRequest
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.storage.batches.batch import Batches
from tests.controllers import reported
from tests.unit.broker.manager_world import (
    A,
    B,
    Cluster,
    Host,
    answer_to,
    found,
    key_of,
    of_kind,
    only,
)
from tests.unit.broker.replica_world import batch


def leading(*names: str, replicas: tuple[int, ...] = (1,), **config: object) -> tuple[Cluster, Host]:
    """A broker that leads partition 0 of each topic, alone unless replicas are given, and reads its disks."""
    config = {"log_tail_cache_max_bytes": 0, **config}
    cluster = Cluster()
    for name in names:
        cluster.topic(name, place=A, replicas=replicas)
    host = Host(cluster, found(A, [(name, 0) for name in names]), found(B), **config)
    host.publish()
    return cluster, host


def produce(
    *keys: data_requests.PartitionKey, acks: int = -1, timeout_ms: int = 1_000
) -> data_requests.ProduceRequest:
    parts = tuple(data_requests.ProducePartition(key=key, batch=Batches.arrived(batch(b"v"))) for key in keys)
    return data_requests.ProduceRequest(acks=acks, timeout_ms=timeout_ms, partitions=parts)


def at(
    key: data_requests.PartitionKey, offset: int, *, epoch: int = -1, last: int = -1
) -> data_requests.FetchPartition:
    return data_requests.FetchPartition(
        key=key,
        fetch_offset=offset,
        max_bytes=1 << 20,
        current_leader_epoch=epoch,
        last_fetched_epoch=last,
    )


def fetch(
    *parts: data_requests.FetchPartition,
    wait_ms: int = 500,
    min_bytes: int = 1,
    session: tuple[int, int] = (0, -1),
    follower: int = -1,
    max_bytes: int = 1 << 20,
    forgotten: tuple[data_requests.PartitionKey, ...] = (),
) -> data_requests.FetchRequest:
    return data_requests.FetchRequest(
        replica_id=follower,
        replica_epoch=100 + follower if follower >= 0 else -1,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        partitions=parts,
        forgotten=forgotten,
    )


# ---- produce -------------------------------------------------------------------------------------


def test_a_produce_is_answered_once_when_every_partition_has_answered() -> None:
    _, host = leading("x", "y")
    x, y = key_of("x"), key_of("y")
    effects = host.ask(produce(x, y, key_of("nobody")))
    assert [each.key for each in of_kind(effects, AppendPartition)] == [x, y]
    assert of_kind(effects, DataRespond) == []
    response = answer_to(host.work())
    assert isinstance(response, data_requests.ProduceResponse)
    assert [(each.key, each.error, each.base_offset) for each in response.results] == [
        (x, ErrorCode.NONE, 0),
        (y, ErrorCode.NONE, 0),
        (key_of("nobody"), ErrorCode.UNKNOWN_TOPIC_ID, -1),
    ]
    assert host.manager.status().waiting_produces == 0


def test_a_produce_that_is_not_held_in_time_is_answered_by_the_clock() -> None:
    _, host = leading("x", replicas=(1, 2, 3))
    host.ask(produce(key_of("x"), timeout_ms=700))
    assert of_kind(host.work(), DataRespond) == [], "the followers do not hold it"
    assert host.manager.next_deadline_ms() is not None
    assert host.manager.next_deadline_ms() <= host.now_ms + 700  # type: ignore[operator]
    assert of_kind(host.tick(699), DataRespond) == []
    (result,) = answer_to(host.tick(1)).results
    assert result.error is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("timeout_ms", [-4, 0, 1, 700])
@pytest.mark.parametrize("replicas", [(1,), (1, 2, 3)])
def test_acks_1_is_answered_once_it_is_written_however_late(
    replicas: tuple[int, ...], timeout_ms: int
) -> None:
    _, host = leading("x", replicas=replicas)
    host.ask(produce(key_of("x"), acks=1, timeout_ms=timeout_ms))
    assert of_kind(host.tick(60_000), DataRespond) == []
    (result,) = answer_to(host.work()).results
    assert (result.error, result.base_offset) == (ErrorCode.NONE, 0)


def test_too_many_waiting_produces_are_refused_and_nothing_is_stored() -> None:
    _, host = leading("x", replicas=(1, 2, 3), produce_purgatory_max_requests=2)
    for n in range(2):
        assert of_kind(host.ask(produce(key_of("x")), key=n), DataRespond) == []
    effects = host.ask(produce(key_of("x")))
    refused = answer_to(effects)
    assert refused.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED and refused.retriable
    assert len(effects) == 1


@pytest.mark.parametrize("acks", [2, -2])
def test_unknown_acks_are_refused(acks: int) -> None:
    _, host = leading("x")
    assert answer_to(host.ask(produce(key_of("x"), acks=acks))).code is ErrorCode.INVALID_REQUIRED_ACKS


def test_settings_reach_the_topics_that_leave_them_open_when_the_log_has_them() -> None:
    """From the broker's file, then the default of all brokers, its own, and the topic's; others' not."""
    cluster, host = leading("x", "y", topic_defaults={"message.max.bytes": "1", "log.segment.bytes": "500"})
    topic, every = ConfigResource(TOPIC_RESOURCE, "x"), ConfigResource(BROKER_RESOURCE, "")
    mine, theirs = ConfigResource(BROKER_RESOURCE, "1"), ConfigResource(BROKER_RESOURCE, "2")

    def limits() -> list[int]:
        found = host.manager.partitions
        return [found[key_of(name)].settings.max_message_bytes for name in ("x", "y")]

    assert limits() == [1, 1]
    for resource, value, expected in (
        (every, "1000", [1_000, 1_000]),
        (theirs, "7", [1_000, 1_000]),
        (mine, "2000", [2_000, 2_000]),
        (topic, "3", [3, 2_000]),
        (mine, None, [3, 1_000]),
        (every, None, [3, 1]),
    ):
        key = "max.message.bytes" if resource is topic else "message.max.bytes"
        cluster.configure(resource, key, value)
        effects = host.publish()
        assert limits() == expected
        assert of_kind(effects, ChangeLogSettings) == []
    result = answer_to(host.ask(produce(key_of("x")))).results[0]
    assert result.error is ErrorCode.MESSAGE_TOO_LARGE
    cluster.configure(mine, "log.segment.bytes", "600")
    changed = of_kind(host.publish(), ChangeLogSettings)
    assert {(each.key, each.settings.segment_bytes) for each in changed} == {
        (key_of("x"), 600),
        (key_of("y"), 600),
    }


def test_a_cancelled_produce_is_not_answered_and_what_was_appended_stays() -> None:
    _, host = leading("x")
    host.ask(produce(key_of("x")))
    assert host.do(DataRequestCancelled(key="k")) == []
    assert of_kind(host.work(), DataRespond) == []
    assert host.manager.partitions[key_of("x")].high_watermark == 1


def test_s4_10_a_leader_that_is_moved_away_names_the_new_one() -> None:
    """As in a controlled shutdown: who waits and who comes hears whom to ask, and may retry."""
    cluster, host = leading("x", replicas=(1, 2))
    host.ask(produce(key_of("x")))
    host.work()
    cluster.change(key_of("x"), leader=2)
    (waited,) = answer_to(host.publish()).results
    (came,) = answer_to(host.ask(produce(key_of("x")))).results
    for result in (waited, came):
        assert (result.error, result.leader, result.error.retriable) == (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            2,
            True,
        )


def test_a_partition_that_is_led_elsewhere_names_its_leader() -> None:
    cluster, host = leading("x")
    cluster.topic("other", replicas=(2, 3), leader=3)
    host.publish()
    (result,) = answer_to(host.ask(produce(key_of("other"), (key_of("x")[0], 9)))).results[:1]
    assert (result.error, result.leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 3)
    second = answer_to(host.ask(produce((key_of("x")[0], 9)))).results[0]
    assert second.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_producers_are_described_by_followers_too() -> None:
    """`kafka-transactions find-hanging --broker-id` asks a broker about each of its replicas."""
    cluster, host = leading("x", replicas=(1, 2))
    part = data_requests.ProducePartition(
        key=key_of("x"), batch=Batches.arrived(batch(b"v", producer=7, epoch=1, sequence=0))
    )
    host.ask(data_requests.ProduceRequest(acks=1, timeout_ms=1_000, partitions=(part,)))
    host.work()
    cluster.change(key_of("x"), leader=2)
    host.publish()
    assert not host.manager.partitions[key_of("x")].leads
    (result,) = answer_to(host.ask(data_requests.DescribeProducersRequest(partitions=(key_of("x"),)))).results
    (known,) = host.manager.partitions[key_of("x")].producers.all()
    assert result.producers == (
        data_requests.ActiveProducer(
            producer_id=7,
            producer_epoch=1,
            last_sequence=0,
            last_timestamp_ms=known.seen_ms,
            coordinator_epoch=known.coordinator_epoch,
            open_from=-1,
        ),
    )


def test_a_follower_whose_session_had_nothing_to_say_was_caught_up_until_the_next_record() -> None:
    """It names the partition once; its lag is counted from its last fetch before there was more."""
    _, host = leading("x", replicas=(1, 2))
    lag_ms = host.config.replica_lag_time_max_ms
    first = answer_to(host.ask(fetch(at(key_of("x"), 0), follower=2, wait_ms=0, session=(0, 0))))
    for serial in range(1, 6):
        host.tick(after_ms=lag_ms)
        host.ask(fetch(follower=2, wait_ms=0, session=(first.session_id, serial)))
    host.now_ms += lag_ms // 2
    host.ask(produce(key_of("x"), acks=1))
    host.work()
    asked = host.tick(after_ms=lag_ms // 2 - 1)
    assert of_kind(asked, SendToController) == []
    asked = [*host.tick(after_ms=lag_ms), *host.tick(after_ms=lag_ms)]
    assert isinstance(only(asked, SendToController).request, AlterPartitionRequest)


# ---- fenced --------------------------------------------------------------------------------------


def test_s2_22_a_fenced_broker_answers_no_clients() -> None:
    _, host = leading("x")
    host.serving = False
    requests = [
        produce(key_of("x")),
        fetch(at(key_of("x"), 0)),
        data_requests.ListOffsetsRequest(
            partitions=(data_requests.ListOffsetsPartition(key=key_of("x"), timestamp_ms=-1),)
        ),
        data_requests.InitProducerIdRequest(),
    ]
    for request in requests:
        effects = host.ask(request)
        assert answer_to(effects).code is ErrorCode.BROKER_NOT_AVAILABLE
        assert len(effects) == 1


def test_a_fenced_broker_describes_the_producers_of_its_replicas() -> None:
    cluster, host = leading("x")
    host.ask(produce(key_of("x"), acks=1))
    host.work()
    cluster.topic("y", replicas=(2,), leader=2)
    host.publish()
    host.serving = False
    asked = data_requests.DescribeProducersRequest(partitions=(key_of("x"), key_of("y"), key_of("nobody")))
    x, y, nobody = answer_to(host.ask(asked)).results
    assert (x.error, x.producers) == (ErrorCode.NONE, ())
    assert y.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert nobody.error is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_starting_broker_describes_its_directories_and_has_no_producers() -> None:
    """It has no image yet; Java's admin client asks again after NOT_LEADER_OR_FOLLOWER."""
    host = Host(Cluster(), found(A, [("x", 0)], size_bytes=12), found(B, problem="EIO"))
    host.start()
    host.serving = False
    a, b = answer_to(host.ask(data_requests.DescribeLogDirsRequest())).directories
    assert [(each.topic, each.size_bytes) for each in a.replicas] == [("x", 12)]
    assert (a.error, b.error) == (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
    (x,) = answer_to(host.ask(data_requests.DescribeProducersRequest(partitions=(key_of("x"),)))).results
    assert x.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_s2_20_a_fenced_broker_serves_followers_and_goes_on_fetching() -> None:
    cluster, host = leading("x", replicas=(1, 2))
    host.serving = False
    response = answer_to(host.ask(fetch(at(key_of("x"), 0, epoch=0), follower=2, wait_ms=0)))
    assert [each.error for each in response.partitions] == [ErrorCode.NONE]
    part = data_requests.ListOffsetsPartition(key=key_of("x"), timestamp_ms=-1)
    listed = answer_to(host.ask(data_requests.ListOffsetsRequest(partitions=(part,), replica_id=2)))
    assert [each.error for each in listed.results] == [ErrorCode.NONE]
    followed = cluster.topic("y", replicas=(1, 2), leader=2, place=B)
    host.publish()
    host.work()
    sent = of_kind(host.publish() + host.tick(1), SendFetch)
    assert sent == [] and followed in host.manager.partitions
    host.do(PeerFetchFailed(target=2, correlation_id=1, reason="down"))
    assert [each.target for each in of_kind(host.tick(1_000), SendFetch)] == [2]


def test_clients_that_wait_to_read_hear_that_the_broker_was_fenced() -> None:
    _, host = leading("x", replicas=(1, 2))
    host.ask(fetch(at(key_of("x"), 0)), key="client")
    host.ask(fetch(at(key_of("x"), 0, epoch=0), follower=2), key="follower")
    host.serving = False
    effects = host.do(DataRequestCancelled(key="nobody"))
    assert answer_to(effects, "client").code is ErrorCode.BROKER_NOT_AVAILABLE
    assert len(of_kind(effects, DataRespond)) == 1


def test_s1_12_followers_of_an_earlier_life_are_refused() -> None:
    cluster, host = leading("x", replicas=(1, 2))
    cluster.broker(2, epoch=202)
    host.publish()
    refused = answer_to(host.ask(fetch(at(key_of("x"), 0, epoch=0), follower=2)))
    assert refused.code is ErrorCode.STALE_BROKER_EPOCH


# ---- fetch ---------------------------------------------------------------------------------------


def test_a_fetch_waits_until_there_is_something_to_read() -> None:
    _, host = leading("x")
    key = key_of("x")
    assert host.ask(fetch(at(key, 0)), key="reader") == []
    host.ask(produce(key))
    read = host.work()
    response = answer_to(read, "reader")
    assert isinstance(response, data_requests.FetchResponse)
    (part,) = response.partitions
    assert (part.error, part.high_watermark, len(part.records) > 0) == (ErrorCode.NONE, 1, True)


def test_a_fetch_that_finds_nothing_is_answered_when_its_time_is_over() -> None:
    _, host = leading("x")
    host.ask(fetch(at(key_of("x"), 0), wait_ms=300))
    assert host.manager.next_deadline_ms() == host.now_ms + 300
    (part,) = answer_to(host.tick(300)).partitions
    assert part == data_requests.FetchedPartition(
        key=key_of("x"), high_watermark=0, last_stable_offset=0, log_start_offset=0, leader_epoch=0
    )


def test_min_bytes_are_waited_for() -> None:
    _, host = leading("x")
    key = key_of("x")
    size = len(batch(b"v"))
    host.ask(fetch(at(key, 0), min_bytes=size + 1), key="reader")
    host.ask(produce(key))
    assert [each for each in of_kind(host.work(), DataRespond) if each.key == "reader"] == []
    host.ask(produce(key), key="k2")
    (part,) = answer_to(host.work(), "reader").partitions
    assert len(part.records) == 2 * size


def test_a_consumer_reads_below_the_high_watermark_and_a_follower_above() -> None:
    _, host = leading("x", replicas=(1, 2))
    key = key_of("x")
    host.ask(fetch(at(key, 0)), key="client")
    host.ask(fetch(at(key, 0, epoch=0), follower=2), key="follower")
    host.ask(produce(key))
    answered = [each.key for each in of_kind(host.work(), DataRespond)]
    assert answered == ["follower"], "the record is on one of two replicas"
    effects = host.ask(fetch(at(key, 1, epoch=0, last=0), follower=2), key="ack")
    assert [each.key for each in of_kind(effects, DataRespond)] == ["k"], "the fetch offset is the ack"
    (part,) = answer_to(host.work(), "client").partitions
    assert part.high_watermark == 1 and part.records


def test_an_error_is_answered_at_once() -> None:
    _, host = leading("x")
    parts = (at(key_of("x"), 5), at(key_of("nobody"), 0))
    response = answer_to(host.ask(fetch(*parts)))
    assert [each.error for each in response.partitions] == [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]


@pytest.mark.parametrize(("room", "holds"), [(1, 1), (2 - 1 / 1000, 1), (2, 2)])
def test_an_answer_holds_no_more_than_was_asked_for_and_no_less(room: float, holds: int) -> None:
    _, host = leading("x", "y")
    for name in ("x", "y"):
        host.ask(produce(key_of(name)))
        host.work()
    host.ask(fetch(at(key_of("x"), 0), at(key_of("y"), 0), max_bytes=int(room * len(batch(b"v")))))
    x, y = answer_to(host.work()).partitions
    assert [bool(x.records), bool(y.records)] == [True, holds == 2]


def test_a_read_from_a_directory_that_fails_is_a_storage_error() -> None:
    _, host = leading("x")
    host.ask(produce(key_of("x")))
    host.work()
    assert only(host.ask(fetch(at(key_of("x"), 0))), ReadPartition).from_offset == 0
    (part,) = answer_to(host.fail(A)).partitions
    assert part.error is ErrorCode.KAFKA_STORAGE_ERROR and part.error.retriable


@pytest.mark.parametrize("follower", [-1, 2])
def test_damaged_bytes_are_an_error_and_no_empty_answer_that_is_asked_for_again(follower: int) -> None:
    _, host = leading("x", "y", replicas=(1, 2))
    host.ask(produce(key_of("x"), key_of("y"), acks=1))
    host.work()
    for key in (key_of("x"), key_of("y")):  # the high watermark reaches what a consumer reads
        host.ask(fetch(at(key, 1, epoch=0, last=0), follower=2, wait_ms=0), "ack")
    reads = of_kind(host.ask(fetch(at(key_of("x"), 0), at(key_of("y"), 0), follower=follower)), ReadPartition)
    assert [each.key for each in reads] == [key_of("x"), key_of("y")]
    host.do(PartitionRead(token=reads[0].token, data=None, problem="batch 0: CRC"))
    x, y = answer_to(host.do(PartitionRead(token=reads[1].token, data=b"records"))).partitions
    assert (x.error, x.records) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
    assert "batch 0: CRC" in (x.message or "")
    assert (y.error, y.records) == (ErrorCode.NONE, b"records")


def test_damage_is_not_told_by_one_who_leads_no_more() -> None:
    cluster, host = leading("x", replicas=(1, 2))
    host.ask(produce(key_of("x"), acks=1))
    host.work()
    read = only(host.ask(fetch(at(key_of("x"), 0, epoch=0), follower=2)), ReadPartition)
    cluster.change(key_of("x"), leader=2)
    host.publish()
    (part,) = answer_to(host.do(PartitionRead(token=read.token, data=None, problem="cut short"))).partitions
    assert part.error is ErrorCode.FENCED_LEADER_EPOCH


def test_parked_fetches_hear_of_a_failed_directory_at_once() -> None:
    _, host = leading("x")
    host.ask(fetch(at(key_of("x"), 0)))
    (part,) = answer_to(host.fail(A)).partitions
    assert part.error is ErrorCode.KAFKA_STORAGE_ERROR


def test_what_was_just_appended_is_answered_from_memory_until_it_is_led_no_more() -> None:
    cluster, host = leading("x", replicas=(1, 2), log_tail_cache_max_bytes=1_000)
    x = key_of("x")
    host.ask(produce(x, acks=1))
    host.work()
    host.ask(produce(x, acks=1), "k2")
    host.work()
    disk = host.disks[A, x].batches
    effects = host.ask(fetch(at(x, 0, epoch=0), follower=2), "f")
    assert of_kind(effects, ReadPartition) == []
    assert answer_to(effects, "f").partitions[0].records == b"".join(disk)
    one = answer_to(host.ask(fetch(at(x, 1, epoch=0, last=0), follower=2), "f"), "f")
    assert one.partitions[0].records == disk[1]
    cluster.change(x, leader=2)
    host.publish()
    cluster.change(x, leader=1)
    host.publish()
    assert only(host.ask(fetch(at(x, 0, epoch=2), follower=2), "f"), ReadPartition).from_offset == 0


@pytest.mark.parametrize("start", [0, 1])
def test_what_was_compacted_or_deleted_is_read_from_memory_no_more(start: int) -> None:
    _, host = leading("x", replicas=(1, 2), log_tail_cache_max_bytes=1_000)
    x = key_of("x")
    host.ask(produce(x, acks=1))
    host.work()
    host.ask(produce(x, acks=1), "k2")
    host.work()
    assert of_kind(host.ask(fetch(at(x, 1, epoch=0), follower=2), "f"), ReadPartition) == []
    host.do(ReplicaLogTrimmed(directory_id=A, key=x, incarnation=1, start_offset=start, size_bytes=9))
    effects = host.ask(fetch(at(x, 1, epoch=0), follower=2), "g")
    assert only(effects, ReadPartition).from_offset == 1


@pytest.mark.parametrize("kept_bytes", [0, 1_000])
def test_followers_have_a_batch_from_memory_while_the_leaders_disk_takes_it(kept_bytes: int) -> None:
    """Where memory has it; either way it is committed when the leader's disk has it, too."""
    _, host = leading("x", replicas=(1, 2), log_tail_cache_max_bytes=kept_bytes)
    x = key_of("x")
    host.ask(fetch(at(x, 0, epoch=0), follower=2), "f")
    host.ask(fetch(at(x, 0)), "client")
    answers = [each.key for each in of_kind(host.ask(produce(x), "p"), DataRespond)]
    assert answers == (["f"] if kept_bytes else [])
    if kept_bytes:
        held = host.ask(fetch(at(x, 1, epoch=0, last=0), follower=2), "g")
        assert of_kind(held, DataRespond) == []
    done = host.work()
    assert ("f" in [each.key for each in of_kind(done, DataRespond)]) is not bool(kept_bytes)
    if kept_bytes:
        assert answer_to(done, "p").results[0].error is ErrorCode.NONE
        assert len(answer_to(done, "client").partitions[0].records) > 0


# ---- fetch sessions (KIP-227) --------------------------------------------------------------------


def begin(host: Host, *keys: data_requests.PartitionKey) -> int:
    """A follower's session on partitions at offset 0; its id."""
    response = answer_to(
        host.ask(fetch(*[at(key, 0, epoch=0) for key in keys], session=(0, 0), follower=2, wait_ms=0))
    )
    assert response.session_id > 0 and [each.key for each in response.partitions] == list(keys)
    return int(response.session_id)


def test_a_session_names_what_changed_and_hears_what_has_something_to_say() -> None:
    _, host = leading("x", "y", replicas=(1, 2))
    x, y = key_of("x"), key_of("y")
    session = begin(host, x, y)
    assert host.ask(fetch(session=(session, 1), follower=2), key="f") == []
    host.ask(produce(y, acks=1))
    response = answer_to(host.work(), "f")
    assert [each.key for each in response.partitions] == [y]
    effects = host.ask(fetch(at(y, 1, epoch=0, last=0), session=(session, 2), follower=2), key="f")
    assert of_kind(effects, DataRespond) == [], "nothing new: it waits"
    late = answer_to(host.tick(500), "f")
    assert [(each.key, each.high_watermark, each.records) for each in late.partitions] == [(y, 1, b"")]


def test_what_was_told_is_told_again_only_to_one_who_asks_again() -> None:
    """A fetcher that does not name the partition then has not moved on: as with Kafka, it gets the same."""
    _, host = leading("x", replicas=(1, 2))
    x = key_of("x")
    session = begin(host, x)
    host.ask(fetch(session=(session, 1), follower=2), key="f")
    host.ask(produce(x, acks=1))
    assert answer_to(host.work(), "f").partitions[0].records
    assert host.work() == []
    again = host.ask(fetch(session=(session, 2), follower=2), key="g")
    assert only(again, ReadPartition).from_offset == 0
    assert answer_to(host.work(), "g").partitions[0].records
    assert host.ask(fetch(at(x, 1, epoch=0, last=0), session=(session, 3), follower=2), key="h") == []


def test_sessions_refuse_other_epochs_and_unknown_ids() -> None:
    _, host = leading("x", replicas=(1, 2))
    session = begin(host, key_of("x"))
    wrong = answer_to(host.ask(fetch(session=(session, 5), follower=2)))
    assert wrong.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = answer_to(host.ask(fetch(session=(session + 1, 1), follower=2)))
    assert unknown.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    foreign = answer_to(host.ask(fetch(session=(session, 1), follower=3)))
    assert foreign.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_late_copy_of_an_older_fetch_of_a_session_acknowledges_nothing() -> None:
    _, host = leading("x", replicas=(1, 2))
    x = key_of("x")
    session = begin(host, x)
    host.ask(produce(x), "p")
    host.work()
    first = fetch(at(x, 0, epoch=0), session=(session, 1), follower=2, wait_ms=0)
    host.ask(first, "f1")
    host.work()
    effects = host.ask(fetch(at(x, 1, epoch=0, last=0), session=(session, 2), follower=2, wait_ms=0), "f2")
    assert answer_to(effects, "p").results[0].error is ErrorCode.NONE
    late = host.ask(first, "late")
    assert answer_to(late, "late").code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    goes_on = answer_to(host.ask(fetch(session=(session, 3), follower=2, wait_ms=0), "f3"), "f3")
    assert isinstance(goes_on, data_requests.FetchResponse), "the session did not move"


def test_a_forgotten_partition_is_heard_of_no_more() -> None:
    _, host = leading("x", "y", replicas=(1, 2))
    x, y = key_of("x"), key_of("y")
    session = begin(host, x, y)
    host.ask(fetch(session=(session, 1), follower=2, forgotten=(x,)), key="f")
    host.ask(produce(x, acks=1))
    assert [each for each in of_kind(host.work(), DataRespond) if each.key == "f"] == []


def test_a_full_cache_answers_without_a_session_and_old_ones_go() -> None:
    _, host = leading("x", max_incremental_fetch_session_cache_slots=1)
    key = key_of("x")

    def start(name: str) -> int:
        return int(answer_to(host.ask(fetch(at(key, 0), session=(0, 0), wait_ms=0), name), name).session_id)

    first = start("a")
    assert first > 0 and start("b") == 0
    host.tick(120_001)
    assert start("c") > 0
    gone = answer_to(host.ask(fetch(session=(first, 1)), "d"), "d")
    assert gone.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_follower_takes_the_slot_of_a_client() -> None:
    _, host = leading("x", replicas=(1, 2), max_incremental_fetch_session_cache_slots=1)
    client = answer_to(host.ask(fetch(at(key_of("x"), 0), session=(0, 0), wait_ms=0), "a"), "a").session_id
    assert client > 0
    host.ask(fetch(session=(client, 1)), "waits")
    start = fetch(at(key_of("x"), 0, epoch=0), session=(0, 0), follower=2, wait_ms=0)
    effects = host.ask(start, "f")
    assert answer_to(effects, "f").session_id > 0
    assert answer_to(effects, "waits").code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    gone = answer_to(host.ask(fetch(session=(client, 2)), "d"), "d")
    assert gone.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert host.manager.status().fetch_sessions == 1


# ---- the ISR -------------------------------------------------------------------------------------


def test_followers_that_stop_are_proposed_out_in_one_request() -> None:
    _, host = leading("x", "y", replicas=(1, 2), replica_lag_time_max_ms=1_000)
    for name in ("x", "y"):
        host.ask(produce(key_of(name), timeout_ms=9_000), name)
        host.work()
    host.tick(500)
    asked = only(host.tick(501), SendToController)
    assert isinstance(asked.request, AlterPartitionRequest)
    assert [[member.broker_id for member in each.isr] for each in asked.request.partitions] == [[1], [1]]
    effects = host.answer_controller([asked])
    assert len(of_kind(effects, DataRespond)) == 2, "the high watermark waits for nobody now"


def test_a_quiet_follower_of_an_idle_partition_stays_in_sync_when_it_wakes_up() -> None:
    """It names nothing for minutes because there is nothing to say; the first record must not cost it its
    place."""
    _, host = leading("x", replicas=(1, 2), replica_lag_time_max_ms=1_000)
    x = key_of("x")
    session = begin(host, x)
    for epoch in range(1, 20):
        host.ask(fetch(session=(session, epoch), follower=2), key="f")
        assert answer_to(host.tick(500), "f").partitions == ()
    host.ask(fetch(session=(session, 20), follower=2), key="f")
    host.ask(produce(x))
    effects = host.work()
    effects += host.tick(499)
    assert of_kind(effects, SendToController) == []


# ---- offsets, producer ids -----------------------------------------------------------------------


def test_offsets_by_time_are_looked_up_in_the_log() -> None:
    _, host = leading("x")
    key = key_of("x")
    host.ask(produce(key))
    host.work()
    parts = tuple(data_requests.ListOffsetsPartition(key=key, timestamp_ms=each) for each in (-1, -2, 123))
    sought = only(host.ask(data_requests.ListOffsetsRequest(partitions=parts)), FindOffset)
    assert (sought.key, sought.timestamp_ms, sought.below_offset) == (key, 123, 1)
    reply = OffsetFound(token=sought.token, offset=0, timestamp_ms=150, leader_epoch=0)
    results = answer_to(host.do(reply)).results
    assert [(each.offset, each.timestamp_ms) for each in results] == [(1, -1), (0, -1), (0, 150)]


@pytest.mark.parametrize(("asks", "end"), [(-1, 0), (2, 1)])
def test_a_replica_is_told_the_end_of_the_log_and_a_client_what_is_committed(asks: int, end: int) -> None:
    _, host = leading("x", replicas=(1, 2))
    host.ask(produce(key_of("x"), acks=1))
    host.work()
    part = data_requests.ListOffsetsPartition(key=key_of("x"), timestamp_ms=-1)
    asked = data_requests.ListOffsetsRequest(partitions=(part,), replica_id=asks)
    (result,) = answer_to(host.ask(asked)).results
    assert (result.offset, result.error) == (end, ErrorCode.NONE)


def test_a_time_that_cannot_be_looked_up_in_a_damaged_log_is_an_error() -> None:
    _, host = leading("x")
    host.ask(produce(key_of("x")))
    host.work()
    wanted = data_requests.ListOffsetsPartition(key=key_of("x"), timestamp_ms=123)
    sought = only(host.ask(data_requests.ListOffsetsRequest(partitions=(wanted,))), FindOffset)
    reply = OffsetFound(token=sought.token, offset=None, timestamp_ms=-1, leader_epoch=-1, problem="CRC")
    (result,) = answer_to(host.do(reply)).results
    assert result.error is ErrorCode.KAFKA_STORAGE_ERROR and "CRC" in (result.message or "")


def test_producer_ids_come_from_blocks_of_the_controller() -> None:
    _, host = leading("x")
    asked = host.ask(data_requests.InitProducerIdRequest(), "p1")
    call = only(asked, SendToController)
    assert call.request == AllocateProducerIdsRequest(broker_id=1, broker_epoch=101)
    assert host.ask(data_requests.InitProducerIdRequest(), "p2") == []
    block = AllocateProducerIdsResponse(first_id=5_000, count=3)
    effects = host.do(reported(call, block))
    assert [answer_to(effects, name) for name in ("p1", "p2")] == [
        data_requests.InitProducerIdResponse(producer_id=5_000, producer_epoch=0),
        data_requests.InitProducerIdResponse(producer_id=5_001, producer_epoch=0),
    ]
    assert answer_to(host.ask(data_requests.InitProducerIdRequest())).producer_id == 5_002
    assert len(of_kind(host.ask(data_requests.InitProducerIdRequest(), "p4"), SendToController)) == 1


def test_nobody_waits_for_a_producer_id_for_ever() -> None:
    _, host = leading("x", replica_request_timeout_ms=3_000)
    host.ask(data_requests.InitProducerIdRequest())
    assert answer_to(host.tick(3_000)).code is ErrorCode.REQUEST_TIMED_OUT


# ---- upkeep --------------------------------------------------------------------------------------


def test_high_watermarks_are_written_where_they_moved_and_at_the_end() -> None:
    _, host = leading("x")
    host.ask(produce(key_of("x")))
    host.work()
    written = CheckpointHighWatermarks(directory_id=A, high_watermarks=(("x", 0, 1),))
    assert of_kind(host.tick(5_000), CheckpointHighWatermarks) == [written]
    assert of_kind(host.tick(5_000), CheckpointHighWatermarks) == []
    host.ask(produce(key_of("x")), "k2")
    host.work()
    host.ask(fetch(at(key_of("x"), 2)), "waits")
    effects = host.manager.stop(now_ms=host.now_ms, wall_ms=0)
    assert answer_to(effects, "waits").code is ErrorCode.BROKER_NOT_AVAILABLE
    assert effects[-1] == CheckpointHighWatermarks(directory_id=A, high_watermarks=(("x", 0, 2),))
    assert host.ask(produce(key_of("x"))) == []


def test_retention_comes_round_to_every_log_below_its_high_watermark() -> None:
    _, host = leading("x", "y", log_retention_check_interval_ms=10_000)
    effects = host.tick(10_000)
    assert [(each.key, each.below_offset) for each in of_kind(effects, EnforceRetention)] == [
        (key_of("x"), 0),
        (key_of("y"), 0),
    ]


def test_a_round_over_many_replicas_is_done_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "SLICE_MAX", 1)
    _, host = leading("x", "y", log_retention_check_interval_ms=10_000)
    for after_ms, name in ((10_000, "x"), (manager.SLICE_PAUSE_MS, "y")):
        assert only(host.tick(after_ms), EnforceRetention).key == key_of(name)


def test_s4_15_s4_16_after_a_restart_it_leads_or_follows_what_the_log_says() -> None:
    cluster = Cluster()
    leads, follows = cluster.topic("leads", place=A), cluster.topic("follows", place=A, leader=2)
    host = Host(cluster, found(A, [("leads", 0), ("follows", 0)]), found(B))
    host.publish()
    roles = {key: partition.role for key, partition in host.manager.partitions.items()}
    assert roles == {leads: ReplicaRole.LEADER, follows: ReplicaRole.FOLLOWER}
    status = host.manager.status()
    assert (status.replicas, status.leaders, status.followers) == (2, 1, 1)


@pytest.mark.parametrize("source", ["nothing", "the broker's file", "all brokers", "the topic"])
def test_a_log_that_a_start_finds_gets_the_settings_of_its_topic(source: str) -> None:
    """Its directory was opened before the image was known: with Kafka's defaults."""
    cluster = Cluster()
    key = cluster.topic("x", place=A)
    if source == "all brokers":
        cluster.configure(ConfigResource(BROKER_RESOURCE, ""), "log.segment.bytes", "700")
    elif source == "the topic":
        cluster.configure(ConfigResource(TOPIC_RESOURCE, "x"), "segment.bytes", "700")
    config = {"topic_defaults": {"log.segment.bytes": "700"}} if source == "the broker's file" else {}
    host = Host(cluster, found(A, [("x", 0)]), found(B), **config)
    told = of_kind(host.publish(), ChangeLogSettings)
    expected = [] if source == "nothing" else [(A, key, 1, 700)]
    assert [
        (each.directory_id, each.key, each.incarnation, each.settings.segment_bytes) for each in told
    ] == expected
