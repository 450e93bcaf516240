"""From which level on controllers register, when metadata.version stays, and what is so unless it is set."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from metaquorum.controller.brokers.broker_ids import decide_allocation
from metaquorum.controller.brokers.brokers import decide_register_controller
from metaquorum.controller.settings.feature_levels import decide_update_features
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import ZkMigrationStateRecord
from metaquorum.metadata.requests.common import AllocateBrokerIdRequest, AllocateBrokerIdResponse, Done
from metaquorum.metadata.requests.settings import (
    FeatureUpdate,
    LevelChange,
    RegisterControllerRequest,
    UpdateFeaturesRequest,
)
from tests.unit.controller.node_quorum import Quorum, image_of
from tests.unit.controller.test_settings_decisions import ALL, BROKER, update


@pytest.mark.parametrize(("level", "allowed"), [(14, False), (15, True), (16, True)])
def test_controllers_register_from_the_level_on_that_can_carry_them(level: int, allowed: bool) -> None:
    request = RegisterControllerRequest(controller_id=3, incarnation_id=b"i" * 16, endpoints=(), features=())
    result = decide_register_controller(image_of(level=level), request)
    assert (result.response == Done()) == allowed == bool(result.records)


@pytest.mark.parametrize("static_voters", [None, frozenset({3})])
def test_a_combined_node_registers_both_of_its_roles(static_voters: frozenset[int] | None) -> None:
    quorum = Quorum(1)
    quorum.elect()
    quorum.start_broker(3)
    request = RegisterControllerRequest(controller_id=3, incarnation_id=b"i" * 16, endpoints=(), features=())
    image = quorum.leader.node.ledger.committed.image
    result = decide_register_controller(image, request, static_voters=static_voters)
    assert 3 in image.brokers and result.response == Done() and len(result.records) == 1


@pytest.mark.parametrize(("state", "allowed"), [(0, True), (1, False), (2, False), (3, True)])
def test_metadata_version_stays_while_a_migration_goes_on(state: int, allowed: bool) -> None:
    image = image_of(ZkMigrationStateRecord(zk_migration_state=state), level=14)
    update = UpdateFeaturesRequest(updates=(FeatureUpdate(name="metadata.version", level=15),))
    result = decide_update_features(image, update, node_id=1, voters=frozenset({1}))
    assert bool(result.records) == allowed


DEFAULTS = {
    "broker_session_timeout_ms": 9_000,
    "broker_metadata_lag_timeout_ms": 30_000,
    "metadata_max_idle_interval_ms": 500,
    "delegation_token_max_lifetime_ms": 604_800_000,
    "delegation_token_expiry_time_ms": 86_400_000,
    "delegation_token_expiry_check_interval_ms": 3_600_000,
    "reserved_broker_max_id": 1_000,
    "broker_id_reuse_grace_ms": 300_000,
    "broker_id_gc_interval_ms": 60_000,
    "num_partitions": 1,
    "default_replication_factor": 1,
    "auto_leader_rebalance_enable": True,
    "leader_imbalance_check_interval_ms": 300_000,
    "unclean_leader_election_enable": False,
    "records_per_request_max": 50_000,
    "records_per_slice_max": 5_000,
    "answers_max": 10_000,
    "waiting_requests_max": 1_000,
    "controller_quota_window_num": 11,
    "controller_quota_window_size_seconds": 1,
    "metadata_log_causes_enable": True,
}


def test_defaults_of_a_controller() -> None:
    config = ControllerConfig(cluster_id="c", node_id=0)
    numbers = {
        each.name: value
        for each in fields(config)
        if isinstance(value := getattr(config, each.name), int) and each.name != "node_id"
    }
    assert numbers == DEFAULTS, "a new setting: say its default here"


@pytest.mark.parametrize(
    ("following", "given"), [(2**31 - 2, 2**31 - 2), (2**31 - 1, 2**31 - 1), (2**31, None)]
)
def test_ids_of_brokers_go_up_to_the_last_one(following: int, given: int | None) -> None:
    image = image_of(ids.next_id_record(following))
    presence: Any = SimpleNamespace(voters=frozenset())
    request = AllocateBrokerIdRequest(request_id=b"r" * 16)
    config = ControllerConfig(cluster_id="c", node_id=0)
    response = decide_allocation(image, request, config, presence).response
    if given is None:
        assert isinstance(response, ApiError) and response.code is ErrorCode.POLICY_VIOLATION
    else:
        assert isinstance(response, AllocateBrokerIdResponse) and response.broker_id == given


def test_an_upgrade_that_a_dead_broker_blocks_names_the_way_out() -> None:
    result = update(image_of(structs.replace(BROKER, fenced=True), *ALL, level=15), 20, LevelChange.UPGRADE)
    assert result.response.results[0].message.endswith(
        "if it is gone for good, metaquorum brokers unregister 4"
    )
