"""Eligible leader replicas (KIP-966): switched on and off, kept, lost and led from; decisions and nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from metaquorum.controller.active.outcome import ForgetEligible
from metaquorum.controller.active.steps import first_records
from metaquorum.controller.brokers.brokers import must_drop_first, own_registration
from metaquorum.controller.partitions.log_dirs import decide_assign_replicas
from metaquorum.controller.partitions.partition_change import Target, build_change
from metaquorum.controller.partitions.partitions import removal_slice
from metaquorum.controller.partitions.rules import NOTHING_IN_FILES, MinIsrInFiles, elr_enabled, rules_of
from metaquorum.controller.settings.feature_levels import decide_update_features
from metaquorum.controller.settings.settings import decide_alter_configs
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import ELR_VERSION, KNOWN_FEATURES, KRAFT_VERSION, METADATA_VERSION
from metaquorum.metadata.image import (
    RECOVERED,
    RECOVERING,
    UNASSIGNED,
    ConfigResource,
    MetadataImage,
    PartitionInfo,
)
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import (
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    TopicRecord,
)
from metaquorum.metadata.requests.common import Done, RegisterBrokerResponse, UnregisterBrokerRequest
from metaquorum.metadata.requests.partitions import AssignReplicasToDirsRequest, ReplicaAssignment
from metaquorum.metadata.requests.settings import (
    AlterConfigsRequest,
    ConfigChange,
    ConfigOp,
    FeatureUpdate,
    LevelChange,
    OpKind,
    SettingsResponse,
    UpdateFeaturesRequest,
)
from tests.unit.controller.node_quorum import CLUSTER, Quorum, image_of, registration
from tests.unit.controller.test_broker_decisions import TOPIC, broker, partition

NAME = "eligible.leader.replicas.version"
ON = FeatureLevelRecord(name=NAME, feature_level=1)
MIN_ISR = "min.insync.replicas"
TWO = ConfigRecord(resource_type=2, resource_name="t", name=MIN_ISR, value="2")
FEATURES = (BrokerFeature("metadata.version", 1, 25), BrokerFeature(NAME, 0, 1))
CONFIG = ControllerConfig(cluster_id=CLUSTER, node_id=0)
DEFAULT, BROKER_1 = ConfigResource(4, ""), ConfigResource(4, "1")


def change(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(**{"partition_id": 0, "topic_id": TOPIC, **fields})


def image(*records: object, level: int = 23, fenced: tuple[int, ...] = ()) -> MetadataImage:
    """Brokers 1 to 3 and the topic `t`; what else there is follows."""
    brokers = [replace_features(broker(n, fenced=n in fenced)) for n in (1, 2, 3)]
    return image_of(*brokers, TopicRecord(name="t", topic_id=TOPIC), *records, level=level)


def replace_features(record: object) -> object:
    import msgspec

    return msgspec.structs.replace(record, features=FEATURES)


def one(found: MetadataImage) -> PartitionInfo:
    partition_0 = found.topics.partition(TOPIC, 0)
    assert partition_0 is not None
    return partition_0


# ---- the feature level


def update(level: int, change: LevelChange = LevelChange.UPGRADE, name: str = NAME) -> FeatureUpdate:
    return FeatureUpdate(name=name, level=level, change=change)


def decide(found: MetadataImage, *updates: FeatureUpdate, files: MinIsrInFiles = NOTHING_IN_FILES):
    request = UpdateFeaturesRequest(updates=updates)
    result = decide_update_features(found, request, node_id=0, voters=frozenset([0]), min_isr=files)
    assert isinstance(result.response, SettingsResponse)
    return list(result.records), [each.message for each in result.response.results]


def test_it_needs_a_metadata_version_that_carries_the_records() -> None:
    records, messages = decide(image(level=22), update(1))
    assert records == []
    assert messages == [f"{NAME} cannot become 1: it needs metadata.version 4.0-IV1: upgrade that first"]
    both, messages = decide(image(level=22), update(1), update(23, name="metadata.version"))
    assert messages == [None, None]
    assert [(each.name, each.feature_level) for each in both if isinstance(each, FeatureLevelRecord)] == [
        (NAME, 1),
        ("metadata.version", 23),
    ]


def test_metadata_version_does_not_fall_below_what_it_needs() -> None:
    lower = update(22, LevelChange.SAFE_DOWNGRADE, "metadata.version")
    _, messages = decide(image(ON), lower)
    assert messages[0] is not None  # the level itself carries what the lower one cannot
    _, messages = decide(image(level=22), update(1), lower)
    assert messages == [
        f"{NAME} cannot become 1: it needs metadata.version 4.0-IV1: upgrade that first",
        f"metadata.version cannot become 4.0-IV0: {NAME} 1 needs 4.0-IV1: downgrade {NAME} first",
    ]


def test_every_broker_has_to_know_it() -> None:
    records, messages = decide(image_of(broker(1), level=23), update(1))
    assert records == [] and messages[0] is not None and "broker 1 does not support" in messages[0]


def test_switching_on_settles_min_insync_replicas_for_the_whole_cluster() -> None:
    """Kafka's order: the configurations first, so that nobody reads the feature without them."""
    own = [ConfigRecord(4, broker_id, MIN_ISR, "3") for broker_id in ("1", "2")]
    records, _ = decide(image(*own), update(1))
    assert records == [
        ConfigRecord(4, "", MIN_ISR, "1"),
        ConfigRecord(4, "1", MIN_ISR, None),
        ConfigRecord(4, "2", MIN_ISR, None),
        ON,
    ]
    records, _ = decide(image(ConfigRecord(4, "", MIN_ISR, "2")), update(1))
    assert records == [ON]
    assert decide(image(ON), update(1)) == ([], [None])


def test_a_cluster_that_is_formatted_with_it_has_its_configuration() -> None:
    level = FeatureLevelRecord(name="metadata.version", feature_level=25)
    assert ConfigRecord(4, "", MIN_ISR, "1") in first_records((level, ON))
    assert ConfigRecord(4, "", MIN_ISR, "2") in first_records((level, ON), min_isr=2)
    assert not [each for each in first_records((level,)) if isinstance(each, ConfigRecord)]


FILES = [
    # Of the controller, of the brokers; in the log, of the cluster, of broker 1; written, or None: refused.
    (None, {1: 1, 2: 1}, None, None, "1"),
    (None, {1: 0, 2: 0}, None, None, "1"),
    (None, {1: 2, 2: 2}, None, None, None),
    (None, {1: 1, 2: 2}, None, None, None),
    (None, {1: 1}, None, None, None),
    (2, {1: 2, 2: 2}, None, None, "2"),
    (2, {1: 1, 2: 2}, None, None, "2"),
    (2, {1: 3, 2: 2}, None, None, None),
    (2, {}, None, None, "2"),
    (None, {1: 2, 2: 2}, "2", None, ""),
    (None, {1: 3, 2: 3}, "2", None, ""),
    (3, {1: 2, 2: 2}, "2", None, ""),
    (None, {1: 1, 2: 1}, None, "2", None),
    (None, {1: 1, 2: 1}, "1", "2", None),
    (None, {1: 1, 2: 1}, "3", "2", ""),
]


@pytest.mark.parametrize(("controller", "brokers", "cluster", "own", "written"), FILES)
def test_the_value_that_switching_on_writes_is_never_weaker_than_what_a_broker_applies(
    controller: int | None, brokers: dict[int, int], cluster: str | None, own: str | None, written: str | None
) -> None:
    """Without `written` text, nothing is written: the cluster has a value."""
    supports = tuple(BrokerFeature(each.name, each.min_level, each.max_level) for each in KNOWN_FEATURES)
    settings = [ConfigRecord(4, "", MIN_ISR, cluster)] if cluster else []
    settings += [ConfigRecord(4, "1", MIN_ISR, own)] if own else []
    found = image_of(
        *(structs.replace(broker(at, fenced=False), features=supports) for at in (1, 2)), *settings, level=25
    )
    files = MinIsrInFiles(controller, brokers)
    records, (message,) = decide(found, update(1), files=files)
    if written is None:
        assert records == [] and message is not None
        assert "with metaquorum configs alter broker default" in message
        return
    assert message is None
    values = [each.value for each in records if isinstance(each, ConfigRecord) and not each.resource_name]
    assert values == ([written] if written else [])


def test_no_other_feature_writes_a_default() -> None:
    """A feature that does needs a row above."""
    for feature in KNOWN_FEATURES:
        if feature.name in (ELR_VERSION, KRAFT_VERSION):
            continue
        start = FeatureLevelRecord(name="metadata.version", feature_level=4)
        found = image_of(start) if feature.name == METADATA_VERSION else image_of(level=29)
        records, (message,) = decide(found, update(feature.max_level, name=feature.name))
        assert message is None and [type(each) for each in records] == [FeatureLevelRecord], feature


# ---- configurations


def configure(found: MetadataImage, resource: ConfigResource, value: str | None):
    op = ConfigOp(kind=OpKind.DELETE if value is None else OpKind.SET, name=MIN_ISR, value=value)
    request = AlterConfigsRequest(changes=(ConfigChange(resource=resource, ops=(op,)),))
    result = decide_alter_configs(found, request, CONFIG, voters=frozenset([0]))
    assert isinstance(result.response, SettingsResponse)
    return list(result.records), result.response.results[0]


@pytest.mark.parametrize(("resource", "value"), [(BROKER_1, "2"), (DEFAULT, None)])
def test_one_value_holds_for_the_cluster_while_it_is_on(resource: ConfigResource, value: str | None) -> None:
    records, result = configure(image(ON, ConfigRecord(4, "", MIN_ISR, "2")), resource, value)
    assert records == [] and result.error is ErrorCode.INVALID_CONFIG
    off, result = configure(image(ConfigRecord(4, "", MIN_ISR, "2")), resource, value)
    assert len(off) == 1 and result.error is ErrorCode.NONE


def test_a_lower_min_insync_replicas_ends_the_eligibility_in_the_same_batch() -> None:
    """From then on the ISR may get ahead of those who left it."""
    led = partition(0, (1, 2, 3), (1,), 1)
    out = change(eligible_leader_replicas=(2,))
    found = image(ON, TWO, led, out)
    lower = [ConfigRecord(2, "t", MIN_ISR, "1"), change(eligible_leader_replicas=())]
    assert configure(found, ConfigResource(2, "t"), "1")[0] == lower
    deleted = [ConfigRecord(2, "t", MIN_ISR, None), change(eligible_leader_replicas=())]
    assert configure(found, ConfigResource(2, "t"), None)[0] == deleted
    assert configure(found, ConfigResource(2, "t"), "3")[0] == [ConfigRecord(2, "t", MIN_ISR, "3")]
    by_default = image(ON, ConfigRecord(4, "", MIN_ISR, "2"), led, out)
    assert configure(by_default, DEFAULT, "1")[0][1:] == [change(eligible_leader_replicas=())]
    own_value = image(ON, TWO, ConfigRecord(4, "", MIN_ISR, "2"), led, out)
    assert configure(own_value, DEFAULT, "1")[0][1:] == []


def test_a_lower_value_while_nobody_leads_counts_at_the_election() -> None:
    gone = change(isr=(), leader=-1, eligible_leader_replicas=(1, 2), last_known_elr=(1,))
    found = image(ON, TWO, partition(0, (1, 2, 3), (1, 2), 1), gone)
    assert configure(found, ConfigResource(2, "t"), "1")[0] == [ConfigRecord(2, "t", MIN_ISR, "1")]
    one_is_enough = image(ON, partition(0, (1, 2, 3), (1, 2), 1), gone)
    elected = build_change(one(one_is_enough), Target(), rules_of(one_is_enough, lambda n: n == 1))
    assert elected == change(isr=(1,), leader=1, eligible_leader_replicas=(), last_known_elr=())


# ---- what a partition keeps


def test_the_isr_at_its_minimum_makes_nobody_else_eligible() -> None:
    found = image(ON, TWO, partition(0, (1, 2, 3), (1,), 1), change(eligible_leader_replicas=(2,)))
    grown = build_change(one(found), Target(isr=(1, 3)), rules_of(found, found.brokers.is_active))
    assert grown == change(isr=(1, 3), eligible_leader_replicas=())
    wide = image(ON, TWO, partition(0, (1, 2, 3), (1, 2, 3), 1))
    shrunk = removal_slice(wide, 3, rules_of(wide, wide.brokers.is_active), 10).records
    assert shrunk == (change(isr=(1, 2)),)


def test_an_unclean_stop_makes_a_broker_ineligible_and_the_last_leader_recovers() -> None:
    found = image(ON, TWO, partition(0, (1, 2, 3), (1,), 1), change(eligible_leader_replicas=(2,)))
    rules = rules_of(found, lambda n: n != 2)
    assert removal_slice(found, 2, rules, 10, unclean=True).records == (change(eligible_leader_replicas=()),)
    assert removal_slice(found, 2, rules, 10).records == ()
    alone = image(ON, TWO, partition(0, (1, 2, 3), (1,), 1))
    lost = removal_slice(alone, 1, rules_of(alone, lambda n: n == 3), 10, unclean=True).records[0]
    assert lost == change(isr=(), leader=-1, last_known_elr=(1,))
    (place,) = broker(1).log_dirs
    nowhere = image(ON, TWO, partition(0, (1, 2, 3), (1,), 1), lost)
    assert build_change(one(nowhere), Target(), rules_of(nowhere, lambda n: True)) is None, "S3.6"
    lies = change(directories=(place, UNASSIGNED, UNASSIGNED))
    empty = image(ON, TWO, partition(0, (1, 2, 3), (1,), 1), lost, lies)
    assert build_change(one(empty), Target(), rules_of(empty, lambda n: n != 1)) is None
    back = build_change(one(empty), Target(), rules_of(empty, lambda n: True))
    assert back == change(isr=(1,), leader=1, last_known_elr=(), leader_recovery_state=RECOVERING)


def test_a_partition_without_a_leader_still_knows_whom_it_waits_for() -> None:
    found = image(ON, TWO, partition(0, (1, 2, 3), (2,), -1))
    lost = removal_slice(found, 2, rules_of(found, lambda n: False), 10, unclean=True).records
    assert lost == (change(isr=(), last_known_elr=(2,)),)


def test_what_was_in_a_dead_directory_is_not_eligible_elsewhere() -> None:
    old, new = b"old-directory-00", b"new-directory-00"
    theirs = tuple([broker(n).log_dirs[0] for n in (2, 3)])
    lies = change(directories=(old, *theirs), isr=(), leader=-1, last_known_elr=(1,))
    eligible = change(eligible_leader_replicas=(1,))
    dirs = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=10, log_dirs=(new,))
    found = image(ON, TWO, partition(0, (1, 2, 3), (1,), 1), lies, eligible, dirs)
    request = AssignReplicasToDirsRequest(
        broker_id=1,
        broker_epoch=10,
        assignments=(ReplicaAssignment(directory_id=new, topic_id=TOPIC, partition=0),),
    )
    refused = decide_assign_replicas(found, request, rules_of(found, lambda n: n == 1), records_max=10)
    assert refused.records == (), "what it led with is gone, and nobody else has it"
    for last, writes in ((1, 0), (2, 1)):
        last_led = structs.replace(lies, last_known_elr=(last,))
        found = image(ON, TWO, partition(0, (1, 2, 3), (1,), 1), last_led, dirs)
        rules = rules_of(found, lambda n: n == 1)
        written = decide_assign_replicas(found, request, rules, records_max=10).records
        assert len(written) == writes, "the last leader is waited for"
    others = change(eligible_leader_replicas=(1, 2))
    found = image(ON, TWO, partition(0, (1, 2, 3), (1,), 1), lies, others, dirs)
    (written,) = decide_assign_replicas(
        found, request, rules_of(found, lambda n: n in (1, 2)), records_max=10
    ).records
    assert written.directories == (new, *theirs)
    assert (written.isr, written.leader, written.leader_recovery_state) == ((2,), 2, None)
    assert written.eligible_leader_replicas == ()


# ---- switched off


def test_without_the_feature_a_partition_gets_somebody_in_sync_back() -> None:
    gone = change(isr=(), leader=-1, eligible_leader_replicas=(1, 2), last_known_elr=(2,))
    found = image(TWO, partition(0, (1, 2, 3), (1, 2), 1), gone, fenced=(1, 2))
    rules = rules_of(found, found.brokers.is_active)
    assert not elr_enabled(found)
    forgotten = build_change(one(found), Target(), rules)
    assert forgotten == change(isr=(2,), eligible_leader_replicas=(), last_known_elr=())
    lost = change(isr=(), leader=-1, last_known_elr=(2,))
    found = image(TWO, partition(0, (1, 2, 3), (1, 2), 1), lost, fenced=(1, 2))
    recovers = build_change(one(found), Target(), rules_of(found, found.brokers.is_active))
    assert recovers == change(isr=(2,), last_known_elr=(), leader_recovery_state=RECOVERING)


def test_it_is_not_switched_on_again_before_the_old_ones_are_gone() -> None:
    old = change(eligible_leader_replicas=(2,))
    records, messages = decide(image(partition(0, (1, 2, 3), (1,), 1), old), update(1))
    assert records == [] and messages[0] is not None and "retry in a moment" in messages[0]


# ---- nodes


def a_quorum() -> tuple[Quorum, bytes]:
    """Brokers 1 and 2 serve; `t` has one partition on both, min.insync.replicas 2, and the feature is on."""
    first = FeatureLevelRecord(name="metadata.version", feature_level=25)
    quorum = Quorum(config=replace(CONFIG, bootstrap=(first, ON)))
    quorum.elect()
    quorum.settle()
    for broker_id in (1, 2):
        assert isinstance(quorum.register(broker_id, features=FEATURES), RegisterBrokerResponse)
        quorum.heartbeat(broker_id)
    topic_id = quorum.create("t", (1, 2))
    op = ConfigOp(kind=OpKind.SET, name=MIN_ISR, value="2")
    quorum.call(AlterConfigsRequest(changes=(ConfigChange(resource=ConfigResource(2, "t"), ops=(op,)),)))
    return quorum, topic_id


def dead(quorum: Quorum, *broker_ids: int, alive: tuple[int, ...] = ()) -> None:
    quorum.beat_for(12_000, *alive)
    for broker_id in broker_ids:
        assert quorum.image().brokers[broker_id].fenced


def state(quorum: Quorum, topic_id: bytes) -> tuple[object, ...]:
    found = quorum.partition(topic_id)
    return found.leader, found.isr, found.elr, found.last_known_elr


def again(quorum: Quorum, broker_id: int, incarnation: int, previous: int | None) -> int:
    found = quorum.register(broker_id, incarnation, features=FEATURES, previous_broker_epoch=previous)
    assert isinstance(found, RegisterBrokerResponse), found
    quorum.heartbeat(broker_id)
    return found.broker_epoch


def test_both_die_and_the_clean_one_leads_again() -> None:
    quorum, topic_id = a_quorum()
    dead(quorum, 2, alive=(1,))
    assert state(quorum, topic_id) == (1, (1,), (2,), ())
    dead(quorum, 1)
    assert state(quorum, topic_id) == (-1, (), (1, 2), (1,))
    epoch = quorum.image().brokers[2].epoch
    again(quorum, 2, 7, epoch)
    assert state(quorum, topic_id) == (2, (2,), (1,), ())
    assert quorum.partition(topic_id).leader_recovery_state == RECOVERED


def test_both_die_unclean_and_the_last_leader_recovers() -> None:
    """K8: a new incarnation that cannot vouch for the one before is dropped from every ISR and ELR first."""
    quorum, topic_id = a_quorum()
    dead(quorum, 2, alive=(1,))
    dead(quorum, 1)
    again(quorum, 2, 7, None)
    assert state(quorum, topic_id) == (-1, (), (1,), (1,))
    start = quorum.leader.node.ledger.committed_offset
    again(quorum, 1, 7, quorum.image().brokers[1].epoch - 1)
    assert state(quorum, topic_id) == (1, (1,), (), ())
    assert quorum.partition(topic_id).leader_recovery_state == RECOVERING
    kinds = [[type(each).__name__ for each in batch] for batch in quorum.batches(start)]
    assert kinds == [
        ["PartitionChangeRecord"],
        ["BrokerRecord"],
        ["UnfenceBrokerRecord", "PartitionChangeRecord"],
    ]


def test_a_bounce_within_the_session_is_unclean_too() -> None:
    quorum, topic_id = a_quorum()
    known = quorum.image().brokers[1]
    stop = quorum.heartbeat_request(1, want_shutdown=True)
    quorum.call(stop)
    assert state(quorum, topic_id) == (2, (2,), (1,), ())
    again(quorum, 1, 9, None)
    assert quorum.image().brokers[1].epoch > known.epoch
    assert state(quorum, topic_id) == (2, (2,), (), ())


@pytest.mark.parametrize(
    ("isr", "eligible", "previous_epoch", "must"),
    [
        ((1, 2), (), -1, True),
        ((2,), (1,), -1, True),
        ((2,), (), -1, False),
        ((1, 2), (), 9, True),
        ((1, 2), (), 10, False),
    ],
)
def test_a_broker_that_may_have_lost_its_data_leaves_isrs_and_eligible_leaders_first(
    isr: tuple[int, ...], eligible: tuple[int, ...], previous_epoch: int, must: bool
) -> None:
    found = image(ON, TWO, partition(0, (1, 2), isr, 2), change(eligible_leader_replicas=eligible))
    request = structs.replace(registration(1, 2), previous_broker_epoch=previous_epoch)
    assert must_drop_first(found, request) is must


def test_an_unregistered_broker_is_eligible_nowhere() -> None:
    quorum, topic_id = a_quorum()
    dead(quorum, 2, alive=(1,))
    quorum.call(UnregisterBrokerRequest(broker_id=2))
    assert 2 not in quorum.image().brokers
    assert state(quorum, topic_id) == (1, (1,), (), ())


@pytest.mark.parametrize("failover", [False, True])
def test_a_downgrade_removes_them_and_no_partition_is_lost(failover: bool) -> None:
    quorum, topic_id = a_quorum()
    for machine in quorum.followers:
        said = own_registration(quorum.image(), machine.node.config, machine.node.incarnation_id)
        assert quorum.call(said) == Done()
    dead(quorum, 2, alive=(1,))
    dead(quorum, 1)
    request = UpdateFeaturesRequest(updates=(update(0, LevelChange.SAFE_DOWNGRADE),))
    if failover:
        leader = quorum.leader
        quorum.request(request)
        leader.step()  # decided and appended; the slices that follow are another controller's
        work = leader.node.active
        assert work is not None and ForgetEligible() in work.work
        quorum.settle()
        quorum.leader.kill()
        quorum.elect()
        quorum.advance(1_000)
    else:
        response = quorum.call(request)
        assert isinstance(response, SettingsResponse)
        assert response.results[0].error is ErrorCode.NONE
        quorum.advance(100)
    assert state(quorum, topic_id) == (-1, (1,), (), ())
    assert quorum.image().features.level(NAME) == 0
    again(quorum, 1, 8, None)
    assert state(quorum, topic_id) == (1, (1,), (), ())


def test_the_registration_of_one_that_nobody_counts_on_takes_one_batch() -> None:
    quorum, _ = a_quorum()
    start = quorum.leader.node.ledger.committed_offset
    quorum.call(registration(3, features=FEATURES))
    assert [len(batch) for batch in quorum.batches(start)] == [1]
