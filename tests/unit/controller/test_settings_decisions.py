"""Decisions on settings: the exact records, and each refusal with Kafka's error code."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from metaquorum.controller.brokers.brokers import controller_record, own_registration
from metaquorum.controller.settings.settings import decide_settings
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import MAX_METADATA_VERSION
from metaquorum.metadata.image import Acl, ConfigResource, MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import (
    AccessControlEntryRecord,
    BrokerFeature,
    BrokerRecord,
    ClientQuotaRecord,
    ConfigRecord,
    ControllerFeature,
    ControllerRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    QuotaEntity,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from metaquorum.metadata.requests.settings import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterConfigsRequest,
    AlterQuotasRequest,
    AlterScramRequest,
    ConfigChange,
    ConfigOp,
    CreateAclsRequest,
    DeleteAclsRequest,
    FeatureUpdate,
    LevelChange,
    OpKind,
    QuotaChange,
    QuotaOp,
    RegisterControllerRequest,
    ScramDeletion,
    ScramUpsertion,
    UpdateFeaturesRequest,
)
from metaquorum.metadata.settings.acls import AclFilter
from metaquorum.metadata.settings.configs import NO_EFFECT, UNKNOWN, ConfigSource, describe_topic
from metaquorum.metadata.settings.resource_keys import GroupBounds
from metaquorum.metadata.settings.scram import Mechanism, salted_password, stored_keys
from tests.unit.controller.node_quorum import image_of

VOTERS = frozenset({1, 2, 3})
CONFIG = ControllerConfig(cluster_id="c", node_id=1, delegation_token_secret_key="s3cret")
NOW = 1_700_000_000_000
TOPIC = TopicRecord(name="orders", topic_id=bytes(15) + b"\1")
NAME = ConfigResource(2, "orders")
BROKER = BrokerRecord(
    broker_id=4,
    incarnation_id=bytes(15) + b"\4",
    broker_epoch=7,
    fenced=False,
    features=(BrokerFeature("metadata.version", 1, 19),),
)


def decide(image, request, **changes):
    ids = itertools.count(1)
    fields = {"config": CONFIG, "kraft_version": 0, "voters": VOTERS, "wall_ms": NOW}
    new_id = {"new_id": lambda: bytes(15) + bytes([next(ids)])}
    return decide_settings(image, request, **{**fields, **new_id, **changes})


def errors(result):
    return [each.error for each in result.response.results]


# ---- configurations ------------------------------------------------------------------------------


def alter(image, resource, *ops, **more):
    change = ConfigChange(resource=resource, ops=tuple(ConfigOp(kind=k, name=n, value=v) for k, n, v in ops))
    return decide(image, AlterConfigsRequest(changes=(change,), **more))


def config(name, value, resource=NAME):
    return ConfigRecord(
        resource_type=resource.resource_type, resource_name=resource.name, name=name, value=value
    )


SET, DELETE, APPEND, SUBTRACT = OpKind.SET, OpKind.DELETE, OpKind.APPEND, OpKind.SUBTRACT


def test_what_is_accepted_and_changes_nothing_yet_is_told() -> None:
    def note(*ops, image=None, resource=NAME, **more):
        (result,) = alter(image or image_of(TOPIC), resource, *ops, **more).response.results
        return result.note

    nothing = "this is stored but has no effect yet"
    assert note((SET, "flush.ms", "4")) == f"flush.ms=4: {nothing}"
    assert note((SET, "flush.ms", "4"), validate_only=True) is not None
    image = image_of(TOPIC, config("flush.ms", "4"))
    assert note((DELETE, "flush.ms", None), image=image) is None
    assert note((APPEND, "leader.replication.throttled.replicas", "0:1")) is None
    assert note((SET, "retention.ms", "5")) is None
    assert note((SET, "flush.ms", "4"), (SET, "no.such.key", "1")) is None
    everybody = ConfigResource(4, "")
    assert note((SET, "log.preallocate", "true"), resource=everybody) == (
        "log.preallocate=true: this is stored but has no effect yet"
    )


def test_a_topic_is_configured_with_what_changes_and_nothing_else() -> None:
    image = image_of(TOPIC, config("retention.ms", "5"), config("segment.bytes", "100"))
    result = alter(
        image,
        NAME,
        (SET, "retention.ms", "5"),
        (SET, "min.insync.replicas", "2"),
        (DELETE, "segment.bytes", None),
        (DELETE, "flush.ms", None),
        (APPEND, "cleanup.policy", "compact,delete"),
    )
    assert errors(result) == [ErrorCode.NONE]
    assert result.records == (
        config("min.insync.replicas", "2"),
        config("segment.bytes", None),
        config("cleanup.policy", "delete,compact"),
    )
    assert alter(image, NAME, (SET, "flush.ms", "1"), validate_only=True).records == ()


class Watched(str):
    """A name that counts how often it is compared."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Watched.comparisons += 1
        return str.__eq__(self, other)


def test_a_request_that_names_many_is_looked_through_once() -> None:
    names = [Watched(f"name{n}") for n in range(500)]
    one = ConfigOp(kind=SET, name="retention.ms", value="1")
    requests = (
        AlterConfigsRequest(
            changes=tuple(ConfigChange(resource=ConfigResource(2, name), ops=(one,)) for name in names)
        ),
        AlterConfigsRequest(
            changes=(
                ConfigChange(
                    resource=NAME, ops=tuple(ConfigOp(kind=SET, name=name, value="1") for name in names)
                ),
            )
        ),
        AlterScramRequest(deletions=tuple(ScramDeletion(user=name, mechanism=1) for name in names)),
        AlterQuotasRequest(
            changes=(
                QuotaChange(
                    entity=(("user", "u"),), ops=tuple(QuotaOp(key=name, value=1.0) for name in names)
                ),
            )
        ),
    )
    for request in requests:
        Watched.comparisons = 0
        assert ErrorCode.NONE not in errors(decide(image_of(TOPIC), request))
        assert Watched.comparisons < 10 * len(names)


@pytest.mark.parametrize("release", ["0.10.0.0", "0.11.0", "2.8", "3.0-IV1", "3.7.0"])
def test_a_release_has_up_to_four_numbers(release: str) -> None:
    result = alter(image_of(TOPIC), NAME, (SET, "message.format.version", release))
    assert errors(result) == [ErrorCode.NONE]


def test_append_and_subtract_start_from_the_value_or_the_default() -> None:
    image = image_of(TOPIC, config("cleanup.policy", "compact,delete"))
    assert alter(image, NAME, (SUBTRACT, "cleanup.policy", "delete")).records == (
        config("cleanup.policy", "compact"),
    )
    assert alter(image, NAME, (APPEND, "cleanup.policy", "delete")).records == ()
    assert alter(image_of(TOPIC), NAME, (SUBTRACT, "cleanup.policy", "delete")).records == (
        config("cleanup.policy", ""),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.ms", str(2**63)),
        ("retention.ms", "9" * 5000),
        ("retention.ms", "-" + "9" * 5000),
        ("segment.bytes", "13"),
        ("segment.bytes", str(2**31)),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("cleanup.policy", "compact,burn"),
        ("compression.type", "rar"),
        ("preallocate", "yes"),
        ("min.insync.replicas", "0"),
        ("message.format.version", "new"),
        ("leader.replication.throttled.replicas", "0:a"),
        ("leader.replication.throttled.replicas", f"{2**31}:1"),
        ("leader.replication.throttled.replicas", f"{'9' * 5000}:1"),
        ("follower.replication.throttled.replicas", f"0:{'9' * 5000}"),
        ("follower.replication.throttled.replicas", "0:\u0661"),
        ("remote.storage.enable", "true"),
        ("retention.hours", "1"),
        ("max.compaction.lag.ms", "0"),
        ("min.compaction.lag.ms", str(2**63)),
    ],
)
def test_a_value_that_a_topic_cannot_have(name: str, value: str) -> None:
    result = alter(image_of(TOPIC), NAME, (SET, "flush.ms", "1"), (SET, name, value))
    assert errors(result) == [ErrorCode.INVALID_CONFIG] and result.records == ()
    assert name in result.response.results[0].message


def test_values_that_do_not_fit_together_are_seen_with_what_is_set_already() -> None:
    image = image_of(TOPIC, config("max.compaction.lag.ms", "10"))
    assert errors(alter(image, NAME, (SET, "min.compaction.lag.ms", "11"))) == [ErrorCode.INVALID_CONFIG]
    assert errors(alter(image, NAME, (SET, "min.compaction.lag.ms", "10"))) == [ErrorCode.NONE]


BINDING = '{"version":0,"broker.id":10}'


@pytest.mark.parametrize(
    ("resource", "op", "code"),
    [
        (ConfigResource(2, ""), (SET, "flush.ms", "1"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(2, "a b"), (SET, "flush.ms", "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ConfigResource(2, "gone"), (SET, "flush.ms", "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ConfigResource(4, "9"), (SET, "num.io.threads", "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (ConfigResource(4, "-1"), (SET, "num.io.threads", "1"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, "04"), (SET, "num.io.threads", "1"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, "9" * 5000), (SET, "num.io.threads", "1"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, "4"), (SET, "num.io.threads", "0"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, "4"), (SET, "log.dirs", "/x"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, "4"), (SET, "ssl.keystore.location", "/x"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, ""), (SET, "advertised.listeners", "a"), ErrorCode.INVALID_REQUEST),
        (
            ConfigResource(4, ""),
            (SET, "listener.name.tls.ssl.keystore.location", "/x"),
            ErrorCode.INVALID_REQUEST,
        ),
        (ConfigResource(4, "4"), (SET, "broker.id.binding.h", BINDING), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, ""), (SET, "broker.id.binding.h", "10"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, ""), (SET, "broker.id.binding.", BINDING), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, ""), (SET, "broker.id.binding.a b", BINDING), ErrorCode.INVALID_REQUEST),
        (ConfigResource(4, ""), (SET, "broker.id.next", "7"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(8, "4"), (SET, "kafka", "DEBUG"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(16, ""), (SET, "interval.ms", "100"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(16, "m"), (SET, "interval.ms", "99"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(16, "m"), (SET, "match", "shoe_size=9"), ErrorCode.INVALID_CONFIG),
        (ConfigResource(16, "m"), (SET, "match", "client_id=("), ErrorCode.INVALID_CONFIG),
        (ConfigResource(32, ""), (SET, "consumer.session.timeout.ms", "50000"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(32, "g"), (SET, "consumer.session.timeout.ms", "44999"), ErrorCode.INVALID_CONFIG),
        (ConfigResource(32, "g"), (SET, "consumer.session.timeout.ms", "60001"), ErrorCode.INVALID_CONFIG),
        (ConfigResource(32, "g"), (SET, "consumer.heartbeat.interval.ms", "4999"), ErrorCode.INVALID_CONFIG),
        (ConfigResource(32, "g"), (SET, "consumer.heartbeat.interval.ms", "x"), ErrorCode.INVALID_CONFIG),
        (ConfigResource(32, "g"), (SET, "share.session.timeout.ms", "45000"), ErrorCode.INVALID_CONFIG),
        (NAME, (APPEND, "flush.ms", "1"), ErrorCode.INVALID_CONFIG),
        (NAME, (SET, "flush.ms", None), ErrorCode.INVALID_REQUEST),
        (NAME, (APPEND, "cleanup.policy", None), ErrorCode.INVALID_REQUEST),
        (NAME, (SET, "", "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_resources_and_keys_that_are_refused(resource, op, code) -> None:
    result = alter(image_of(TOPIC, BROKER), resource, op)
    assert errors(result) == [code] and result.records == ()


@pytest.mark.parametrize(
    ("resource", "name", "value"),
    [
        (ConfigResource(4, "4"), "log.cleaner.threads", "2"),
        (ConfigResource(4, "2"), "num.io.threads", "2"),  # a controller
        (ConfigResource(4, "4"), "listener.name.tls.ssl.keystore.password", "x"),
        (ConfigResource(4, "4"), "listener.name.sasl.plain.sasl.jaas.config", "x"),
        (ConfigResource(4, ""), "listener.name.tls.max.connections", "5"),
        (ConfigResource(4, ""), "broker.id.binding.h%201", BINDING),
        (ConfigResource(4, ""), "log.retention.ms", "-1"),
        (ConfigResource(4, "4"), "of.a.plug-in", "anything"),
        (ConfigResource(16, "m"), "match", "client_id=.*,client_source_port=9"),
        (ConfigResource(32, "g"), "consumer.session.timeout.ms", "60000"),
    ],
)
def test_keys_that_are_known(resource, name, value) -> None:
    result = alter(image_of(TOPIC, BROKER), resource, (SET, name, value))
    assert errors(result) == [ErrorCode.NONE], result.response
    assert result.records == (config(name, value, resource),)


def test_a_key_that_nobody_knows_is_kept_and_said_to_be_unknown() -> None:
    """As in Kafka, whose plug-ins have keys of their own; a mistake in writing has to be seen."""
    resource = ConfigResource(4, "4")
    result = alter(image_of(BROKER), resource, (SET, "log.cleaner.thread", "2"), (SET, "num.io.threads", "2"))
    (answer,) = result.response.results
    assert answer.note == f"log.cleaner.thread=2: {UNKNOWN}; num.io.threads=2: {NO_EFFECT}"
    assert len(result.records) == 2
    bound = alter(image_of(BROKER), ConfigResource(4, ""), (SET, "broker.id.binding.h", BINDING))
    assert bound.response.results[0].note is None


def test_a_change_that_replaces_all_keys_leaves_the_memory_of_broker_ids() -> None:
    every = ConfigResource(4, "")
    image = image_of(config("broker.id.binding.h", BINDING, every), config("num.io.threads", "3", every))
    op = ConfigOp(kind=SET, name="log.retention.ms", value="5")
    change = ConfigChange(resource=every, ops=(op,), replaces=True)
    result = decide(image, AlterConfigsRequest(changes=(change,)))
    assert result.records == (config("log.retention.ms", "5", every), config("num.io.threads", None, every))


def test_brokers_are_told_again_and_topics_are_not() -> None:
    resource = ConfigResource(4, "4")
    image = image_of(TOPIC, BROKER, config("num.io.threads", "3", resource), config("flush.ms", "1"))
    same = alter(image, resource, (SET, "num.io.threads", "3"))
    assert same.records == (config("num.io.threads", "3", resource),)
    assert alter(image, NAME, (SET, "flush.ms", "1")).records == ()


def test_one_resource_is_refused_and_the_others_are_changed() -> None:
    op = (ConfigOp(kind=SET, name="flush.ms", value="1"),)
    twice = ConfigResource(4, "4")
    changes = (
        ConfigChange(resource=ConfigResource(2, "gone"), ops=op),
        ConfigChange(resource=NAME, ops=op),
        ConfigChange(resource=twice, ops=op),
        ConfigChange(resource=twice, ops=op),
    )
    result = decide(image_of(TOPIC, BROKER), AlterConfigsRequest(changes=changes))
    assert errors(result) == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert result.records == (config("flush.ms", "1"),)
    small = replace(CONFIG, records_per_request_max=0)
    limited = decide(image_of(TOPIC, BROKER), AlterConfigsRequest(changes=changes[1:2]), config=small)
    assert errors(limited) == [ErrorCode.POLICY_VIOLATION] and limited.records == ()


def test_sources_of_a_topics_values_from_strong_to_weak() -> None:
    broker, default = ConfigResource(4, "4"), ConfigResource(4, "")
    image = image_of(
        TOPIC,
        BROKER,
        config("retention.ms", "1"),
        config("log.retention.ms", "2", broker),
        config("log.retention.ms", "3", default),
    )
    (entry,) = describe_topic(image, "orders", broker_id=4, static={"log.retention.ms": "4"})
    assert [(each.source, each.name, each.value) for each in entry.synonyms] == [
        (ConfigSource.DYNAMIC_TOPIC_CONFIG, "retention.ms", "1"),
        (ConfigSource.DYNAMIC_BROKER_CONFIG, "log.retention.ms", "2"),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, "log.retention.ms", "3"),
        (ConfigSource.STATIC_BROKER_CONFIG, "log.retention.ms", "4"),
        (ConfigSource.DEFAULT_CONFIG, "log.retention.hours", "168"),
    ]
    gone = image_of(TOPIC, config("retention.ms", "1"), RemoveTopicRecord(topic_id=TOPIC.topic_id))
    assert NAME not in gone.configs


def test_a_groups_session_is_longer_than_its_heartbeats_are_apart() -> None:
    group = ConfigResource(32, "g")
    bounds = GroupBounds(group_consumer_min_session_timeout_ms=1)
    wide = replace(CONFIG, group_bounds=bounds)
    keys = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    for values, error in (
        (("6000", "6000"), ErrorCode.INVALID_CONFIG),
        (("5000", None), ErrorCode.INVALID_CONFIG),
        (("6000", "5999"), ErrorCode.NONE),
    ):
        pairs = [(name, value) for name, value in zip(keys, values, strict=True) if value is not None]
        ops = tuple(ConfigOp(kind=SET, name=name, value=value) for name, value in pairs)
        request = AlterConfigsRequest(changes=(ConfigChange(resource=group, ops=ops),))
        result = decide(image_of(), request, config=wide)
        assert errors(result) == [error]
    assert result.records == tuple(config(name, value, group) for name, value in pairs)


# ---- feature levels ------------------------------------------------------------------------------


def controller(node_id: int, high: int = MAX_METADATA_VERSION) -> ControllerRecord:
    return ControllerRecord(
        controller_id=node_id,
        incarnation_id=bytes([node_id]) * 16,
        features=(ControllerFeature("metadata.version", 1, high), ControllerFeature("group.version", 0, 1)),
    )


ALL = (controller(1), controller(2), controller(3))


def update(image: MetadataImage, level: int, change=LevelChange.UPGRADE, name="metadata.version"):
    request = UpdateFeaturesRequest(updates=(FeatureUpdate(name=name, level=level, change=change),))
    return decide(image, request)


def test_an_upgrade_is_one_record_and_a_repeat_none() -> None:
    result = update(image_of(BROKER, *ALL, level=15), 19)
    assert result.records == (FeatureLevelRecord(name="metadata.version", feature_level=19),)
    again = update(image_of(BROKER, *ALL, level=19), 19)
    assert (errors(again), again.records) == ([ErrorCode.NONE], ())
    named = update(image_of(*ALL), 1, name="group.version")
    assert named.records == (FeatureLevelRecord(name="group.version", feature_level=1),)


@pytest.mark.parametrize(
    ("image", "level", "change", "text"),
    [
        (image_of(BROKER, *ALL, level=15), 20, LevelChange.UPGRADE, "broker 4 supports 3.0-IV1 to 3.7-IV4"),
        (image_of(*ALL[:2], level=15), 16, LevelChange.UPGRADE, "controller 3 has not registered"),
        (
            image_of(*ALL[:2], controller(3, 15), level=15),
            16,
            LevelChange.UPGRADE,
            "controller 3 supports 3.0-IV1 to 3.7-IV0",
        ),
        (image_of(*ALL), MAX_METADATA_VERSION + 1, LevelChange.UPGRADE, "this controller (1) supports"),
        (image_of(*ALL), 18, LevelChange.UPGRADE, "request a downgrade"),
        (image_of(*ALL, level=17), 18, LevelChange.SAFE_DOWNGRADE, "request an upgrade"),
        (image_of(*ALL), 16, LevelChange.SAFE_DOWNGRADE, "could lose metadata"),
        (image_of(*ALL), 16, LevelChange.UNSAFE_DOWNGRADE, "not supported"),
        (image_of(*ALL), -1, LevelChange.SAFE_DOWNGRADE, "at least 0"),
        (image_of(*ALL, level=4), 3, LevelChange.SAFE_DOWNGRADE, "cannot express levels below 3.3-IV0"),
        (
            image_of(*ALL, ZkMigrationStateRecord(zk_migration_state=1), level=17),
            19,
            LevelChange.UPGRADE,
            "migration from ZooKeeper",
        ),
    ],
)
def test_levels_that_are_refused(image, level, change, text) -> None:
    result = update(image, level, change)
    assert errors(result) == [ErrorCode.INVALID_UPDATE_VERSION] and result.records == ()
    assert text in result.response.results[0].message


def test_levels_of_one_request_are_held_against_each_other() -> None:
    both = tuple(
        FeatureUpdate(name=name, level=level, change=LevelChange.UPGRADE)
        for name, level in (("metadata.version", 22), ("eligible.leader.replicas.version", 1))
    )
    eligible = ControllerFeature("eligible.leader.replicas.version", 0, 1)
    able = [msgspec.structs.replace(each, features=(*each.features, eligible)) for each in ALL]
    image = image_of(*able)
    refused = decide(image, UpdateFeaturesRequest(updates=both))
    assert [str(each.message).split(": ", 1)[1] for each in refused.response.results] == [
        "eligible.leader.replicas.version 1 needs 4.0-IV1: downgrade eligible.leader.replicas.version first",
        "it needs metadata.version 4.0-IV1: upgrade that first",
    ]
    assert refused.records == ()


def test_a_downgrade_that_loses_nothing() -> None:
    for change in (LevelChange.SAFE_DOWNGRADE, LevelChange.UNSAFE_DOWNGRADE):
        result = update(image_of(BROKER, *ALL, level=19), 17, change)
        assert result.records == (FeatureLevelRecord(name="metadata.version", feature_level=17),)


def test_below_the_level_of_registrations_controllers_are_not_asked() -> None:
    assert errors(update(image_of(BROKER, level=14), 19)) == [ErrorCode.NONE]
    assert errors(update(image_of(level=14), 1, name="colour.version")) == [ErrorCode.INVALID_UPDATE_VERSION]
    assert errors(update(image_of(), 1, name="kraft.version")) == [ErrorCode.INVALID_UPDATE_VERSION]


def test_controllers_register_once_for_each_process() -> None:
    request = own_registration(image_of(), CONFIG, b"i" * 16)
    assert request is not None and request.controller_id == 1
    result = decide(image_of(), request)
    assert result.records == (controller_record(request),)
    known = image_of(*result.records)
    assert own_registration(known, CONFIG, b"i" * 16) is None
    assert own_registration(known, CONFIG, b"j" * 16) is not None
    assert own_registration(image_of(level=14), CONFIG, b"i" * 16) is None
    assert decide(known, request).records == ()
    for image, changes, code in (
        (image_of(level=14), {}, ErrorCode.UNSUPPORTED_VERSION),
        (image_of(), {"controller_id": 9}, ErrorCode.INVALID_REQUEST),
        (image_of(), {"incarnation_id": bytes(16)}, ErrorCode.INVALID_REQUEST),
    ):
        refused = decide(image, RegisterControllerRequest(**{**_fields(request), **changes}))
        assert refused.response.code is code and refused.records == ()
        # What the request itself refuses waits for no commit.
        assert refused.depends_on_image == (code is ErrorCode.UNSUPPORTED_VERSION)


def _fields(request: RegisterControllerRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in request.__slots__}


# ---- access control ------------------------------------------------------------------------------


def acl(**changes: object) -> Acl:
    fields = {
        "resource_type": 2,
        "resource_name": "orders",
        "pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return Acl(**{**fields, **changes})


def entry(number: int, **changes: object) -> AccessControlEntryRecord:
    it = acl(**changes)
    return AccessControlEntryRecord(
        id=bytes(15) + bytes([number]), **{name: getattr(it, name) for name in it.__struct_fields__}
    )


def test_entries_are_added_once() -> None:
    image = image_of(entry(1))
    request = CreateAclsRequest(acls=(acl(), acl(host="10.0.0.1"), acl(host="10.0.0.1")))
    result = decide(image, request)
    assert errors(result) == [ErrorCode.NONE] * 3
    assert result.records == (entry(2, host="10.0.0.1"),)  # id 1 is taken


@pytest.mark.parametrize(
    "changes",
    [
        {"resource_type": 1},
        {"resource_type": 99},
        {"pattern_type": 1},
        {"pattern_type": 2},
        {"operation": 1},
        {"operation": 0},
        {"permission_type": 1},
        {"resource_name": ""},
        {"resource_type": 4, "resource_name": "other"},
        {"principal": "alice"},
        {"principal": "User:"},
        {"host": ""},
    ],
)
def test_entries_that_are_refused(changes: dict[str, object]) -> None:
    result = decide(image_of(), CreateAclsRequest(acls=(acl(**changes), acl())))
    assert errors(result) == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert result.records == (entry(1),)


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (AclFilter(), [1, 2, 3, 4]),
        (AclFilter(resource_type=2), [1, 2, 3]),
        (AclFilter(resource_name="orders"), [1]),
        (AclFilter(resource_name="orders", pattern_type=2), [1, 2, 3]),
        (AclFilter(resource_name="or", pattern_type=4), [2]),
        (AclFilter(resource_name="or", pattern_type=3), []),
        (AclFilter(principal="User:bob"), [4]),
        (AclFilter(host="10.0.0.1", operation=3, permission_type=3), [4]),
    ],
)
def test_filters_find_what_they_mean(wanted: AclFilter, ids: list[int]) -> None:
    image = image_of(
        entry(1),
        entry(2, resource_name="or", pattern_type=4),
        entry(3, resource_name="*"),
        entry(4, resource_type=3, resource_name="g", principal="User:bob", host="10.0.0.1"),
    )
    result = decide(image, DeleteAclsRequest(filters=(wanted, wanted)))
    assert result.records == tuple(RemoveAccessControlEntryRecord(id=bytes(15) + bytes([n])) for n in ids)
    assert [len(each.acls) for each in result.response.results] == [len(ids)] * 2
    assert decide(image, DeleteAclsRequest(filters=(wanted,), validate_only=True)).records == ()


def test_a_filter_that_makes_no_sense() -> None:
    result = decide(image_of(entry(1)), DeleteAclsRequest(filters=(AclFilter(operation=0),)))
    assert errors(result) == [ErrorCode.INVALID_REQUEST] and result.records == ()


# ---- SCRAM ---------------------------------------------------------------------------------------


def test_derived_keys_are_those_of_the_rfc() -> None:
    """RFC 7677, section 3: user `user`, password `pencil`; the proof of the exchange is reproduced."""
    mechanism = Mechanism.SCRAM_SHA_256
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salted_password(mechanism, "pencil", salt, 4096)
    stored_key, server_key = stored_keys(mechanism, salted)
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    message = (
        f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}"
    ).encode()
    signature = hmac.digest(server_key, message, "sha256")
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client_signature = hmac.digest(stored_key, message, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, client_signature, strict=True))
    assert hashlib.sha256(client_key).digest() == stored_key


def upsert(**changes: object) -> ScramUpsertion:
    fields = {"user": "alice", "mechanism": 2, "iterations": 4096, "salt": b"salt", "salted_password": b"p"}
    return ScramUpsertion(**{**fields, **changes})


def credential(user: str, mechanism: int) -> UserScramCredentialRecord:
    stored_key, server_key = stored_keys(Mechanism(mechanism), b"p")
    return UserScramCredentialRecord(
        name=user,
        mechanism=mechanism,
        salt=b"salt",
        stored_key=stored_key,
        server_key=server_key,
        iterations=4096,
    )


def test_credentials_are_set_and_deleted() -> None:
    image = image_of(credential("bob", 1))
    request = AlterScramRequest(
        deletions=(ScramDeletion(user="bob", mechanism=1), ScramDeletion(user="bob2", mechanism=1)),
        upsertions=(upsert(), upsert(user="carol"), upsert(user="carol", mechanism=1)),
    )
    result = decide(image, request)
    assert [(each.subject, each.error) for each in result.response.results] == [
        ("bob", ErrorCode.NONE),
        ("bob2", ErrorCode.RESOURCE_NOT_FOUND),
        ("alice", ErrorCode.NONE),
        ("carol", ErrorCode.DUPLICATE_RESOURCE),
    ]
    assert result.records == (
        RemoveUserScramCredentialRecord(name="bob", mechanism=1),
        credential("alice", 2),
    )


@pytest.mark.parametrize(
    ("changes", "level", "code"),
    [
        ({"iterations": 4095}, 19, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16385}, 19, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"user": ""}, 19, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, 19, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 3}, 19, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({}, 10, ErrorCode.UNSUPPORTED_VERSION),
        ({"iterations": 16384}, 19, ErrorCode.NONE),
    ],
)
def test_which_credentials_are_refused(changes, level, code) -> None:
    result = decide(image_of(level=level), AlterScramRequest(upsertions=(upsert(**changes),)))
    assert errors(result) == [code] and len(result.records) == (code is ErrorCode.NONE)
    assert "p'" not in repr(upsert(**changes))


# ---- quotas --------------------------------------------------------------------------------------


def quota(entity, *ops, image=None):
    change = QuotaChange(entity=entity, ops=tuple(QuotaOp(key=key, value=value) for key, value in ops))
    return decide(image or image_of(), AlterQuotasRequest(changes=(change,)))


def quota_record(key: str, value: float, *parts: tuple[str, str | None], remove: bool = False):
    entity = tuple(QuotaEntity(kind, name) for kind, name in parts)
    return ClientQuotaRecord(entity=entity, key=key, value=value, remove=remove)


def test_quotas_are_set_and_removed_where_that_changes_something() -> None:
    alice = (("client-id", "app"), ("user", "alice"))
    image = image_of(
        quota_record("producer_byte_rate", 5.0, *alice), quota_record("request_percentage", 1.5, *alice)
    )
    result = quota(
        alice[::-1],
        ("producer_byte_rate", 5.0),
        ("consumer_byte_rate", 7.0),
        ("request_percentage", None),
        ("controller_mutation_rate", None),
        image=image,
    )
    assert result.records == (
        quota_record("consumer_byte_rate", 7.0, *alice),
        quota_record("request_percentage", 0.0, *alice, remove=True),
    )
    address = (("ip", None),)
    assert quota(address, ("connection_creation_rate", 3.0)).records == (
        quota_record("connection_creation_rate", 3.0, *address),
    )


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ((), "producer_byte_rate", 1.0),
        ((("shoe", "9"),), "producer_byte_rate", 1.0),
        ((("user", "a"), ("user", "b")), "producer_byte_rate", 1.0),
        ((("user", ""),), "producer_byte_rate", 1.0),
        ((("ip", "10.0.0.1"), ("user", "a")), "connection_creation_rate", 1.0),
        ((("ip", "nowhere"),), "connection_creation_rate", 1.0),
        ((("ip", "10.0.0.1"),), "producer_byte_rate", 1.0),
        ((("user", "a"),), "connection_creation_rate", 1.0),
        ((("user", "a"),), "producer_byte_rate", 0.0),
        ((("user", "a"),), "producer_byte_rate", 1.5),
        ((("user", "a"),), "producer_byte_rate", 1e19),
        ((("user", "a"),), "request_percentage", float("nan")),
        ((("user", "a"),), "request_percentage", float("inf")),
        ((("ip", None),), "connection_creation_rate", 2.0**31),
    ],
)
def test_quotas_that_are_refused(entity, key, value) -> None:
    result = quota(entity, (key, value))
    assert errors(result) == [ErrorCode.INVALID_REQUEST] and result.records == ()


# ---- producer ids --------------------------------------------------------------------------------


def test_producer_ids_come_in_blocks_that_never_overlap() -> None:
    request = AllocateProducerIdsRequest(broker_id=4, broker_epoch=7)
    image, first_ids = image_of(BROKER), []
    for _ in range(3):
        result = decide(image, request)
        first_ids.append(result.response.first_id)
        assert result.response == AllocateProducerIdsResponse(first_id=first_ids[-1], count=1000)
        (record,) = result.records
        assert record == ProducerIdsRecord(broker_id=4, broker_epoch=7, next_producer_id=first_ids[-1] + 1000)
        image = image_of(BROKER, record)
    assert first_ids == [0, 1000, 2000]
    stale = decide(image, structs.replace(request, broker_epoch=6))
    assert isinstance(stale.response, ApiError) and stale.response.code is ErrorCode.STALE_BROKER_EPOCH
    last = image_of(BROKER, ProducerIdsRecord(broker_id=4, broker_epoch=7, next_producer_id=2**63 - 1000))
    assert decide(last, request).response.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_controller_that_does_not_vote_has_a_configuration() -> None:
    registered = ControllerRecord(controller_id=9, incarnation_id=bytes(16))
    for image, error in (
        (image_of(registered), ErrorCode.NONE),
        (image_of(), ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        assert errors(alter(image, ConfigResource(4, "9"), (SET, "max.connections", "5"))) == [error]
