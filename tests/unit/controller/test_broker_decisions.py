"""Registration and the records that brokers' comings and goings cause, as exact lists."""

from __future__ import annotations

import msgspec
import pytest

from metaquorum.controller.brokers.brokers import decide_registration, is_caught_up, must_fence_first
from metaquorum.controller.features import unsupported_feature
from metaquorum.controller.partitions.partitions import election_slice, removal_slice
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.controller.result import ControllerResult, epoch_refusal
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
    UnfenceBrokerRecord,
)
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest, RegisterBrokerResponse
from tests.unit.controller.node_quorum import CLUSTER, image_of, registration

TOPIC = b"topic-id-0000001"


def broker(
    broker_id: int, *, fenced: bool = False, shutting_down: bool = False, epoch: int = 10
) -> BrokerRecord:
    request = registration(broker_id)
    return BrokerRecord(
        broker_id=broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=request.endpoints,
        features=request.features,
        fenced=fenced,
        in_controlled_shutdown=shutting_down,
        log_dirs=request.directories,
    )


def partition(index: int, replicas: tuple[int, ...], isr: tuple[int, ...], leader: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=TOPIC,
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        directories=(b"\0" * 15 + b"\1",) * len(replicas),
    )


def register(
    image: MetadataImage,
    request: object,
    remaining_ms: int = 0,
    offset: int = 100,
    kraft_version: int = 0,
) -> ControllerResult:
    return decide_registration(
        image,
        request,
        cluster_id=CLUSTER,
        next_offset=offset,
        session_remaining_ms=remaining_ms,
        session_timeout_ms=9_000,
        kraft_version=kraft_version,
    )


# ---- registration


def test_a_new_broker_gets_the_offset_of_its_record_as_epoch_and_starts_fenced() -> None:
    request = registration(1, rack="r1", directories=(b"b" * 16, b"a" * 16))
    result = register(image_of(), request, offset=42)
    assert result.response == RegisterBrokerResponse(broker_epoch=42, session_timeout_ms=9_000)
    assert result.records == (
        BrokerRecord(
            broker_id=1,
            incarnation_id=b"\1" * 16,
            broker_epoch=42,
            end_points=(BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9001, 0),),
            features=(BrokerFeature("metadata.version", 1, 25),),
            rack="r1",
            fenced=True,
            log_dirs=(b"a" * 16, b"b" * 16),
        ),
    )


@pytest.mark.parametrize("fenced", [True, False])
def test_a_new_incarnation_gets_a_new_epoch_and_is_fenced_again(fenced: bool) -> None:
    image = image_of(broker(1, epoch=10, fenced=fenced))
    result = register(image, registration(1, 2), offset=50)
    record = result.records[0]
    assert isinstance(record, BrokerRecord)
    assert (record.broker_epoch, record.fenced, record.incarnation_id) == (50, True, b"\2" * 16)


def test_the_same_incarnation_repeated_writes_nothing_and_keeps_its_epoch() -> None:
    result = register(image_of(broker(1, epoch=10)), registration(1), remaining_ms=5_000, offset=50)
    assert result.records == ()
    assert result.response == RegisterBrokerResponse(broker_epoch=10, session_timeout_ms=9_000)
    assert result.depends_on_broker == 1


@pytest.mark.parametrize(("fenced", "shutting_down"), [(False, False), (True, False), (False, True)])
def test_the_same_incarnation_amends_keeps_its_epoch_and_leaves_no_more(
    fenced: bool, shutting_down: bool
) -> None:
    image = image_of(broker(1, epoch=10, fenced=fenced, shutting_down=shutting_down))
    result = register(image, registration(1, directories=(b"x" * 16,)), remaining_ms=5_000, offset=50)
    record = result.records[0]
    assert isinstance(record, BrokerRecord)
    assert (record.broker_epoch, record.log_dirs) == (10, (b"x" * 16,))
    assert (record.fenced, record.in_controlled_shutdown) == (fenced, False)


def test_a_registration_alone_takes_a_controlled_shutdown_back() -> None:
    """Nothing else of it differs from what the log has."""
    image = image_of(broker(1, epoch=10, shutting_down=True))
    result = register(image, registration(1), remaining_ms=5_000, offset=50)
    assert [
        (r.broker_epoch, r.in_controlled_shutdown) for r in result.records if isinstance(r, BrokerRecord)
    ] == [(10, False)]


RESERVED = [bytes(16), bytes(15) + b"\1", bytes(15) + b"\2", bytes(15) + b"\x63"]


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (registration(1, cluster_id="another"), ErrorCode.INCONSISTENT_CLUSTER_ID, "cluster another"),
        (registration(1, directories=()), ErrorCode.INVALID_REGISTRATION, "no log directory"),
        *[
            (registration(1, directories=(reserved,)), ErrorCode.INVALID_REGISTRATION, "reserved")
            for reserved in RESERVED
        ],
        (registration(1, directories=(b"a" * 16,) * 2), ErrorCode.INVALID_REGISTRATION, "named twice"),
        (
            registration(1, directories=registration(2).directories),
            ErrorCode.INVALID_REGISTRATION,
            "belongs to broker 2",
        ),
        (registration(1, incarnation_id=bytes(16)), ErrorCode.INVALID_REGISTRATION, "incarnation"),
        (registration(1, endpoints=()), ErrorCode.INVALID_REGISTRATION, "listener"),
        (
            registration(1, endpoints=(BrokerEndpoint("A", "a", 1, 4),)),
            ErrorCode.INVALID_REGISTRATION,
            "security protocol 4",
        ),
        (
            registration(1, features=(BrokerFeature("metadata.version", 1, 18),)),
            ErrorCode.UNSUPPORTED_VERSION,
            "supports 1 to 18",
        ),
        (
            registration(1, features=(BrokerFeature("metadata.version", 20, 25),)),
            ErrorCode.UNSUPPORTED_VERSION,
            "supports 20 to 25",
        ),
        (registration(1, features=()), ErrorCode.UNSUPPORTED_VERSION, "does not support metadata.version"),
    ],
)
def test_refusals(request_: object, code: ErrorCode, text: str) -> None:
    result = register(image_of(broker(2)), request_)
    assert isinstance(result.response, ApiError)
    assert result.response.code is code
    assert text in result.response.message
    assert result.records == ()


@pytest.mark.parametrize("remaining_ms", [4_321, 1])
def test_a_live_session_of_another_incarnation_refuses_with_the_time_it_still_runs(remaining_ms: int) -> None:
    result = register(image_of(broker(1)), registration(1, 2), remaining_ms=remaining_ms)
    assert isinstance(result.response, ApiError)
    assert result.response.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert f"{remaining_ms} ms" in result.response.message
    assert result.records == ()


def test_a_directory_id_that_is_not_reserved_is_taken() -> None:
    assert register(image_of(), registration(1, directories=(bytes(15) + b"\x64",))).records


def test_every_finalized_feature_is_asked_for() -> None:
    image = image_of(FeatureLevelRecord(name="group.version", feature_level=1))
    features = (BrokerFeature("metadata.version", 1, 25),)
    assert "group.version" in (unsupported_feature(image.features, features) or "")
    both = (*features, BrokerFeature("group.version", 0, 1))
    assert unsupported_feature(image.features, both) is None


def test_a_recorded_level_of_kraft_version_is_not_asked_for() -> None:
    """A leader of Apache Kafka 3.9 records it, and the quorum stays where it is."""
    image = image_of(FeatureLevelRecord(name="kraft.version", feature_level=1))
    features = (BrokerFeature("metadata.version", 1, 25),)
    assert unsupported_feature(image.features, features) is None
    assert "kraft.version" in (unsupported_feature(image.features, features, kraft_version=1) or "")


@pytest.mark.parametrize(
    ("named", "kraft_version", "text"),
    [
        ([], 0, None),
        ([], 1, "the cluster is at kraft.version level 1, but this broker does not support kraft.version"),
        ([("kraft.version", 0, 0)], 1, "kraft.version level 1, but this broker supports 0 to 0"),
        ([("kraft.version", 0, 1)], 1, None),
        ([("kraft.version", 1, 1)], 0, "kraft.version level 0, but this broker supports 1 to 1"),
        ([("group.version", 1, 1)], 0, "group.version level 0, but this broker supports 1 to 1"),
    ],
)
def test_the_quorums_level_and_features_that_are_off_are_asked_for_too(
    named: list[tuple[str, int, int]], kraft_version: int, text: str | None
) -> None:
    """As Kafka's controller does: a broker of 3.7 knows no kraft.version."""
    features = (BrokerFeature("metadata.version", 1, 25), *[BrokerFeature(*each) for each in named])
    result = register(image_of(), registration(1, features=features), kraft_version=kraft_version)
    if text is None:
        assert isinstance(result.response, RegisterBrokerResponse)
        return
    assert isinstance(result.response, ApiError)
    assert result.response.code is ErrorCode.UNSUPPORTED_VERSION
    assert text in result.response.message
    assert result.records == ()


@pytest.mark.parametrize(
    ("record", "incarnation", "must"),
    [
        (broker(1), 1, False),
        (broker(1), 2, True),
        (broker(1, shutting_down=True), 2, True),
        (broker(1, fenced=True), 2, False),
        (broker(2), 2, False),
    ],
)
def test_an_unfenced_earlier_incarnation_is_fenced_first(
    record: BrokerRecord, incarnation: int, must: bool
) -> None:
    assert must_fence_first(image_of(record), registration(1, incarnation)) is must


@pytest.mark.parametrize(("fenced", "left", "must"), [(False, 1, True), (False, 3, False), (True, 1, False)])
def test_the_same_incarnation_with_a_directory_less_is_fenced_first(
    fenced: bool, left: int, must: bool
) -> None:
    """Its record alone would leave leaders in a directory that is not there any more."""
    directories = (b"a" * 16, b"b" * 16, b"c" * 16)
    registered = msgspec.structs.replace(broker(1, fenced=fenced), log_dirs=directories[:2])
    request = registration(1, directories=directories[:left])
    assert must_fence_first(image_of(registered), request) is must


# ---- epochs


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(9, ErrorCode.STALE_BROKER_EPOCH), (10, None), (11, ErrorCode.NOT_CONTROLLER)],
)
def test_only_the_registered_epoch_is_listened_to(epoch: int, code: ErrorCode | None) -> None:
    refusal = epoch_refusal(image_of(broker(1, epoch=10)).brokers, 1, epoch)
    assert (None if refusal is None else refusal.code) is code


def test_an_unknown_broker_is_told_to_register_and_a_later_epoch_to_retry() -> None:
    refusal = epoch_refusal(image_of().brokers, 1, 5)
    assert refusal is not None and refusal.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    later = epoch_refusal(image_of(broker(1, epoch=10)).brokers, 1, 11)
    assert later is not None and later.retriable


def test_caught_up_means_that_its_own_registration_is_applied() -> None:
    image = image_of(broker(1, epoch=1))  # its record has offset 1
    for applied, expected in ((1, False), (2, True)):
        beat = BrokerHeartbeatRequest(broker_id=1, broker_epoch=1, applied_offset=applied)
        assert is_caught_up(image.brokers, beat) is expected


# ---- death and return


def cluster(*partitions: PartitionRecord, level: int = 19) -> MetadataImage:
    return image_of(
        broker(1), broker(2), broker(3), TopicRecord(name="t", topic_id=TOPIC), *partitions, level=level
    )


def change(
    index: int, isr: tuple[int, ...] | None = None, leader: int | None = None
) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=index, topic_id=TOPIC, isr=isr, leader=leader)


FENCE_1 = FenceBrokerRecord(id=1, epoch=10)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (partition(0, (1, 2, 3), (1, 2, 3), 1), change(0, (2, 3), 2)),  # leader dies: the next in order
        (partition(0, (1, 2, 3), (1, 3), 1), change(0, (3,), 3)),  # only the ISR may lead
        (partition(0, (2, 1, 3), (2, 1, 3), 2), change(0, (2, 3))),  # a follower dies: the leader stays
        (partition(0, (1, 2), (1,), 1), change(0, None, -1)),  # the last one: ISR kept, no leader (S4.5)
        (partition(0, (1,), (1,), -1), None),  # leaderless already
        (partition(0, (2, 3), (2, 3), 2), None),  # not concerned
        (partition(0, (1, 2, 3), (2, 3), 2), None),  # not in sync
    ],
)
def test_what_a_death_does_to_a_partition(
    before: PartitionRecord, expected: PartitionChangeRecord | None
) -> None:
    image = cluster(before)
    batch = removal_slice(image, 1, rules_of(image, image.brokers.is_active), 100, final=FENCE_1)
    assert batch.records == ((FENCE_1,) if expected is None else (expected, FENCE_1))
    assert batch.done


def test_a_leader_that_may_not_lead_is_replaced_with_the_dead_one() -> None:
    image = cluster(partition(0, (1, 2, 3), (1, 2, 3), 1))
    batch = removal_slice(image, 1, rules_of(image, lambda broker_id: broker_id == 3), 100, final=FENCE_1)
    assert batch.records == (change(0, (2, 3), 3), FENCE_1)
    nobody = removal_slice(image, 1, rules_of(image, lambda broker_id: False), 100, final=FENCE_1)
    assert nobody.records == (change(0, (2, 3), -1), FENCE_1)


def test_below_3_6_a_smaller_isr_takes_a_new_leader_epoch() -> None:
    image = cluster(partition(0, (2, 1), (2, 1), 2), level=11)
    assert removal_slice(image, 1, rules_of(image, image.brokers.is_active), 100).records == (
        change(0, (2,), 2),
    )


def test_slices_are_bounded_and_the_fence_is_in_the_last() -> None:
    image = cluster(*[partition(index, (1, 2), (1, 2), 1) for index in range(5)])
    first = removal_slice(image, 1, rules_of(image, image.brokers.is_active), 2, final=FENCE_1)
    assert first.records == (change(0, (2,), 2), change(1, (2,), 2))
    assert not first.done
    exact = removal_slice(image, 1, rules_of(image, image.brokers.is_active), 5, final=FENCE_1)
    assert exact.done and exact.records[-1] == FENCE_1 and len(exact.records) == 6


def test_a_return_unfences_first_and_gives_leaders_where_it_is_in_sync() -> None:
    image = image_of(
        broker(1, fenced=True),
        broker(2),
        TopicRecord(name="t", topic_id=TOPIC),
        partition(0, (1, 2), (1,), -1),
        partition(1, (2, 1), (2,), 2),
        partition(2, (1, 2), (2,), -1),
    )
    unfence = UnfenceBrokerRecord(id=1, epoch=10)
    batch = election_slice(image, 1, rules_of(image, lambda broker_id: True), 100, first=unfence)
    # Partition 2 has a replica there too: its in-sync one is live, so it gets its leader back as well.
    assert batch.records == (unfence, change(0, None, 1), change(2, None, 2))
    everywhere = election_slice(image, None, rules_of(image, lambda broker_id: broker_id == 2), 100)
    assert everywhere.records == (change(2, None, 2),)
