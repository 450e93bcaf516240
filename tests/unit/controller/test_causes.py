"""Each batch begins with who or what caused it: the request that did, or the rule of a step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from metaquorum.controller.active.outcome import (
    RULES,
    STEP_RULES,
    BalanceLeaders,
    FailDirectories,
    RemoveBroker,
    Step,
    Work,
    is_new_work,
)
from metaquorum.controller.features import LEVEL_NO_OP
from metaquorum.metadata.image import METADATA_VERSION
from metaquorum.metadata.inspect.causes.table import WRITTEN
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.batch_cause import BatchCause, cause_in
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.types import BrokerRecord, FeatureLevelRecord, NoOpRecord
from metaquorum.metadata.requests.common import CreateTopicsRequest, NewTopic, UnregisterBrokerRequest
from metaquorum.metadata.requests.settings import FeatureUpdate, LevelChange, UpdateFeaturesRequest
from metaquorum.storage.batches.batch import iter_batches
from tests.unit.controller.node_quorum import CLUSTER, Quorum


def quorum_of(
    *, slice_max: int = 1_000, level: int = 19, size: int = 1, on: bool = True, idle_ms: int = 500
) -> Quorum:
    config = ControllerConfig(
        cluster_id=CLUSTER,
        node_id=0,
        bootstrap=(FeatureLevelRecord(METADATA_VERSION, level),),
        records_per_slice_max=slice_max,
        metadata_log_causes_enable=on,
        metadata_max_idle_interval_ms=idle_ms,
    )
    quorum = Quorum(size=size, config=config)
    quorum.elect()
    quorum.settle()
    return quorum


def topics(*names: str, partitions: int = 1) -> CreateTopicsRequest:
    assignments = tuple((1,) for _ in range(partitions))
    return CreateTopicsRequest(topics=tuple(NewTopic(name=name, assignments=assignments) for name in names))


def named(quorum: Quorum, start: int) -> list[tuple[str | None, str | None]]:
    return [(each.request, each.rule) if each else (None, None) for each in quorum.causes(start)]


def batches(quorum: Quorum) -> list[list[object]]:
    """Every batch of data as it is in the log."""
    return [
        [decoded.record for decoded in decode_batch(batch)]
        for _, _, data in quorum.leader.log
        for batch in iter_batches(data)
        if not batch.header.is_control
    ]


def test_every_step_has_a_rule_or_needs_none() -> None:
    assert set(Step) - STEP_RULES.keys() == {Step.BOOTSTRAP, Step.NO_OP, Step.WORK}
    assert RULES.issuperset(STEP_RULES.values())
    assert RULES == {rule.name for rule in WRITTEN.rules}, "`log why --rules` explains each"


def test_a_batch_has_one_cause_before_its_records_and_an_idle_one_has_none() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    quorum.call(topics("a", "b", "c"))
    quorum.advance(2_000)
    seen = 0
    for records in batches(quorum)[1:]:
        found = [cause_in(record) for record in records]
        if len(records) == 1:
            assert records == [NoOpRecord()]
        else:
            seen += 1
            assert found[0] is not None and found[1:] == [None] * (len(records) - 1)
    assert seen >= 4


def test_a_refused_request_leaves_no_cause() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    quorum.call(topics("a"))
    end = quorum.leader.end_offset
    quorum.call(topics("a"))
    quorum.call(UnregisterBrokerRequest(broker_id=9))
    assert quorum.leader.end_offset == end


def test_a_broker_that_falls_silent_is_fenced_by_a_rule_slice_by_slice() -> None:
    quorum = quorum_of(slice_max=2)
    quorum.start_broker(1)
    quorum.start_broker(2)
    quorum.create("t", *[(1, 2)] * 7)
    start = quorum.leader.end_offset
    quorum.beat_for(12_000, 2)
    assert named(quorum, start) == [(None, "session-expired")] * 4


def test_an_operator_who_joins_a_removal_is_the_cause_of_its_rest() -> None:
    """From then on the broker is unregistered, which no silence asks for."""
    quorum = quorum_of(slice_max=2)
    quorum.start_broker(1)
    quorum.start_broker(2)
    quorum.create("t", *[(1, 2)] * 9)
    start = quorum.leader.end_offset
    quorum.request(quorum.heartbeat_request(1, want_fence=True), client_id="broker")
    quorum.leader.step()
    quorum.request(UnregisterBrokerRequest(broker_id=1), client_id="operator")
    quorum.leader.step()
    quorum.settle()
    quorum.advance(1_000)
    found = [each.client_id for each in quorum.causes(start) if each is not None]
    assert found[0] == "broker" and set(found[found.index("operator") :]) == {"operator"}
    assert named(quorum, start)[0] == ("BrokerHeartbeat", "fence-requested")


REMOVAL = RemoveBroker(broker_id=1, epoch=5)
FAILURE = FailDirectories(broker_id=1, epoch=5, directories=frozenset([b"a" * 16]))


@pytest.mark.parametrize(
    ("before", "work", "is_new"),
    [
        (None, REMOVAL, True),
        (REMOVAL, replace(REMOVAL, reported_ms=9, unregister_keys=(3,)), False),
        (REMOVAL, replace(REMOVAL, unregister=True), True),
        (REMOVAL, replace(REMOVAL, unclean=True), True),
        (replace(REMOVAL, unclean=True, unregister=True), replace(REMOVAL, unclean=True), True),
        (None, FAILURE, True),
        (FAILURE, replace(FAILURE), False),
        (FAILURE, replace(FAILURE, directories=FAILURE.directories | {b"b" * 16}), True),
        (BalanceLeaders(), BalanceLeaders(), False),
    ],
)
def test_who_makes_work_do_more_is_the_cause_of_its_rest_and_nobody_else(
    before: Work | None, work: Work, is_new: bool
) -> None:
    assert is_new_work(before, work) is is_new


def test_a_request_that_waited_for_a_fence_keeps_its_cause() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    quorum.start_broker(2)
    quorum.create("t", (1, 2))
    quorum.create("u", (1,))
    quorum.heartbeat(1, want_shutdown=True)
    start = quorum.leader.end_offset
    quorum.register(1, 2)
    assert named(quorum, start) == [("RegisterBroker", "new-incarnation"), ("RegisterBroker", None)]
    (first, record) = batches(quorum)[-1][:2]
    assert cause_in(first) == quorum.causes(start)[-1]
    assert isinstance(record, BrokerRecord)


def test_a_new_leader_has_its_own_causes_and_keeps_those_of_the_log() -> None:
    quorum = quorum_of(size=3)
    quorum.start_broker(1)
    quorum.call(topics("a"))
    before = quorum.causes()
    quorum.leader.kill()
    quorum.elect()
    quorum.start_broker(2)
    after = quorum.causes()
    assert after[: len(before)] == before
    assert ("RegisterBroker", None) in named(quorum, 0)[len(before) :]


def test_what_is_written_without_a_known_caller_has_no_cause() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    start = quorum.leader.end_offset
    machine = quorum.leader
    quorum.request(topics("a"))
    arrived = machine.inbox.pop()
    machine.inbox.append(
        type(arrived)(key=arrived.key, arrived_ms=arrived.arrived_ms, request=arrived.request)
    )
    quorum.settle()
    assert quorum.causes(start) == [None]


def test_switched_off() -> None:
    quorum = quorum_of(on=False)
    quorum.start_broker(1)
    quorum.call(topics("a"))
    quorum.advance(12_000)
    assert quorum.causes() and set(quorum.causes()) == {None}


def test_many_partitions_are_written_in_bulk_behind_one_cause() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    start = quorum.leader.end_offset
    quorum.call(topics("t", partitions=2_000))
    assert named(quorum, start) == [("CreateTopics", None)]
    assert len(batches(quorum)[-1]) == 2_002
    assert quorum.image().topics.partition_count == 2_000


def test_the_longest_names_fit() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    start = quorum.leader.end_offset
    quorum.request(topics("t"), client_id="é" * 32_000)
    quorum.settle()
    (cause,) = quorum.causes(start)
    assert isinstance(cause, BatchCause) and cause.client_id is not None
    assert len(cause.client_id.encode()) <= 255 and cause.client_id.endswith("é...")


@pytest.mark.parametrize(("level", "has"), [(LEVEL_NO_OP - 1, False), (LEVEL_NO_OP, True)])
def test_readers_of_old_levels_meet_no_no_op_record(level: int, has: bool) -> None:
    quorum = quorum_of(level=level)
    quorum.start_broker(1)
    assert any(each is not None for each in quorum.causes()) is has
    assert has or not any(isinstance(each, NoOpRecord) for records in batches(quorum) for each in records)


def test_the_batch_that_raises_the_level_is_the_first_with_a_cause() -> None:
    quorum = quorum_of(level=LEVEL_NO_OP - 1)
    start = quorum.leader.end_offset
    raised = FeatureUpdate(name=METADATA_VERSION, level=LEVEL_NO_OP, change=LevelChange.UPGRADE)
    quorum.call(UpdateFeaturesRequest(updates=(raised,)))
    assert named(quorum, start) == [("UpdateFeatures", None)]
    assert quorum.image().features.metadata_version == LEVEL_NO_OP
