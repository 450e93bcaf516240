"""Following: two replica managers in one cluster, and what one fetch loop a leader and directory does."""

from __future__ import annotations

from typing import Any

from metaquorum.broker.channel import SendToController
from metaquorum.broker.replica.disk_work import AppendPartition, ReplicaLogTrimmed
from metaquorum.broker.replica.events import (
    DataEffect,
    DataRequestArrived,
    DataRespond,
    PeerFetched,
    PeerFetchFailed,
    SendFetch,
)
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import (
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    PartitionKey,
    ProducePartition,
    ProduceRequest,
)
from metaquorum.storage.batches.batch import Batches
from tests.unit.broker.manager_world import A, B, Cluster, Host, found, key_of, of_kind, only
from tests.unit.broker.replica_world import batch


def following(*names: str, place: bytes = A, leader: int = 2) -> tuple[Cluster, Host]:
    """A broker that follows partition 0 of each topic, in one directory."""
    cluster = Cluster()
    for name in names:
        cluster.topic(name, place=place, leader=leader)
    host = Host(cluster, found(A, [(name, 0) for name in names]), found(B))
    return cluster, host


def respond(host: Host, sent: SendFetch, *parts: FetchedPartition, session_id: int = 77) -> list[DataEffect]:
    response = FetchResponse(session_id=session_id, partitions=parts)
    return host.do(PeerFetched(target=sent.target, correlation_id=sent.correlation_id, response=response))


def records(name: str, *, offset: int = 0, high_watermark: int = 0) -> FetchedPartition:
    data = batch(b"v", base_offset=offset, leader_epoch=0)
    return FetchedPartition(
        key=key_of(name), high_watermark=high_watermark, log_start_offset=0, leader_epoch=0, records=data
    )


def position(name: str, offset: int, *, last: int = -1, epoch: int = 0) -> FetchPartition:
    return FetchPartition(
        key=key_of(name),
        fetch_offset=offset,
        max_bytes=1024 * 1024,
        current_leader_epoch=epoch,
        last_fetched_epoch=last,
        log_start_offset=0,
    )


def test_the_first_fetch_names_everything_and_begins_a_session() -> None:
    _, host = following("x", "y")
    sent = only(host.publish(), SendFetch)
    assert (sent.target, sent.host, sent.port) == (2, "host2", 9002)
    request = sent.request
    assert (request.replica_id, request.replica_epoch) == (1, 101)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert request.partitions == (position("x", 0), position("y", 0))


def test_the_next_fetch_waits_until_the_last_answer_is_durable_and_names_what_changed() -> None:
    _, host = following("x", "y")
    first = only(host.publish(), SendFetch)
    effects = respond(host, first, records("x"))
    assert only(effects, AppendPartition).sync is True
    assert of_kind(effects, SendFetch) == [], "the next position is the acknowledgement"
    second = only(host.work(), SendFetch)
    assert (second.request.session_id, second.request.session_epoch) == (77, 1)
    assert second.request.partitions == (position("x", 1, last=0),)
    third = only(respond(host, second), SendFetch)
    assert (third.request.session_epoch, third.request.partitions) == (2, ())


def test_one_loop_a_directory_and_leader() -> None:
    cluster = Cluster()
    for name, place, leader in (("a2", A, 2), ("b2", B, 2), ("a3", A, 3)):
        cluster.topic(name, place=place, leader=leader)
    host = Host(cluster, found(A, [("a2", 0), ("a3", 0)]), found(B, [("b2", 0)]))
    sent = of_kind(host.publish(), SendFetch)
    assert [(each.target, [part.key for part in each.request.partitions]) for each in sent] == [
        (2, [key_of("a2")]),
        (2, [key_of("b2")]),
        (3, [key_of("a3")]),
    ]
    assert host.manager.status().fetchers == 3


def test_s3_11_a_failed_directory_ends_its_loops_only() -> None:
    cluster = Cluster()
    cluster.topic("a", place=A, leader=2)
    cluster.topic("b", place=B, leader=2)
    host = Host(cluster, found(A, [("a", 0)]), found(B, [("b", 0)]))
    by_key = {each.request.partitions[0].key: each for each in of_kind(host.publish(), SendFetch)}
    host.fail(A)
    assert respond(host, by_key[key_of("a")], records("a")) == [], "it is nobody's answer"
    assert len(of_kind(respond(host, by_key[key_of("b")]), SendFetch)) == 1
    assert host.manager.status().fetchers == 1


def test_s4_11_a_new_leader_is_fetched_from_and_the_old_one_no_more() -> None:
    cluster, host = following("x", "y")
    first = only(host.publish(), SendFetch)
    cluster.change(key_of("x"), leader=3)
    moved = only(host.publish(), SendFetch)
    assert (moved.target, moved.request.partitions) == (3, (position("x", 0, epoch=1),))
    late = respond(host, first, records("x"), records("y"))
    assert [each.key for each in of_kind(late, AppendPartition)] == [key_of("y")]
    rest = only(host.work(), SendFetch)
    assert (rest.target, rest.request.forgotten) == (2, (key_of("x"),))


def test_a_partition_that_leaves_before_its_next_position_is_told_is_forgotten() -> None:
    """Else the old leader refuses it in each answer, at once, for as long as the session lasts."""
    cluster, host = following("x", "y")
    first = only(host.publish(), SendFetch)
    respond(host, first, records("x"))
    cluster.change(key_of("x"), leader=3)
    effects = [*host.publish(), *host.work()]
    rest = next(each for each in of_kind(effects, SendFetch) if each.target == 2)
    assert rest.request.forgotten == (key_of("x"),)


def test_s4_10_a_new_leader_stops_fetching() -> None:
    cluster, host = following("x")
    sent = only(host.publish(), SendFetch)
    cluster.change(key_of("x"), leader=1)
    assert of_kind(host.publish(), SendFetch) == []
    assert of_kind(respond(host, sent, records("x")), AppendPartition | SendFetch) == []


def test_a_refused_partition_is_left_alone_for_a_while_and_named_again() -> None:
    _, host = following("x", "y")
    first = only(host.publish(), SendFetch)
    refused = FetchedPartition(key=key_of("x"), error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="not yet")
    second = only(respond(host, first, refused), SendFetch)
    assert (second.request.partitions, second.request.forgotten) == ((), (key_of("x"),))
    assert of_kind(host.tick(50), SendFetch) == [], "a fetch is in flight"
    third = only(respond(host, second), SendFetch)
    assert third.request.partitions == (position("x", 0),)


def test_a_refused_partition_waits_whatever_its_log_does_until_newer_metadata_names_its_leader() -> None:
    cluster, host = following("x", "y")
    sent = only(respond(host, only(host.publish(), SendFetch), records("x")) and host.work(), SendFetch)
    refused = FetchedPartition(key=key_of("x"), error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    sent = only(respond(host, sent, refused), SendFetch)
    host.do(ReplicaLogTrimmed(directory_id=A, key=key_of("x"), incarnation=1, start_offset=1, size_bytes=9))
    sent = only(respond(host, sent), SendFetch)
    assert sent.request.partitions == (), "it still waits"
    cluster.change(key_of("x"), leader=2)
    host.publish()
    sent = only(respond(host, sent), SendFetch)
    assert [each.key for each in sent.request.partitions] == [key_of("x")]


def test_a_follower_that_comes_back_to_a_leader_waits_no_longer_than_a_new_one() -> None:
    cluster, host = following("x", "y")
    sent = only(host.publish(), SendFetch)
    refused = FetchedPartition(key=key_of("x"), error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for _ in range(2):
        effects = respond(host, only(respond(host, sent, refused), SendFetch)) + host.tick(100)
        sent = only(effects, SendFetch)
        sent = only(respond(host, sent), SendFetch)
    for leader in (1, 2):
        cluster.change(key_of("x"), leader=leader)
        host.publish()
    sent = only(respond(host, sent), SendFetch)
    assert [each.key for each in sent.request.partitions] == [key_of("x")]
    sent = only(respond(host, sent, refused), SendFetch)
    host.tick(50)
    assert [each.key for each in only(respond(host, sent), SendFetch).request.partitions] == [key_of("x")]


def test_waits_after_refusals_grow_to_the_backoff() -> None:
    _, host = following("x")
    sent = only(host.publish(), SendFetch)
    waits = []
    for _ in range(7):
        refused = FetchedPartition(key=key_of("x"), error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        effects = respond(host, sent, refused)
        sent_again = of_kind(effects, SendFetch)
        waited = 0
        while not [each for each in sent_again if each.request.partitions]:
            sent_again = [
                follow for each in sent_again for follow in of_kind(respond(host, each), SendFetch)
            ] or of_kind(host.tick(10), SendFetch)
            waited += 10
        waits.append(waited)
        sent = sent_again[-1]
    assert waits == sorted(waits) and waits[0] <= 60 and 950 <= waits[-1] <= 1_050


def test_a_leader_that_does_not_answer_is_asked_again_with_a_new_session() -> None:
    _, host = following("x")
    first = only(host.publish(), SendFetch)
    failed = PeerFetchFailed(target=2, correlation_id=first.correlation_id, reason="timed out")
    assert host.do(failed) == []
    assert host.manager.next_deadline_ms() == host.now_ms + 50
    again = only(host.tick(50), SendFetch)
    assert (again.request.session_epoch, again.request.partitions) == (0, (position("x", 0),))


def test_a_session_that_the_leader_forgot_is_begun_anew_at_once() -> None:
    _, host = following("x")
    second = only(respond(host, only(host.publish(), SendFetch)), SendFetch)
    gone = ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "evicted")
    effects = host.do(PeerFetched(target=2, correlation_id=second.correlation_id, response=gone))
    again = only(effects, SendFetch).request
    assert (again.session_id, again.session_epoch, again.partitions) == (0, 0, (position("x", 0),))


def test_a_new_session_begins_without_a_partition_that_waits() -> None:
    _, host = following("x", "y")
    refused = FetchedPartition(key=key_of("x"), error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    second = only(respond(host, only(host.publish(), SendFetch), refused), SendFetch)
    gone = ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "evicted")
    effects = host.do(PeerFetched(target=2, correlation_id=second.correlation_id, response=gone))
    assert only(effects, SendFetch).request.partitions == (position("y", 0),)


def test_a_leader_without_room_for_sessions_hears_everything_each_time() -> None:
    _, host = following("x")
    first = only(host.publish(), SendFetch)
    again = only(respond(host, first, session_id=0), SendFetch).request
    assert (again.session_epoch, again.partitions) == (0, (position("x", 0),))


def test_a_leader_that_is_not_registered_is_fetched_from_when_it_is() -> None:
    cluster = Cluster()
    cluster.topic("x", place=A, leader=9, replicas=(1, 9))
    host = Host(cluster, found(A, [("x", 0)]), found(B))
    assert of_kind(host.publish(), SendFetch) == []
    cluster.broker(9)
    assert only(host.publish(), SendFetch).target == 9


# ---- leader and follower together ----------------------------------------------------------------


class Pair:
    """Broker 1 leads and broker 2 follows, with their disks; fetches travel at once."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.key = self.cluster.topic("x", place=A, replicas=(1, 2))
        self.leader = Host(self.cluster, found(A, [("x", 0)]), found(B))
        self.leader.publish()
        other = b"e" * 16
        self.follower = Host(self.cluster, found(other, [("x", 0)]), broker_id=2)
        self.answers: list[Any] = []
        self.asked: list[SendToController] = []
        self.pending: list[tuple[Host, DataEffect]] = []
        self.run(self.follower, self.follower.publish())

    def run(self, host: Host, effects: list[DataEffect]) -> None:
        self.pending += [(host, each) for each in effects]
        while True:
            for each in (self.leader, self.follower):
                self.pending += [(each, effect) for effect in each.work()]
            if not self.pending:
                return
            self._carry(*self.pending.pop(0))

    def _carry(self, host: Host, effect: DataEffect) -> None:
        if isinstance(effect, SendFetch):
            arrived = DataRequestArrived(key=effect, request=effect.request)
            self.pending += [(self.leader, each) for each in self.leader.do(arrived)]
        elif isinstance(effect, DataRespond) and isinstance(effect.key, SendFetch):
            answer = PeerFetched(
                target=1,
                correlation_id=effect.key.correlation_id,
                response=effect.response,  # type: ignore[arg-type]
            )
            self.pending += [(self.follower, each) for each in self.follower.do(answer)]
        elif isinstance(effect, DataRespond):
            self.answers.append(effect.response)
        elif isinstance(effect, SendToController):
            self.asked.append(effect)


def produce(key: PartitionKey, value: bytes) -> ProduceRequest:
    part = ProducePartition(key=key, batch=Batches.arrived(batch(value)))
    return ProduceRequest(acks=-1, timeout_ms=5_000, partitions=(part,))


def test_acks_all_goes_round_through_the_follower_without_a_clock() -> None:
    pair = Pair()
    for n in range(5):
        pair.run(pair.leader, pair.leader.ask(produce(pair.key, b"v%d" % n), n))
        assert len(pair.answers) == n + 1 and pair.answers[n].results[0].base_offset == n
    disks = [host.disks[place, pair.key] for host, place in ((pair.leader, A), (pair.follower, b"e" * 16))]
    assert disks[0].batches == disks[1].batches and len(disks[0].batches) == 5
    assert pair.leader.manager.partitions[pair.key].high_watermark == 5
    assert pair.asked == []


def test_a_follower_learns_the_high_watermark_with_a_later_answer() -> None:
    pair = Pair()
    pair.run(pair.leader, pair.leader.ask(produce(pair.key, b"v")))
    replica = pair.follower.manager.partitions[pair.key]
    assert replica.high_watermark == 0
    pair.run(pair.leader, pair.leader.tick(500))
    assert replica.high_watermark == 1
