"""Random partitions, brokers and directories: whatever is requested, changes replay and laws of S4 hold."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.controller.partitions.alter_partition import decide_alter_partition
from metaquorum.controller.partitions.elections import decide_elections
from metaquorum.controller.partitions.log_dirs import decide_assign_replicas
from metaquorum.controller.partitions.partitions import (
    election_slice,
    failed_directories_slice,
    preferred_slice,
    removal_slice,
)
from metaquorum.controller.partitions.placement import UsableBroker, place
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.metadata.image import LOST, RECOVERING, UNASSIGNED, MetadataImage, PartitionInfo
from metaquorum.metadata.invariants import ERROR, check_image
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.records.types import (
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    ElectLeadersRequest,
    IsrMember,
    PartitionAlteration,
    ReplicaAssignment,
)

TOPIC = b"topic-id-0000001"
BROKERS = (1, 2, 3, 4)
PARTITIONS = 5


def home(broker_id: int, which: int) -> bytes:
    return b"directory" + bytes([broker_id, which]) * 2 + bytes(3)


def directories(broker_id: int) -> list[bytes]:
    return [home(broker_id, 0), home(broker_id, 1), home(broker_id, 9), UNASSIGNED, LOST]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Record], bool, bool]:
    """Records of a cluster whose partitions may be in any state that a log can hold: with or without a
    leader, with dead brokers and directories in the ISR."""
    elr, unclean = draw(st.booleans()), draw(st.booleans())
    level = 23 if elr else draw(st.sampled_from([11, 19]))
    records: list[Record] = [FeatureLevelRecord(name="metadata.version", feature_level=level)]
    if elr:
        records.append(FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1))
    for broker_id in BROKERS:
        records.append(
            BrokerRecord(
                broker_id=broker_id,
                incarnation_id=bytes([broker_id]) * 16,
                broker_epoch=10,
                fenced=draw(st.booleans()),
                in_controlled_shutdown=draw(st.sampled_from([False, False, True])),
                log_dirs=(home(broker_id, 0), home(broker_id, 1)) if level >= 17 else (),
            )
        )
    records.append(TopicRecord(name="t", topic_id=TOPIC))
    for name, value in (
        ("unclean.leader.election.enable", str(unclean).lower()),
        ("min.insync.replicas", "2"),
    ):
        records.append(ConfigRecord(resource_type=2, resource_name="t", name=name, value=value))
    for index in range(PARTITIONS):
        replicas = draw(st.permutations(BROKERS))[: draw(st.integers(1, 4))]
        isr = replicas[: draw(st.integers(1, len(replicas)))]
        leads = draw(st.booleans())
        records.append(
            PartitionRecord(
                partition_id=index,
                topic_id=TOPIC,
                replicas=tuple(replicas),
                isr=tuple(draw(st.permutations(isr))),
                leader=draw(st.sampled_from(isr)) if leads else -1,
                leader_epoch=3,
                partition_epoch=7,
                directories=tuple(draw(st.sampled_from(directories(each))) for each in replicas),
            )
        )
    return records, elr, unclean


steps = st.lists(
    st.one_of(
        st.tuples(st.just("remove"), st.sampled_from(BROKERS)),
        st.tuples(st.just("drop"), st.sampled_from(BROKERS)),
        st.tuples(st.just("return"), st.sampled_from(BROKERS)),
        st.tuples(st.just("elect all"), st.just(0)),
        st.tuples(st.just("balance"), st.just(0)),
        st.tuples(st.just("fail"), st.sampled_from(BROKERS)),
        st.tuples(st.just("alter"), st.integers(0, PARTITIONS - 1), st.sets(st.sampled_from(BROKERS))),
        st.tuples(
            st.just("assign"), st.sampled_from(BROKERS), st.integers(0, PARTITIONS - 1), st.integers(0, 4)
        ),
        st.tuples(st.just("elect"), st.integers(0, PARTITIONS - 1), st.booleans()),
    ),
    max_size=8,
)


def decided(image: MetadataImage, step: tuple[object, ...]) -> tuple[Record, ...]:
    rules = rules_of(image, image.brokers.is_active)
    match step:
        case ("remove", int(broker_id)):
            return tuple(removal_slice(image, broker_id, rules, 100).records)
        case ("drop", int(broker_id)):
            return tuple(removal_slice(image, broker_id, rules, 100, unclean=True).records)
        case ("return", int(broker_id)):
            return tuple(election_slice(image, broker_id, rules, 100).records)
        case ("elect all", _):
            return tuple(election_slice(image, None, rules, 100).records)
        case ("balance", _):
            return tuple(preferred_slice(image, rules, 100).records)
        case ("fail", int(broker_id)):
            if len(image.brokers[broker_id].directories) < 2:
                return ()
            dead, left = image.brokers[broker_id].directories[:1], image.brokers[broker_id].directories[1:]
            final = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=10, log_dirs=left)
            return tuple(failed_directories_slice(image, broker_id, dead, rules, 100, final=final).records)
        case ("alter", int(index), set() as isr):
            return _alter(image, index, isr)
        case ("assign", int(broker_id), int(index), int(which)):
            request = AssignReplicasToDirsRequest(
                broker_id=broker_id,
                broker_epoch=10,
                assignments=(
                    ReplicaAssignment(
                        directory_id=directories(broker_id)[which], topic_id=TOPIC, partition=index
                    ),
                ),
            )
            return decide_assign_replicas(image, request, rules, records_max=100).records
        case ("elect", int(index), bool(unclean)):
            wanted = ElectLeadersRequest(unclean=unclean, partitions=(("t", index),))
            return decide_elections(image, wanted, rules, records_max=100).records
    raise AssertionError(step)


def _alter(image: MetadataImage, index: int, isr: set[int]) -> tuple[Record, ...]:
    found = image.topics.partition(TOPIC, index)
    assert found is not None
    wanted = PartitionAlteration(
        topic_id=TOPIC,
        partition=index,
        leader_epoch=found.leader_epoch,
        partition_epoch=found.partition_epoch,
        isr=tuple(IsrMember(broker_id=each, broker_epoch=10) for each in sorted(isr)),
    )
    request = AlterPartitionRequest(broker_id=max(found.leader, 1), broker_epoch=10, partitions=(wanted,))
    return decide_alter_partition(image, request, rules_of(image, image.brokers.is_active)).records


def check_step(
    before: MetadataImage, after: MetadataImage, step: tuple[object, ...], elr: bool, unclean: bool
) -> None:
    assert [str(each) for each in check_image(after) if each.severity == ERROR] == []
    for old, new in zip(before.topics.partitions_of(TOPIC), after.topics.partitions_of(TOPIC), strict=True):
        assert new.leader_epoch >= old.leader_epoch and new.partition_epoch >= old.partition_epoch
        assert (new != old) == (new.partition_epoch > old.partition_epoch)
        assert set(new.isr) <= set(new.replicas) and set(new.elr) <= set(new.replicas)
        assert not set(new.elr) & set(new.isr)
        assert new.isr or (elr and new.leader == -1)
        if new.leader != old.leader:
            assert new.leader_epoch > old.leader_epoch
            assert new.leader == -1 or may_be_led(after, new)
            if new.leader not in {-1, *old.isr, *old.elr, *old.last_known_elr}:
                asked = step[0] == "elect" and step[2] is True
                assert unclean or asked
                assert new.leader_recovery_state == RECOVERING and new.isr == (new.leader,)


def may_be_led(image: MetadataImage, partition: PartitionInfo) -> bool:
    """The leader is alive, in a directory that works, and in sync."""
    leader = partition.leader
    directory = partition.directory_of(leader)
    return (
        leader in partition.isr
        and image.brokers.is_active(leader)
        and directory is not None
        and directory_online(image.brokers, leader, directory)
    )


@settings(max_examples=120, deadline=None)
@given(clusters(), steps)
def test_whatever_happens_to_a_partition_the_laws_hold(
    drawn: tuple[list[Record], bool, bool], script: list[tuple[object, ...]]
) -> None:
    records, elr, unclean = drawn
    state = replay_records(
        ReplayState(MetadataImage()), base_offset=0, epoch=1, timestamp_ms=0, records=records
    )
    for step in script:
        before = state.image
        changes = decided(before, step)
        if not changes:
            continue
        state = replay_records(
            state,
            base_offset=before.provenance.offset,
            epoch=1,
            timestamp_ms=0,
            records=list(changes),
        )
        check_step(before, state.image, step, elr, unclean)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(0, 2**32),
)
def test_placement_is_always_distinct_led_by_the_living_and_repeatable(
    brokers: list[tuple[str | None, bool]], factor: int, seed: int
) -> None:
    candidates = [UsableBroker(n, rack, fenced) for n, (rack, fenced) in enumerate(brokers)]
    living = {each.broker_id for each in candidates if not each.fenced}
    if not living or factor > len(candidates):
        return
    lists = place(candidates, 30, factor, Random(seed))
    assert lists == place(candidates, 30, factor, Random(seed))
    racks = {rack for rack, _ in brokers}
    for replicas in lists:
        assert len(set(replicas)) == factor and replicas[0] in living
        assert len({brokers[each][0] for each in replicas}) == min(factor, len(racks))
