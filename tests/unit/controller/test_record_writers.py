"""Every record type of the log has a writer: one cluster's life, asked for as users and brokers ask.

The table names who writes each type; the test lets that happen and looks for the type in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from metaquorum.controller.active.steps import abort_record
from metaquorum.controller.brokers.brokers import own_registration
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl, ConfigResource
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records import types as records
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.requests.common import DeleteTopicsRequest, UnregisterBrokerRequest
from metaquorum.metadata.requests.settings import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterConfigsRequest,
    AlterQuotasRequest,
    AlterScramRequest,
    ConfigChange,
    ConfigOp,
    CreateAclsRequest,
    CreateTokenRequest,
    CreateTokenResponse,
    DeleteAclsRequest,
    ExpireTokenRequest,
    FeatureUpdate,
    LevelChange,
    OpKind,
    QuotaChange,
    QuotaOp,
    ScramDeletion,
    ScramUpsertion,
    SettingsResponse,
    UpdateFeaturesRequest,
)
from metaquorum.metadata.settings.acls import AclFilter
from tests.unit.controller.node_quorum import CLUSTER, Quorum, image_of

CONFIG = ControllerConfig(cluster_id=CLUSTER, node_id=0, delegation_token_secret_key="s")
ACL = Acl(
    resource_type=2,
    resource_name="orders",
    pattern_type=3,
    principal="User:alice",
    host="*",
    operation=3,
    permission_type=3,
)


def accepted(quorum: Quorum, request: object) -> None:
    response = quorum.call(request)
    assert isinstance(response, SettingsResponse), response
    assert [each.error for each in response.results] == [ErrorCode.NONE], response


def start(quorum: Quorum) -> None:
    for broker_id in (1, 2):
        quorum.start_broker(broker_id)


def topics(quorum: Quorum) -> None:
    topic_id = quorum.create("orders", (1, 2), (2, 1))
    quorum.create("kept", (1, 2))
    quorum.call(DeleteTopicsRequest(topics=(topic_id,)))


def shut_down_and_fence(quorum: Quorum) -> None:
    quorum.heartbeat(1, want_shutdown=True)
    quorum.beat_for(10_000, 1)
    quorum.call(UnregisterBrokerRequest(broker_id=2))


def configs(quorum: Quorum) -> None:
    op = ConfigOp(kind=OpKind.SET, name="flush.ms", value="1")
    accepted(
        quorum,
        AlterConfigsRequest(changes=(ConfigChange(resource=ConfigResource(2, "kept"), ops=(op,)),)),
    )


def credentials(quorum: Quorum) -> None:
    upsertion = ScramUpsertion(user="a", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p")
    accepted(quorum, AlterScramRequest(upsertions=(upsertion,)))
    accepted(quorum, AlterScramRequest(deletions=(ScramDeletion(user="a", mechanism=1),)))


def quotas(quorum: Quorum) -> None:
    op = QuotaOp(key="request_percentage", value=1.0)
    accepted(quorum, AlterQuotasRequest(changes=(QuotaChange(entity=(("user", None),), ops=(op,)),)))


def acls(quorum: Quorum) -> None:
    accepted(quorum, CreateAclsRequest(acls=(ACL,)))
    quorum.call(DeleteAclsRequest(filters=(AclFilter(),)))


def tokens(quorum: Quorum) -> None:
    token = quorum.call(CreateTokenRequest(requester="User:a"))
    assert isinstance(token, CreateTokenResponse)
    quorum.call(ExpireTokenRequest(requester="User:a", hmac=token.hmac))


def producer_ids(quorum: Quorum) -> None:
    epoch = quorum.image().brokers[1].epoch
    block = quorum.call(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
    assert block == AllocateProducerIdsResponse(first_id=0, count=1000)


def levels(quorum: Quorum) -> None:
    change = FeatureUpdate(name="metadata.version", level=18, change=LevelChange.SAFE_DOWNGRADE)
    for machine in quorum.followers:
        request = machine_registration(machine)
        quorum.call(request)
    accepted(quorum, UpdateFeaturesRequest(updates=(change,)))


def machine_registration(machine) -> object:
    request = own_registration(machine.node.ledger.committed.image, machine.node.config, b"x" * 16)
    assert request is not None
    return request


WRITERS: dict[str, tuple[Callable[[Quorum], None] | None, tuple[type, ...]]] = {
    "the first records of a cluster": (
        None,
        (
            records.BeginTransactionRecord,
            records.EndTransactionRecord,
            records.FeatureLevelRecord,
            records.ZkMigrationStateRecord,
            records.ControllerRecord,
        ),
    ),
    "a broker registers and heartbeats": (start, (records.BrokerRecord, records.UnfenceBrokerRecord)),
    "topics are created and deleted": (
        topics,
        (records.TopicRecord, records.PartitionRecord, records.RemoveTopicRecord),
    ),
    "producer ids are allocated": (producer_ids, (records.ProducerIdsRecord,)),
    "feature levels change": (levels, (records.FeatureLevelRecord,)),
    "configurations change": (configs, (records.ConfigRecord,)),
    "credentials are set and deleted": (
        credentials,
        (records.UserScramCredentialRecord, records.RemoveUserScramCredentialRecord),
    ),
    "quotas change": (quotas, (records.ClientQuotaRecord,)),
    "entries are added and removed": (
        acls,
        (records.AccessControlEntryRecord, records.RemoveAccessControlEntryRecord),
    ),
    "tokens are created and expire": (
        tokens,
        (records.DelegationTokenRecord, records.RemoveDelegationTokenRecord),
    ),
    "a broker shuts down, another is unregistered": (
        shut_down_and_fence,
        (
            records.BrokerRegistrationChangeRecord,
            records.PartitionChangeRecord,
            records.FenceBrokerRecord,
            records.UnregisterBrokerRecord,
        ),
    ),
}

ELSEWHERE = {
    records.NoOpRecord: "an idle active controller",
    records.AbortTransactionRecord: "a new active controller that finds a transaction open",
    records.ClearElrRecord: "Kafka: here, changes of partitions say it",
    records.UnregisterControllerRecord: "Kafka 4.4",
}


def test_every_record_type_has_a_writer() -> None:
    quorum = Quorum(config=CONFIG)
    quorum.elect()
    written: set[type] = set()
    for title, (act, types) in WRITERS.items():
        begin = quorum.leader.end_offset if act else 0
        if act is not None:
            act(quorum)
        found = {type(record) for record in quorum.records(begin)}
        assert found.issuperset(types), f"{title}: {set(types) - found} were not written"
        written |= found
    quorum.advance(2_000)
    missing = {each.__name__ for each in set(get_args(records.Record)) ^ (written | set(ELSEWHERE))}
    assert not missing, f"add what writes it to WRITERS, or who else does to ELSEWHERE: {missing}"


def test_no_op_and_abort_records_have_one_too() -> None:
    quorum = Quorum(config=CONFIG)
    quorum.elect()
    before = quorum.leader.node.counters.records_appended
    quorum.advance(2_000)
    assert quorum.leader.node.counters.records_appended >= before + 3  # NoOp records alone move it
    state = replay_records(
        ReplayState(image_of()),
        base_offset=1,
        epoch=1,
        timestamp_ms=0,
        records=[records.BeginTransactionRecord(name="x")],
    )
    assert state.transaction is not None
    abort = abort_record(state.transaction)
    assert isinstance(abort, records.AbortTransactionRecord)
    after = replay_records(state, base_offset=2, epoch=1, timestamp_ms=0, records=[abort])
    assert after.transaction is None


def test_tokens_that_are_over_are_swept() -> None:
    config = replace(
        CONFIG, delegation_token_expiry_time_ms=1_000, delegation_token_expiry_check_interval_ms=500
    )
    quorum = Quorum(config=config)
    quorum.elect()
    token = quorum.call(CreateTokenRequest(requester="User:a"))
    assert isinstance(token, CreateTokenResponse)
    quorum.advance(900)
    assert token.token_id in quorum.image().delegation_tokens
    quorum.advance(1_000)
    assert len(quorum.image().delegation_tokens) == 0
    assert quorum.records()[-1] == records.RemoveDelegationTokenRecord(token_id=token.token_id)


def test_an_active_controller_registers_itself_as_soon_as_the_level_allows() -> None:
    low = (records.FeatureLevelRecord(name="metadata.version", feature_level=14),)
    quorum = Quorum(config=replace(CONFIG, bootstrap=low))
    leader = quorum.elect()
    quorum.settle()
    assert quorum.image().controllers == {}
    update = FeatureUpdate(name="metadata.version", level=19)
    accepted(quorum, UpdateFeaturesRequest(updates=(update,)))
    assert quorum.image().features.metadata_version == 19
    assert set(quorum.image().controllers) == {leader.node_id}
    accepted(quorum, scram_request())
    refused = quorum.call(UpdateFeaturesRequest(updates=(FeatureUpdate(name="metadata.version", level=20),)))
    assert isinstance(refused, SettingsResponse)
    assert "has not registered" in (refused.results[0].message or "")
    for machine in quorum.followers:
        quorum.call(machine_registration(machine))
    accepted(quorum, UpdateFeaturesRequest(updates=(FeatureUpdate(name="metadata.version", level=20),)))


def scram_request() -> AlterScramRequest:
    upsertion = ScramUpsertion(user="a", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p")
    return AlterScramRequest(upsertions=(upsertion,))


def test_settings_survive_a_change_of_leader() -> None:
    quorum = Quorum(config=CONFIG)
    first = quorum.elect()
    accepted(quorum, scram_request())
    quotas(quorum)
    image = quorum.image()
    first.kill()
    second = quorum.elect()
    quorum.settle()
    assert second is not first
    assert quorum.image().scram == image.scram and quorum.image().quotas == image.quotas
    # The new active controller said who it is, and the old one's registration is kept.
    assert set(quorum.image().controllers) == {first.node_id, second.node_id}
