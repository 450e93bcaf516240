"""Brokers at the active controller: joining, heartbeats, death, return, shutdown, failover in between."""

from __future__ import annotations

import pytest

from metaquorum.controller.active.outcome import BROKER_REPORT_MS, Batch
from metaquorum.controller.active.steps import PENDING_APPENDS_MAX
from metaquorum.controller.server.main import node_status
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MIGRATING, BrokerRegistration
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import (
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    CreateTopicsRequest,
    Done,
    NewTopic,
    RegisterBrokerResponse,
    TopicsResponse,
    UnregisterBrokerRequest,
)
from metaquorum.metadata.requests.status import BrokerControlState
from metaquorum.raft.config import RaftConfig
from tests.unit.controller.node_quorum import CLUSTER, Machine, Quorum, registration

SESSION_MS = 9_000


def quorum_of(
    *, slice_max: int = 1_000, lag_ms: int = 30_000, level: int = 19, raft: RaftConfig | None = None
) -> Quorum:
    config = ControllerConfig(
        cluster_id=CLUSTER,
        node_id=0,
        bootstrap=(FeatureLevelRecord(name="metadata.version", feature_level=level),),
        broker_session_timeout_ms=SESSION_MS,
        broker_metadata_lag_timeout_ms=lag_ms,
        records_per_slice_max=slice_max,
    )
    quorum = Quorum(config=config, raft_config=raft)
    quorum.elect()
    return quorum


def beat(answer: object) -> BrokerHeartbeatResponse:
    assert isinstance(answer, BrokerHeartbeatResponse), answer
    return answer


def error(answer: object) -> ErrorCode:
    assert isinstance(answer, ApiError), answer
    return answer.code


def known(quorum: Quorum, broker_id: int) -> BrokerRegistration:
    return quorum.image().brokers[broker_id]


def state(quorum: Quorum, broker_id: int) -> BrokerControlState:
    return next(b.state for b in node_status(quorum.leader.node).brokers if b.broker_id == broker_id)


def kinds(records: list[object]) -> list[type]:
    return [type(record) for record in records]


# ---- joining


def test_a_broker_joins_fenced_and_is_unfenced_when_it_has_applied_its_registration() -> None:
    quorum = quorum_of()
    answer = quorum.register(1)
    assert isinstance(answer, RegisterBrokerResponse)
    record = quorum.records()[-1]
    assert isinstance(record, BrokerRecord) and record.broker_epoch == answer.broker_epoch
    assert quorum.leader.end_offset == answer.broker_epoch + 2  # the epoch is its batch's offset
    behind = beat(quorum.heartbeat(1, applied_offset=answer.broker_epoch))
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    up = beat(quorum.heartbeat(1, applied_offset=answer.broker_epoch + 2))
    assert (up.is_caught_up, up.is_fenced, up.session_timeout_ms) == (True, False, SESSION_MS)
    assert quorum.records()[-1] == UnfenceBrokerRecord(id=1, epoch=answer.broker_epoch)
    before = quorum.leader.end_offset
    assert beat(quorum.heartbeat(1)) == up
    assert quorum.leader.end_offset == before  # a heartbeat that changes nothing writes nothing


def test_a_registration_that_no_batch_can_hold_is_refused_and_harms_nothing() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    end = quorum.leader.end_offset
    many = tuple(number.to_bytes(16, "big") for number in range(1_000, 601_000))
    answer = quorum.register(2, directories=many)
    assert isinstance(answer, ApiError) and answer.code is ErrorCode.POLICY_VIOLATION
    assert quorum.leader.end_offset == end and 2 not in quorum.image().brokers
    assert quorum.leader.node.sessions.get(2) is None
    assert not beat(quorum.heartbeat(1)).is_fenced


def test_a_broker_that_wants_to_stay_fenced_stays_fenced() -> None:
    quorum = quorum_of()
    quorum.register(1)
    assert beat(quorum.heartbeat(1, want_fence=True)).is_fenced
    assert known(quorum, 1).fenced


def test_epochs_grow_with_every_incarnation_and_stale_ones_are_refused() -> None:
    quorum = quorum_of()
    first = quorum.start_broker(1, 1)
    quorum.beat_for(1_000)
    quorum.advance(SESSION_MS + 2_000)
    second = quorum.start_broker(1, 2)
    assert second > first
    assert error(quorum.heartbeat(1, broker_epoch=first)) is ErrorCode.STALE_BROKER_EPOCH
    assert error(quorum.heartbeat(1, broker_epoch=second + 1)) is ErrorCode.NOT_CONTROLLER
    assert error(quorum.heartbeat(7)) is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert not known(quorum, 1).fenced


def test_two_processes_with_one_id_the_live_one_keeps_it() -> None:
    quorum = quorum_of()
    epoch = quorum.start_broker(1, 1)
    quorum.advance(4_000)
    answer = quorum.register(1, 2)
    assert error(answer) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert isinstance(answer, ApiError) and "5000 ms" in answer.message
    assert known(quorum, 1).epoch == epoch
    quorum.heartbeat(1)
    quorum.advance(8_000)
    assert error(quorum.register(1, 2)) is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_lost_response_and_its_retry_yield_one_registration() -> None:
    quorum = quorum_of()
    first = quorum.register(1)
    end = quorum.leader.end_offset
    assert quorum.register(1) == first
    assert quorum.leader.end_offset == end


# ---- death


def test_silence_fences_leaders_move_and_the_fence_is_last() -> None:
    quorum = quorum_of()
    epochs = {broker_id: quorum.start_broker(broker_id) for broker_id in (1, 2, 3)}
    topic = quorum.create("t", (1, 2, 3), (2, 1, 3))
    alone = quorum.create("u", (1,))
    start = quorum.leader.end_offset
    quorum.beat_for(12_000, 2, 3)
    assert known(quorum, 1).fenced
    assert quorum.batches(start) == [
        [
            PartitionChangeRecord(partition_id=0, topic_id=topic, isr=(2, 3), leader=2),
            PartitionChangeRecord(partition_id=1, topic_id=topic, isr=(2, 3)),
            PartitionChangeRecord(partition_id=0, topic_id=alone, leader=-1),
            FenceBrokerRecord(id=1, epoch=epochs[1]),
        ]
    ]
    assert quorum.leader.node.counters is node_status(quorum.leader.node).counters
    assert node_status(quorum.leader.node).counters.timed_out_heartbeats == 1
    assert node_status(quorum.leader.node).counters.requests > 10
    (warning,) = [line for line in quorum.leader.warnings if "broker 1 " in line]
    assert warning.startswith("broker 1 sent no heartbeat for 9") and "is being fenced" in warning
    # It returns: unfenced first, then the leadership that this makes possible.
    start = quorum.leader.end_offset
    assert not beat(quorum.heartbeat(1)).is_fenced
    assert quorum.batches(start) == [
        [
            UnfenceBrokerRecord(id=1, epoch=epochs[1]),
            PartitionChangeRecord(partition_id=0, topic_id=alone, leader=1),
        ]
    ]


def test_a_session_lasts_its_time_and_no_longer() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    quorum.advance(SESSION_MS - 10)
    assert not known(quorum, 1).fenced
    quorum.advance(10)
    assert known(quorum, 1).fenced


def test_a_long_fencing_goes_in_slices_and_the_broker_counts_as_fenced_from_the_first() -> None:
    quorum = quorum_of(slice_max=2)
    epoch = quorum.start_broker(1)
    quorum.start_broker(2)
    quorum.create("t", *[(1, 2)] * 5)
    start = quorum.leader.end_offset
    leader = quorum.leader
    key = quorum.request(quorum.heartbeat_request(1, want_fence=True))
    leader.step()
    assert [len(batch) for batch in quorum.batches(start)] == [2]
    assert 1 in leader.node.sessions.fencing
    # Between the batches: it gets no new replica in sync, no leadership, and is told that it is fenced.
    topic = quorum.create("between", (1, 2))
    assert quorum.partition(topic).isr == (2,)
    told = beat(quorum.heartbeat(1))
    assert told.is_fenced
    assert leader.node.next_deadline_ms() == quorum.now_ms
    while leader.node.active is not None and leader.node.active.work:
        leader.tick()
        quorum.settle()
    assert [len(batch) for batch in quorum.batches(start)] == [2, 2, 2, 2]
    assert quorum.batches(start)[-1][-1] == FenceBrokerRecord(id=1, epoch=epoch)
    assert beat(leader.answers[key]).is_fenced
    assert all(
        quorum.partition(quorum.image().topics.topic_named("t").topic_id, n).leader == 2 for n in range(5)
    )


def test_brokers_are_told_of_a_long_fencing_in_intervals_and_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hundreds of answers for each slice would take longer than the slices."""
    quorum = quorum_of(slice_max=2)
    quorum.start_broker(1)
    quorum.start_broker(2)
    quorum.create("t", *[(1, 2)] * 9)
    node = quorum.leader.node
    append, told = node._append, []

    def noted(batch: Batch) -> None:
        told.append((len(batch.records), batch.wake_observers))
        append(batch)

    monkeypatch.setattr(node, "_append", noted)
    quorum.request(quorum.heartbeat_request(1, want_fence=True))
    quorum.leader.step()
    quorum.leader.tick()
    quorum.now_ms += BROKER_REPORT_MS
    while node.active is not None and node.active.work:
        quorum.leader.tick()
        quorum.settle()
    assert told == [(3, False), (3, False), (3, True), (3, False), (3, True)]  # each with its cause


def test_a_return_that_makes_many_leaders_possible_goes_in_slices() -> None:
    quorum = quorum_of(slice_max=2)
    epoch = quorum.start_broker(1)
    topic = quorum.create("t", *[(1,)] * 5)
    quorum.advance(12_000)
    assert [quorum.partition(topic, n).leader for n in range(5)] == [-1] * 5
    start = quorum.leader.end_offset
    assert not beat(quorum.heartbeat(1)).is_fenced
    quorum.advance(100)
    sizes = [len(batch) for batch in quorum.batches(start)]
    assert sizes == [3, 2, 1] and quorum.batches(start)[0][0] == UnfenceBrokerRecord(id=1, epoch=epoch)
    assert [quorum.partition(topic, n).leader for n in range(5)] == [1] * 5


def test_a_failover_between_the_batches_of_a_return_leaves_the_rest_to_the_next_leader() -> None:
    quorum = quorum_of(slice_max=2)
    quorum.start_broker(1)
    topic = quorum.create("t", *[(1,)] * 5)
    quorum.advance(12_000)
    old = quorum.leader
    old.node.next_deadline_ms()  # as the driver does when the inbox is empty
    quorum.request(quorum.heartbeat_request(1))
    old.step()
    for machine in quorum.followers:
        machine.tick()
    assert [len(batch) for batch in quorum.batches()][-1] == 3
    for _ in range(3):
        for machine in quorum.followers:
            machine.step()
    old.kill()
    quorum.elect()
    quorum.advance(100)
    assert [quorum.partition(topic, n).leader for n in range(5)] == [1] * 5


def test_a_failover_between_two_batches_of_a_fencing_starts_it_again() -> None:
    quorum = quorum_of(slice_max=2)
    quorum.start_broker(1)
    quorum.start_broker(2)
    topic = quorum.create("t", *[(1, 2)] * 5)
    old = quorum.leader
    quorum.request(quorum.heartbeat_request(1, want_fence=True))
    old.step()
    quorum.settle()
    assert known(quorum, 1).fenced is False
    assert [quorum.partition(topic, n).leader for n in range(5)].count(2) == 2
    old.kill()
    new = quorum.elect()
    assert not known(quorum, 1).fenced
    assert new.node.sessions.remaining_ms(1, quorum.now_ms) > 0  # a fresh lease
    quorum.beat_for(15_000, 2)
    assert known(quorum, 1).fenced
    assert [quorum.partition(topic, n).leader for n in range(5)] == [2] * 5


def test_slices_do_not_outrun_the_quorum() -> None:
    quorum = quorum_of(slice_max=1)
    quorum.start_broker(1)
    quorum.start_broker(2)
    quorum.create("t", *[(1, 2)] * 50)
    leader = quorum.leader
    for machine in quorum.followers:
        machine.sync = False
    quorum.request(quorum.heartbeat_request(1, want_fence=True))
    for _ in range(40):
        quorum.settle()
        leader.tick()
    assert len(leader.node.ledger.pending) == PENDING_APPENDS_MAX
    for machine in quorum.followers:
        machine.resume_sync()
    quorum.advance(500)
    assert known(quorum, 1).fenced
    assert quorum.image().topics.rows_led_by(1).size == 0


def test_many_deaths_at_once_move_no_leader_to_another_dying_broker() -> None:
    quorum = quorum_of()
    for broker_id in (1, 2, 3):
        quorum.start_broker(broker_id)
    topic = quorum.create("t", (1, 2, 3))
    quorum.beat_for(13_000, 3)
    assert quorum.partition(topic).leader == 3
    changes = [r for r in quorum.records() if isinstance(r, PartitionChangeRecord)]
    assert 2 not in [change.leader for change in changes]


# ---- after a failover, after a pause


def test_a_new_leader_gives_unfenced_brokers_a_fresh_session_and_fenced_ones_none() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    quorum.register(2)
    old = quorum.leader
    quorum.beat_for(8_000, 1)
    old.kill()
    new = quorum.elect()
    assert new.node.sessions.remaining_ms(1, quorum.now_ms) > SESSION_MS - 500
    assert new.node.sessions.get(2) is None
    # A fenced broker that was restarted registers at once; the dead unfenced one is fenced in time.
    assert isinstance(quorum.register(2, 2), RegisterBrokerResponse)
    assert error(quorum.register(1, 2)) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    quorum.advance(SESSION_MS + 1_000)
    assert known(quorum, 1).fenced


GAP_SETTLE_MS = 250
SLOW_RAFT = RaftConfig(fetch_timeout_ms=60_000, election_timeout_ms=30_000)


def paused_leader(quorum: Quorum, pause_ms: int) -> Machine:
    """Stop the leader's process for a while: nothing is delivered to it, its clock goes on. Its scheduler
    tells it of the gap."""
    leader = quorum.leader
    quorum.advance(1)
    quorum.now_ms += pause_ms
    leader.node.note_gap(quorum.now_ms + GAP_SETTLE_MS)
    return leader


def test_a_pause_longer_than_the_session_fences_nobody_whose_heartbeat_waited() -> None:
    quorum = quorum_of(raft=SLOW_RAFT)
    quorum.start_broker(1)
    quorum.start_broker(2)
    leader = paused_leader(quorum, 20_000)
    leader.tick(drained=False)  # the loop wakes before its sockets are read
    quorum.settle()
    assert not known(quorum, 1).fenced
    quorum.heartbeat(1)
    quorum.advance(GAP_SETTLE_MS - 1)
    assert not known(quorum, 1).fenced and not known(quorum, 2).fenced
    quorum.advance(1)
    assert known(quorum, 2).fenced and not known(quorum, 1).fenced


def test_no_session_expires_while_the_inbox_is_not_drained() -> None:
    quorum = quorum_of(raft=SLOW_RAFT)
    quorum.start_broker(1)
    leader = paused_leader(quorum, 20_000)
    for _ in range(10):
        quorum.now_ms += 100
        leader.tick(drained=False)
        quorum.settle()
    assert not known(quorum, 1).fenced
    quorum.now_ms += 100
    leader.tick(drained=True)
    quorum.settle()
    assert known(quorum, 1).fenced


def test_a_leader_paused_past_its_quorum_loses_office_before_it_judges_brokers() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    leader = paused_leader(quorum, 20_000)
    end = leader.end_offset
    leader.tick(drained=True)
    assert leader.node.active is None
    assert leader.end_offset == end


def test_a_heartbeat_counts_from_its_arrival() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    arrived = quorum.now_ms
    request = quorum.heartbeat_request(1)
    quorum.advance(100)
    quorum.request(request, arrived_ms=arrived + 50)
    quorum.settle()
    assert quorum.leader.node.sessions.remaining_ms(1, quorum.now_ms) == SESSION_MS - 50


# ---- lag


def test_a_broker_that_applies_nothing_while_behind_is_fenced_until_it_moves() -> None:
    quorum = quorum_of(lag_ms=5_000)
    quorum.start_broker(1)
    stuck = quorum.leader.end_offset
    for second in range(12):
        quorum.advance(1_000)
        answer = beat(quorum.heartbeat(1, applied_offset=stuck))
        assert not answer.is_fenced or second >= 4
    assert known(quorum, 1).fenced
    fences = [record for record in quorum.records() if isinstance(record, FenceBrokerRecord)]
    assert len(fences) == 1  # it does not bounce
    assert not beat(quorum.heartbeat(1)).is_fenced


def test_a_broker_that_makes_progress_is_never_fenced_for_lag() -> None:
    quorum = quorum_of(lag_ms=5_000)
    quorum.start_broker(1)
    applied = quorum.leader.end_offset
    for _ in range(20):
        quorum.advance(1_000)
        applied += 1
        assert not beat(quorum.heartbeat(1, applied_offset=applied)).is_fenced


def test_what_brokers_have_in_their_files_is_known_from_their_heartbeats() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    for minimum in (2, 3):
        quorum.heartbeat(1, min_insync_replicas=minimum)
        assert quorum.leader.node.sessions.min_insync_replicas() == {1: minimum}


# ---- controlled shutdown


def test_controlled_shutdown_moves_leaders_first_and_waits_until_every_active_broker_has_seen_it() -> None:
    quorum = quorum_of()
    epochs = {broker_id: quorum.start_broker(broker_id) for broker_id in (1, 2, 3)}
    topic = quorum.create("t", (1, 2, 3), (2, 1, 3))
    for broker_id in (2, 3):
        quorum.heartbeat(broker_id)
    start = quorum.leader.end_offset
    answer = beat(quorum.heartbeat(1, want_shutdown=True))
    assert (answer.in_controlled_shutdown, answer.is_fenced, answer.should_shut_down) == (True, False, False)
    assert quorum.batches(start) == [
        [
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=epochs[1], in_controlled_shutdown=1),
            PartitionChangeRecord(partition_id=0, topic_id=topic, isr=(2, 3), leader=2),
            PartitionChangeRecord(partition_id=1, topic_id=topic, isr=(2, 3)),
        ]
    ]
    assert state(quorum, 1) is BrokerControlState.CONTROLLED_SHUTDOWN
    # 2 and 3 last said that they had applied less.
    waiting = beat(quorum.heartbeat(1, want_shutdown=True))
    assert not waiting.should_shut_down and waiting.in_controlled_shutdown
    quorum.heartbeat(2)
    assert not beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down
    quorum.heartbeat(3)
    done = beat(quorum.heartbeat(1, want_shutdown=True))
    assert (done.should_shut_down, done.is_fenced) == (True, True)
    assert quorum.records()[-1] == FenceBrokerRecord(id=1, epoch=epochs[1])
    assert state(quorum, 1) is BrokerControlState.SHUTDOWN
    # Its next process need not wait for the session to end (K12), nor for anything else.
    assert isinstance(quorum.register(1, 2), RegisterBrokerResponse)


def test_a_shutdown_waits_for_the_last_move_and_for_nobody_who_is_fenced() -> None:
    quorum = quorum_of()
    for broker_id in (1, 2, 3):
        quorum.start_broker(broker_id)
    quorum.register(4)
    quorum.create("t", (1, 2, 3))
    quorum.heartbeat(1, want_shutdown=True)
    moved = quorum.leader.end_offset
    quorum.heartbeat(2, applied_offset=moved)
    quorum.heartbeat(3, applied_offset=moved - 1)
    assert not beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down
    quorum.heartbeat(3, applied_offset=moved)
    assert known(quorum, 4).fenced
    assert beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down


def test_a_broker_in_controlled_shutdown_gets_no_replica_in_sync() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    quorum.start_broker(2)
    quorum.create("t", (1, 2))
    quorum.heartbeat(1, want_shutdown=True)
    assert quorum.partition(quorum.create("u", (1, 2))).isr == (2,)


def test_a_broker_that_leads_nothing_shuts_down_at_once() -> None:
    quorum = quorum_of()
    epoch = quorum.start_broker(1)
    answer = beat(quorum.heartbeat(1, want_shutdown=True))
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)
    assert quorum.records()[-1] == FenceBrokerRecord(id=1, epoch=epoch)
    again = quorum.heartbeat(1, want_shutdown=True)  # the answer was lost
    assert beat(again).should_shut_down
    assert quorum.leader.node.sessions.remaining_ms(1, quorum.now_ms) == 0


def test_a_fenced_broker_shuts_down_at_once_and_writes_nothing() -> None:
    quorum = quorum_of()
    quorum.register(1)
    end = quorum.leader.end_offset
    assert beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down
    assert quorum.leader.end_offset == end


def test_a_shutdown_that_a_failover_interrupts_is_taken_up_by_the_next_leader() -> None:
    quorum = quorum_of(slice_max=2)
    for broker_id in (1, 2):
        quorum.start_broker(broker_id)
    quorum.create("t", *[(1, 2)] * 5)
    old = quorum.leader
    quorum.request(quorum.heartbeat_request(1, want_shutdown=True))
    old.step()
    quorum.settle()
    assert known(quorum, 1).in_controlled_shutdown
    assert quorum.image().topics.rows_led_by(1).size == 3
    old.kill()
    quorum.elect()
    assert beat(quorum.heartbeat(1, want_shutdown=True)).in_controlled_shutdown
    for _ in range(10):
        quorum.advance(100)
        quorum.heartbeat(2)
    assert quorum.image().topics.rows_led_by(1).size == 0
    assert beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down


def test_below_3_3_a_shutdown_is_a_fencing() -> None:
    quorum = quorum_of(level=6)
    epoch = quorum.start_broker(1)
    quorum.start_broker(2)
    quorum.create("t", (1, 2))
    assert beat(quorum.heartbeat(1, want_shutdown=True)).is_fenced
    assert quorum.records()[-1] == FenceBrokerRecord(id=1, epoch=epoch)
    assert beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down


def test_a_shutdown_request_from_before_a_bounce_does_not_hurt_the_bounced_broker() -> None:
    quorum = quorum_of()
    first = quorum.start_broker(1, 1)
    quorum.start_broker(2)
    quorum.create("t", (1, 2))
    delayed = quorum.heartbeat_request(1, want_shutdown=True)
    assert delayed.broker_epoch == first
    quorum.beat_for(13_000, 2)
    quorum.start_broker(1, 2)
    assert error(quorum.call(delayed)) is ErrorCode.STALE_BROKER_EPOCH
    assert not known(quorum, 1).fenced and not known(quorum, 1).in_controlled_shutdown


@pytest.mark.parametrize("incarnation", [1, 2], ids=["the same process", "another process"])
def test_a_broker_that_was_let_go_is_let_in_again_when_it_registers(incarnation: int) -> None:
    """No heartbeat takes a controlled shutdown back, it may be an old one; unfenced, the broker would lead
    and join no ISR (KIP-841). A registration does."""
    quorum = quorum_of()
    quorum.start_broker(1, 1)
    topic = quorum.create("t", (1,))
    assert beat(quorum.heartbeat(1, want_shutdown=True)).in_controlled_shutdown
    assert beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down
    for _ in range(3):
        told = beat(quorum.heartbeat(1))
        assert told.is_fenced and not told.in_controlled_shutdown
    assert known(quorum, 1).fenced and quorum.partition(topic, 0).leader == -1
    quorum.start_broker(1, incarnation)
    assert quorum.partition(topic, 0).leader == 1 and known(quorum, 1).is_active


def test_a_broker_that_was_only_said_to_stop_stays_and_leads_on() -> None:
    """Somebody spoke in its name; it registers again while its leaders are still being moved, in slices."""
    quorum = quorum_of(slice_max=2)
    for broker_id in (1, 2):
        quorum.start_broker(broker_id)
    epoch, alone = known(quorum, 1).epoch, quorum.create("alone", (1,))
    quorum.create("t", *[(1, 2)] * 9)
    quorum.request(quorum.heartbeat_request(1, want_shutdown=True))
    quorum.settle()
    assert known(quorum, 1).in_controlled_shutdown
    quorum.register(1, 1)
    quorum.advance(1_000)
    back = known(quorum, 1)
    assert back.is_active and back.epoch == epoch and state(quorum, 1) is BrokerControlState.ACTIVE
    assert quorum.partition(alone).leader == 1
    assert not beat(quorum.heartbeat(1)).is_fenced and known(quorum, 1).is_active


def test_a_second_controlled_shutdown_waits_for_its_own_moves() -> None:
    """What the others had applied when the first one was taken back says nothing about the second."""
    quorum = quorum_of()
    for broker_id in (1, 2):
        quorum.start_broker(broker_id)
    quorum.create("t", (1, 2))
    quorum.heartbeat(1, want_shutdown=True)
    assert not beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down
    quorum.register(1, 1)
    quorum.heartbeat(2)
    quorum.create("u", (1, 2))
    assert not beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down
    assert not beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down
    quorum.heartbeat(2)
    assert beat(quorum.heartbeat(1, want_shutdown=True)).should_shut_down


# ---- bounce


def test_a_bounce_in_controlled_shutdown_is_a_failure_first_and_a_start_after() -> None:
    quorum = quorum_of()
    old_epoch = quorum.start_broker(1, 1)
    quorum.start_broker(2)
    quorum.create("t", (1, 2))
    alone = quorum.create("u", (1,))
    quorum.heartbeat(1, want_shutdown=True)
    start = quorum.leader.end_offset
    answer = quorum.register(1, 2)
    assert isinstance(answer, RegisterBrokerResponse)
    fence, register = quorum.batches(start)
    assert fence[-1] == FenceBrokerRecord(id=1, epoch=old_epoch)
    assert kinds(register) == [BrokerRecord]
    assert answer.broker_epoch == quorum.leader.end_offset - 2
    start = quorum.leader.end_offset
    quorum.heartbeat(1)
    assert quorum.batches(start)[0][0] == UnfenceBrokerRecord(id=1, epoch=answer.broker_epoch)
    assert quorum.partition(alone).leader == 1


def test_a_bounce_whose_failure_takes_several_batches_registers_after_the_last() -> None:
    quorum = quorum_of(slice_max=2)
    quorum.start_broker(1, 1)
    quorum.start_broker(2)
    quorum.create("t", *[(2, 1)] * 7)
    leader = quorum.leader
    leader.end_lease(1)  # the lease is over and its expiry was not looked at yet
    start = leader.end_offset
    key = quorum.request(registration(1, 2))
    repeated = quorum.request(registration(1, 2))
    quorum.settle()
    assert key not in leader.answers
    quorum.advance(200)
    assert kinds(quorum.batches(start)[-1]) == [BrokerRecord]
    assert kinds(quorum.batches(start)[-2])[-1] is FenceBrokerRecord
    first, second = leader.answers[key], leader.answers[repeated]
    assert isinstance(first, RegisterBrokerResponse)
    assert first == second


def test_unregister_takes_the_broker_out_of_everything() -> None:
    quorum = quorum_of()
    epoch = quorum.start_broker(1)
    quorum.start_broker(2)
    topic = quorum.create("t", (1, 2))
    start = quorum.leader.end_offset
    assert quorum.call(UnregisterBrokerRequest(broker_id=1)) == Done()
    assert quorum.batches(start) == [
        [
            PartitionChangeRecord(partition_id=0, topic_id=topic, isr=(2,), leader=2),
            UnregisterBrokerRecord(broker_id=1, broker_epoch=epoch),
        ]
    ]
    assert quorum.image().brokers.get(1) is None
    assert error(quorum.call(UnregisterBrokerRequest(broker_id=1))) is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert error(quorum.heartbeat(1, broker_epoch=epoch)) is ErrorCode.BROKER_ID_NOT_REGISTERED
    quorum.advance(20_000)
    assert isinstance(quorum.register(1, 2), RegisterBrokerResponse)


def test_a_value_that_no_record_can_carry_is_a_bad_request_and_harms_nothing() -> None:
    quorum = quorum_of()
    end = quorum.leader.end_offset
    endpoint = registration(1).endpoints[0]
    bad = type(endpoint)(endpoint.name, endpoint.host, 70_000, 0)
    assert error(quorum.register(1, endpoints=(bad,))) is ErrorCode.INVALID_REQUEST
    assert quorum.leader.end_offset == end
    assert isinstance(quorum.register(1), RegisterBrokerResponse)


def test_a_batch_over_8_mib_is_refused_and_harms_nothing() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    end = quorum.leader.end_offset
    names = [f"{n:05d}" + "x" * 240 for n in range(24_000)]
    answer = quorum.call(CreateTopicsRequest(topics=tuple(NewTopic(name=name) for name in names)))
    assert isinstance(answer, TopicsResponse)
    assert {result.error for result in answer.results} == {ErrorCode.POLICY_VIOLATION}
    assert quorum.leader.end_offset == end
    assert quorum.create("small", (1,))


@pytest.mark.parametrize("applied", [0, -1])
def test_an_offset_from_nowhere_is_just_behind(applied: int) -> None:
    quorum = quorum_of()
    quorum.register(1)
    assert beat(quorum.heartbeat(1, applied_offset=applied)).is_fenced


def test_a_heartbeat_waits_for_the_commit_of_what_it_tells() -> None:
    quorum = quorum_of()
    answer = quorum.register(1)
    assert isinstance(answer, RegisterBrokerResponse)
    leader = quorum.leader
    for machine in quorum.machines.values():
        machine.sync = False
    unfence = quorum.request(quorum.heartbeat_request(1))
    quorum.settle()
    again = quorum.request(
        BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=answer.broker_epoch, applied_offset=leader.end_offset
        )
    )
    quorum.settle()
    assert unfence not in leader.answers and again not in leader.answers
    for machine in quorum.machines.values():
        machine.resume_sync()
    quorum.settle()
    assert not beat(leader.answers[unfence]).is_fenced
    assert not beat(leader.answers[again]).is_fenced


def test_a_fenced_broker_that_leads_in_a_foreign_log_is_taken_out_at_once() -> None:
    """As Kafka 3.7 leaves it when a killed broker registers again within its session."""
    topic = b"topic-id-0000001"
    level = FeatureLevelRecord(name="metadata.version", feature_level=19)
    registered = [
        BrokerRecord(broker_id=n, incarnation_id=bytes([n]) * 16, broker_epoch=0, fenced=n == 1)
        for n in (1, 2)
    ]
    led = [
        PartitionRecord(
            partition_id=index,
            topic_id=topic,
            replicas=replicas,
            isr=replicas,
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=(MIGRATING,) * len(replicas),
        )
        for index, replicas in enumerate([(1, 2), (1,)])
    ]
    first = (level, *registered, TopicRecord(name="t", topic_id=topic), *led)
    config = ControllerConfig(cluster_id=CLUSTER, node_id=0, bootstrap=first)
    quorum = Quorum(config=config)
    quorum.elect()
    quorum.advance(100)
    assert (quorum.partition(topic, 0).leader, quorum.partition(topic, 0).isr) == (2, (2,))
    # The last in-sync replica stays so, leaderless, and leads again when it is let in.
    assert (quorum.partition(topic, 1).leader, quorum.partition(topic, 1).isr) == (-1, (1,))
    assert quorum.leader.node.active is not None and not quorum.leader.node.active.work
    assert not quorum.leader.node.sessions.fencing
