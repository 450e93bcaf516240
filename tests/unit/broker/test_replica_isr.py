"""Who is in sync: what a leader proposes, what it makes of answers, and for whom the high watermark waits."""

from __future__ import annotations

import pytest

from metaquorum.broker.replica.partition.values import Changes, ReadPlan
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import RECOVERED, RECOVERING
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import ACKS_LEADER, FetchedPartition
from metaquorum.metadata.requests.partitions import AlteredPartition, IsrMember, PartitionAlteration
from metaquorum.raft.effects import Warn
from tests.unit.broker.replica_world import KEY, TOPIC, KnownBrokers, Replica, batch, info

LAG_MS = 1_000
CONFIG = ReplicaConfig(
    broker_id=1,
    replica_lag_time_max_ms=LAG_MS,
    controller_request_timeout_ms=100,
    replica_fetch_backoff_ms=50,
)


def leader(
    *,
    isr: tuple[int, ...] = (1, 2, 3),
    brokers: KnownBrokers | None = None,
    records: int = 0,
    settings: TopicSettings | None = None,
) -> Replica:
    replica = Replica(config=CONFIG, brokers=brokers, settings=settings)
    replica.lead(info(isr=isr))
    for _ in range(records):
        replica.send(batch(), ACKS_LEADER)
    replica.settle()
    return replica


def propose(replica: Replica) -> PartitionAlteration | None:
    return replica.partition.isr_change(now_ms=replica.now_ms)


def isr_of(change: PartitionAlteration | None) -> list[int] | None:
    return None if change is None else [member.broker_id for member in change.isr]


def answer(replica: Replica, sent: PartitionAlteration | None, result: AlteredPartition | ApiError) -> None:
    assert sent is not None
    replica.partition.isr_answered(sent, result, now_ms=replica.now_ms)


def accepted(
    isr: tuple[int, ...], partition_epoch: int = 2, *, leader: int = 1, epoch: int = 1
) -> AlteredPartition:
    return AlteredPartition(
        topic_id=TOPIC,
        partition=0,
        error=ErrorCode.NONE,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
        isr=isr,
    )


def refused(code: ErrorCode) -> AlteredPartition:
    return AlteredPartition(topic_id=TOPIC, partition=0, error=code, message="because")


# ---- shrinking ------------------------------------------------------------------------------


def test_a_follower_that_stopped_is_proposed_to_leave() -> None:
    replica = leader(records=1)
    replica.fetch_as(2, 1)
    replica.now_ms = LAG_MS
    assert propose(replica) is None, "a new leader gives everyone the lag's time"
    replica.now_ms += 1
    assert propose(replica) == PartitionAlteration(
        topic_id=TOPIC,
        partition=0,
        leader_epoch=1,
        partition_epoch=1,
        isr=(IsrMember(broker_id=1, broker_epoch=101), IsrMember(broker_id=2, broker_epoch=102)),
        leader_recovery_state=RECOVERED,
    )
    assert propose(replica) is None, "one is in flight"


def test_a_follower_at_the_end_stays_however_long_it_is_silent() -> None:
    replica = leader(records=1)
    for broker_id in (2, 3):
        replica.fetch_as(broker_id, 1)
    replica.now_ms = 100 * LAG_MS
    assert propose(replica) is None
    replica.send(batch(), ACKS_LEADER)
    replica.work()
    assert isr_of(propose(replica)) == [1]


def test_a_follower_always_a_little_behind_a_busy_leader_is_caught_up() -> None:
    replica = leader(isr=(1, 2))
    for turn in range(1, 11):
        replica.send(batch(), ACKS_LEADER)
        replica.settle()
        replica.now_ms += LAG_MS // 2
        replica.fetch_as(2, turn - 1)
        assert propose(replica) is None, "it had all that the leader had at its fetch before"
    replica.now_ms += LAG_MS // 2
    for _ in range(3):
        replica.fetch_as(2, 9)
        replica.now_ms += LAG_MS // 2
    assert isr_of(propose(replica)) == [1]


def test_the_high_watermark_waits_until_the_controller_has_agreed_to_a_shrink() -> None:
    replica = leader(records=0)
    ticket = replica.send(batch())
    replica.settle()
    replica.fetch_as(2, 1)
    replica.now_ms = LAG_MS + 1
    change = propose(replica)
    assert isr_of(change) == [1, 2] and replica.partition.high_watermark == 0 and not ticket.results
    answer(replica, change, accepted((1, 2)))
    assert replica.partition.high_watermark == 1 and ticket.result.base_offset == 0
    assert (replica.partition.isr, replica.partition.partition_epoch) == ((1, 2), 2)
    assert replica.partition.is_under_replicated


@pytest.mark.parametrize(
    ("minimum", "isr", "under", "at"),
    [
        (2, (1, 2, 3), False, False),
        (2, (1, 2), False, True),
        (2, (1,), True, False),
        (9, (1, 2, 3), False, True),
        (9, (1, 2), True, False),
        (1, (1,), False, True),
    ],
)
def test_figures_say_how_near_a_partition_is_to_its_minimum(
    minimum: int, isr: tuple[int, ...], under: bool, at: bool
) -> None:
    replica = leader(isr=isr)
    assert (replica.partition.is_under_min_isr, replica.partition.is_at_min_isr) == (
        len(isr) < 1,
        len(isr) == 1,
    )
    replica.partition.change_settings(TopicSettings(min_insync_replicas=minimum), now_ms=replica.now_ms)
    assert (replica.partition.is_under_min_isr, replica.partition.is_at_min_isr) == (under, at)
    replica.partition.idle(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")
    assert (replica.partition.is_under_min_isr, replica.partition.is_at_min_isr) == (False, False)


# ---- growing --------------------------------------------------------------------------------


def test_a_follower_that_has_caught_up_is_proposed_to_join() -> None:
    replica = leader(isr=(1,), records=3)
    replica.partition.take_changes()
    replica.fetch_as(3, 2)
    assert propose(replica) is None
    replica.fetch_as(3, 3)
    assert replica.partition.take_changes() & Changes.ISR
    change = propose(replica)
    assert change is not None and change.isr == (
        IsrMember(broker_id=1, broker_epoch=101),
        IsrMember(broker_id=3, broker_epoch=103),
    )


def test_the_high_watermark_waits_for_a_proposed_member_at_once() -> None:
    replica = leader(isr=(1,), records=1)
    replica.fetch_as(2, 1)
    change = propose(replica)
    assert isr_of(change) == [1, 2] and replica.partition.isr == (1,)
    ticket = replica.send(batch())
    replica.now_ms = 50 * LAG_MS
    replica.settle()
    assert replica.partition.high_watermark == 1 and not ticket.results
    answer(replica, change, accepted((1, 2)))
    assert not ticket.results
    replica.fetch_as(2, 2)
    assert ticket.result.base_offset == 1


def test_a_proposed_member_counts_for_what_was_appended_before() -> None:
    """As in Kafka, whose leader counts the largest ISR that may be in force."""
    replica = leader(isr=(1, 2), settings=TopicSettings(min_insync_replicas=2))
    ticket = replica.send(batch())
    replica.lead(info(isr=(1,), partition_epoch=2))
    replica.now_ms += 1
    replica.fetch_as(2, 0)
    assert isr_of(propose(replica)) == [1, 2]
    replica.settle()
    replica.fetch_as(2, 1)
    assert ticket.result.error is ErrorCode.NONE


def test_a_proposed_member_does_not_count_before_the_controller_has_agreed() -> None:
    """With eligible leader replicas (KIP-966): else a high watermark would be reached that fewer replicas
    hold than min.insync.replicas says."""
    settings = TopicSettings(min_insync_replicas=2, holds_back_high_watermark=True)
    replica = leader(isr=(1,), records=1, settings=settings)
    replica.fetch_as(2, 1)
    change = propose(replica)
    replica.fetch_as(2, 0)
    replica.fetch_as(2, 1)
    assert isr_of(change) == [1, 2] and replica.partition.high_watermark == 0
    answer(replica, change, accepted((1, 2)))
    assert replica.partition.high_watermark == 1


def test_nobody_joins_before_it_has_reached_the_leader_epochs_start() -> None:
    replica = leader(isr=(1, 2, 3), records=2)
    replica.lead(info(epoch=2, partition_epoch=2, isr=(1, 2)))
    assert replica.partition.high_watermark == 0
    replica.fetch_as(3, 1)
    assert propose(replica) is None, "above the high watermark, and below what the leader began with"
    replica.fetch_as(3, 2)
    assert isr_of(propose(replica)) == [1, 2, 3]


def test_nobody_joins_below_what_the_leader_began_with_and_has_not_written_yet() -> None:
    replica = leader(isr=(1, 2), records=1)
    replica.send(batch(), ACKS_LEADER)
    replica.lead(info(epoch=2, partition_epoch=2, isr=(1, 2)))
    replica.fetch_as(3, 1)
    assert propose(replica) is None


@pytest.mark.parametrize("why", ["barred", "other process", "unregistered", "never fetched"])
def test_who_may_not_join(why: str) -> None:
    brokers = KnownBrokers()
    replica = leader(isr=(1,), brokers=brokers)
    if why != "never fetched":
        replica.fetch_as(2, 0)
    if why == "barred":
        brokers.barred.add(2)
    elif why == "other process":
        brokers.epochs[2] = 999
    elif why == "unregistered":
        brokers.epoch = lambda broker_id: None  # type: ignore[method-assign]
    assert propose(replica) is None


def test_a_follower_that_tells_no_epoch_joins_without_one() -> None:
    replica = leader(isr=(1,))
    replica.fetch_as(2, 0, broker_epoch=-1)
    change = propose(replica)
    assert change is not None and change.isr[1] == IsrMember(broker_id=2, broker_epoch=None)


def test_one_leaves_and_one_joins_in_one_proposal() -> None:
    replica = leader(isr=(1, 2), records=1)
    replica.now_ms = LAG_MS + 1
    replica.fetch_as(3, 1)
    assert isr_of(propose(replica)) == [1, 3]


def test_the_high_watermark_waits_for_one_that_is_about_to_join() -> None:
    replica = leader(isr=(1,), records=1)
    replica.fetch_as(2, 1)
    replica.send(batch(), ACKS_LEADER)
    replica.settle()
    assert replica.partition.high_watermark == 1
    replica.fetch_as(2, 2)
    assert replica.partition.high_watermark == 2
    replica.send(batch(), ACKS_LEADER)
    replica.now_ms += LAG_MS + 1
    replica.settle()
    assert replica.partition.high_watermark == 3, "it stopped: nobody waits for it"


def test_a_member_that_newer_metadata_removed_is_not_waited_for() -> None:
    replica = leader(isr=(1, 2), records=1)
    replica.fetch_as(2, 1)
    ticket = replica.send(batch())
    replica.settle()
    assert not ticket.results
    replica.lead(info(isr=(1,), partition_epoch=2))
    assert ticket.result.base_offset == 1


def test_a_follower_that_is_not_heard_of_because_nothing_happens_is_caught_up() -> None:
    replica = leader(isr=(1, 2), records=1)
    replica.fetch_as(2, 1)
    replica.send(batch(), ACKS_LEADER)
    replica.work()
    replica.now_ms = 5 * LAG_MS
    replica.partition.was_caught_up(2, 5 * LAG_MS - 1)
    assert propose(replica) is None
    replica.now_ms = 6 * LAG_MS
    assert isr_of(propose(replica)) == [1]


def test_what_it_did_before_it_left_counts_no_more() -> None:
    replica = leader(isr=(1, 2), records=1)
    replica.fetch_as(2, 1)
    replica.now_ms = 100
    replica.lead(info(isr=(1,), partition_epoch=2))
    replica.partition.was_caught_up(2, 100)
    assert propose(replica) is None
    replica.send(batch(), ACKS_LEADER)
    replica.settle()
    assert replica.partition.high_watermark == 2, "its directory may have failed: nobody waits for it"
    replica.fetch_as(2, 2)
    assert isr_of(propose(replica)) == [1, 2]


# ---- answers --------------------------------------------------------------------------------


def growing() -> tuple[Replica, PartitionAlteration]:
    replica = leader(isr=(1,), records=1)
    replica.fetch_as(2, 1)
    change = propose(replica)
    assert change is not None
    return replica, change


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
    ],
)
def test_a_refusal_that_newer_metadata_explains_keeps_the_proposal_until_it_comes(code: ErrorCode) -> None:
    replica, change = growing()
    answer(replica, change, refused(code))
    (warning,) = [each for each in replica.take() if isinstance(each, Warn)]
    assert code.name in warning.message and "[1, 2]" in warning.message
    replica.now_ms = 10 * LAG_MS
    replica.send(batch(), ACKS_LEADER)
    replica.settle()
    assert propose(replica) is None
    assert replica.partition.high_watermark == 1, "it may have been applied: its members count"
    replica.lead(info(isr=(1,), partition_epoch=2))
    assert replica.partition.high_watermark == 2


def test_an_ineligible_member_is_given_up_and_tried_again_later() -> None:
    replica, change = growing()
    answer(replica, change, refused(ErrorCode.INELIGIBLE_REPLICA))
    assert propose(replica) is None
    replica.now_ms += CONFIG.replica_fetch_backoff_ms
    assert propose(replica) is None, "it must show first that it is in sync still"
    replica.fetch_as(2, 1)
    assert propose(replica) == change


def test_nobody_waits_for_one_that_may_not_join() -> None:
    """Its directory was lost, and a fetch that was parked before that made it look in sync."""
    replica, change = growing()
    ticket = replica.send(batch())
    replica.settle()
    assert not ticket.results
    answer(replica, change, refused(ErrorCode.INELIGIBLE_REPLICA))
    assert replica.partition.high_watermark == 2
    assert ticket.result.base_offset == 1


def test_what_was_not_attempted_is_proposed_again() -> None:
    replica, change = growing()
    answer(replica, change, refused(ErrorCode.OPERATION_NOT_ATTEMPTED))
    assert replica.partition.take_changes() & Changes.ISR
    assert propose(replica) == change


@pytest.mark.parametrize(
    "unknown",
    [ApiError(ErrorCode.NETWORK_EXCEPTION, "no answer"), refused(ErrorCode.NOT_CONTROLLER)],
    ids=["no answer", "not the controller"],
)
def test_an_unknown_outcome_repeats_the_same_proposal(unknown: AlteredPartition | ApiError) -> None:
    replica, change = growing()
    replica.partition.take_changes()
    answer(replica, change, unknown)
    assert not replica.partition.take_changes() & Changes.ISR, "the manager waits before it asks again"
    replica.now_ms = 10 * LAG_MS
    replica.send(batch(), ACKS_LEADER)
    replica.settle()
    assert replica.partition.high_watermark == 1
    assert propose(replica) == change
    assert propose(replica) is None
    answer(replica, change, accepted((1, 2)))
    assert replica.partition.isr == (1, 2)


def test_after_a_repeated_proposal_a_refusal_does_not_make_the_first_copy_harmless() -> None:
    replica, change = growing()
    answer(replica, change, ApiError(ErrorCode.NETWORK_EXCEPTION, "no answer"))
    assert propose(replica) == change
    replica.brokers.barred.add(2)
    answer(replica, change, refused(ErrorCode.INELIGIBLE_REPLICA))
    replica.send(batch(), ACKS_LEADER)
    replica.settle()
    assert replica.partition.high_watermark == 1, "the first copy may still reach the controller"
    deadline = replica.partition.next_deadline_ms()
    assert deadline == 2 * CONFIG.controller_request_timeout_ms
    replica.partition.tick(now_ms=deadline)
    assert replica.partition.high_watermark == 2
    assert replica.partition.next_deadline_ms() is None


def test_answers_to_older_proposals_are_nobodys() -> None:
    replica, change = growing()
    replica.lead(info(isr=(1,), partition_epoch=2))
    newer = propose(replica)
    assert newer is not None and newer != change
    answer(replica, change, refused(ErrorCode.INELIGIBLE_REPLICA))
    assert propose(replica) is None, "the newer one is still in flight"
    answer(replica, newer, accepted((1, 2), 3))
    assert replica.partition.isr == (1, 2)


@pytest.mark.parametrize(
    "stale",
    [accepted((1, 2), 2, epoch=2), accepted((1, 2), 0), accepted((1, 2), 2, leader=2)],
    ids=["other leader epoch", "older partition epoch", "other leader"],
)
def test_a_success_that_is_not_of_this_state_waits_for_metadata(stale: AlteredPartition) -> None:
    replica, change = growing()
    answer(replica, change, stale)
    assert (replica.partition.isr, replica.partition.partition_epoch) == ((1,), 1)
    assert propose(replica) is None


def test_an_image_older_than_the_answer_changes_nothing() -> None:
    replica, change = growing()
    answer(replica, change, accepted((1, 2), 3))
    replica.lead(info(isr=(1,), partition_epoch=2))
    assert replica.partition.isr == (1, 2)
    replica.lead(info(isr=(1, 2), partition_epoch=3))
    assert propose(replica) is None


def test_the_same_metadata_again_keeps_a_proposal() -> None:
    replica, _ = growing()
    replica.lead(info(isr=(1,), partition_epoch=1))
    assert propose(replica) is None


# ---- leader recovery ------------------------------------------------------------------------


def test_a_leader_of_an_unclean_election_says_that_it_has_recovered() -> None:
    replica = Replica(config=CONFIG)
    replica.lead(info(isr=(1,), recovery=RECOVERING))
    assert replica.partition.take_changes() & Changes.ISR
    change = propose(replica)
    assert change is not None and isr_of(change) == [1] and change.leader_recovery_state == RECOVERED
    answer(replica, change, accepted((1,)))
    assert propose(replica) is None


# ---- who fetches ----------------------------------------------------------------------------


def test_fetches_of_an_earlier_process_are_not_counted() -> None:
    replica = leader(records=1)
    old = replica.fetch_as(2, 1, broker_epoch=101)
    assert isinstance(old, FetchedPartition) and old.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    newer = replica.fetch_as(2, 0, broker_epoch=200)
    assert isinstance(newer, ReadPlan), "this leader's metadata may lag"
    late = replica.fetch_as(2, 1, broker_epoch=102)
    assert isinstance(late, FetchedPartition) and late.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    replica.fetch_as(3, 1)
    assert replica.partition.high_watermark == 0


def test_a_stranger_is_told_that_it_may_be_early() -> None:
    replica = leader()
    part = replica.fetch_as(9, 0)
    assert isinstance(part, FetchedPartition) and part.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    replica.lead(info(replicas=(1, 2, 3, 9), partition_epoch=2))
    assert isinstance(replica.fetch_as(9, 0), ReadPlan)


def test_what_a_follower_acknowledges_may_fall_and_the_high_watermark_does_not() -> None:
    replica = leader(records=3)
    for broker_id in (2, 3):
        replica.fetch_as(broker_id, 3)
    assert replica.partition.high_watermark == 3
    replica.fetch_as(2, 1)
    assert replica.partition.high_watermark == 3
    ticket = replica.send(batch())
    replica.settle()
    replica.fetch_as(3, 4)
    assert not ticket.results
    replica.fetch_as(2, 4)
    assert ticket.result.base_offset == 3
    assert replica.partition.key == KEY
