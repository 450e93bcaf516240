"""Settings on a quorum of nodes: mixed feature levels, limits, and answers that wait for their commit."""

from __future__ import annotations

from dataclasses import replace

from metaquorum.controller.brokers.brokers import own_registration
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ConfigResource
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import BrokerFeature, ConfigRecord, FeatureLevelRecord
from metaquorum.metadata.requests import settings
from metaquorum.metadata.requests.common import DeleteTopicsRequest, RegisterBrokerResponse
from tests.unit.controller.node_quorum import CLUSTER, Quorum

CONFIG = ControllerConfig(
    cluster_id=CLUSTER,
    node_id=0,
    bootstrap=(FeatureLevelRecord(name="metadata.version", feature_level=10),),
)


def elected(config: ControllerConfig = CONFIG) -> Quorum:
    quorum = Quorum(config=config)
    quorum.elect()
    quorum.settle()
    return quorum


def results(response: object) -> tuple[settings.SettingResult, ...]:
    assert isinstance(response, settings.SettingsResponse), response
    return response.results


def move(
    quorum: Quorum, level: int, change: settings.LevelChange = settings.LevelChange.UPGRADE
) -> ErrorCode:
    update = settings.FeatureUpdate(name="metadata.version", level=level, change=change)
    return results(quorum.call(settings.UpdateFeaturesRequest(updates=(update,))))[0].error


def configure(resource: ConfigResource, name: str, value: str) -> settings.AlterConfigsRequest:
    op = settings.ConfigOp(kind=settings.OpKind.SET, name=name, value=value)
    return settings.AlterConfigsRequest(changes=(settings.ConfigChange(resource=resource, ops=(op,)),))


def supports(high: int) -> dict[str, object]:
    return {"features": (BrokerFeature("metadata.version", 1, high),)}


def test_a_rolling_upgrade_of_nodes_at_two_levels() -> None:
    """Step 1 new code at the old level, step 2 the new level; an old broker holds step 2 back, and after it
    cannot join any more (S1.22)."""
    quorum = elected()
    for broker_id, high in ((1, 10), (2, 25)):
        assert isinstance(quorum.register(broker_id, **supports(high)), RegisterBrokerResponse)
        quorum.heartbeat(broker_id)
    assert quorum.image().brokers[2].directories == ()  # the old level cannot carry them
    assert move(quorum, 14) is ErrorCode.INVALID_UPDATE_VERSION
    upsertion = settings.ScramUpsertion(
        user="a", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p"
    )
    scram = settings.AlterScramRequest(upsertions=(upsertion,))
    assert results(quorum.call(scram))[0].error is ErrorCode.UNSUPPORTED_VERSION

    quorum.beat_for(10_000, 2)  # broker 1 is stopped, upgraded and started
    assert isinstance(quorum.register(1, 2, **supports(25)), RegisterBrokerResponse)
    epochs = {broker_id: known.epoch for broker_id, known in quorum.image().brokers.items()}
    assert move(quorum, 14) is ErrorCode.NONE
    assert quorum.image().features.metadata_version == 14
    assert results(quorum.call(scram))[0].error is ErrorCode.NONE
    refused = quorum.register(3, **supports(10))
    assert isinstance(refused, ApiError) and refused.code is ErrorCode.UNSUPPORTED_VERSION
    assert move(quorum, 12, settings.LevelChange.SAFE_DOWNGRADE) is ErrorCode.INVALID_UPDATE_VERSION
    # Broker 2, the same process, says what the new level can carry; nothing else changes for it.
    for machine in quorum.followers:
        said = own_registration(quorum.image(), machine.node.config, machine.node.incarnation_id)
        assert said is None  # controllers register from 3.7-IV0 on
    assert move(quorum, 19) is ErrorCode.NONE
    assert isinstance(quorum.register(2, **supports(25)), RegisterBrokerResponse)
    told = quorum.image().brokers[2]
    assert len(told.directories) == 1 and told.epoch == epochs[2] and not told.fenced
    for machine in quorum.machines.values():
        assert machine.node.ledger.committed.image == quorum.image()


def test_a_new_leader_knows_the_level_and_says_who_it_is() -> None:
    quorum = elected()
    assert move(quorum, 19) is ErrorCode.NONE
    first = quorum.leader
    first.kill()
    second = quorum.elect()
    quorum.settle()
    known = quorum.image().controllers
    assert known[first.node_id].incarnation_id == first.node.incarnation_id
    assert known[second.node_id].incarnation_id == second.node.incarnation_id
    first.boot()
    quorum.advance(1_000)
    # It is another process now, and is not registered as such before it asks.
    assert quorum.image().controllers[first.node_id].incarnation_id != first.node.incarnation_id
    assert move(quorum, 20) is ErrorCode.INVALID_UPDATE_VERSION  # the third one never registered


def test_a_request_that_no_batch_can_hold_is_refused_and_harms_nothing() -> None:
    quorum = elected()
    huge = configure(ConfigResource(16, "m"), "metrics", "x" * (9 * 1024 * 1024))
    refused = quorum.call(huge)
    assert isinstance(refused, ApiError) and refused.code is ErrorCode.POLICY_VIOLATION
    small = configure(ConfigResource(16, "m"), "metrics", "x")
    assert results(quorum.call(small))[0].error is ErrorCode.NONE
    limited = elected(replace(CONFIG, records_per_request_max=0))
    assert results(limited.call(small))[0].error is ErrorCode.POLICY_VIOLATION


def test_answers_wait_for_the_commit() -> None:
    quorum = elected()
    leader = quorum.leader
    for machine in quorum.followers:
        quorum.disconnect(machine.node_id)
    request = configure(ConfigResource(16, "m"), "interval.ms", "200")
    key = quorum.request(request)
    wrong = quorum.request(configure(ConfigResource(2, "gone"), "flush.ms", "1"))
    quorum.settle()
    assert key not in leader.answers and wrong not in leader.answers
    for machine in quorum.machines.values():
        quorum.reconnect(machine.node_id)
    quorum.advance(1_000)
    assert results(leader.answers[key])[0].error is ErrorCode.NONE
    assert results(leader.answers[wrong])[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_takes_its_configuration_with_it() -> None:
    quorum = elected()
    quorum.start_broker(1)
    topic_id = quorum.create("orders", (1,))
    resource = ConfigResource(2, "orders")
    assert results(quorum.call(configure(resource, "flush.ms", "1")))[0].error is ErrorCode.NONE
    assert quorum.image().configs[resource] == {"flush.ms": "1"}
    quorum.call(DeleteTopicsRequest(topics=(topic_id,)))
    assert resource not in quorum.image().configs
    quorum.create("orders", (1,))
    assert resource not in quorum.image().configs
    written = [record for record in quorum.records() if isinstance(record, ConfigRecord)]
    assert [record.value for record in written] == ["1"]  # the removal of the topic says the rest
