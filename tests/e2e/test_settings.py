"""Feature levels and controllers' registrations with real processes: every voter registers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metaquorum.clients.admin.cluster import update_features
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import MAX_METADATA_VERSION
from metaquorum.metadata.requests.settings import FeatureUpdate, SettingResult
from tests.e2e.cluster import FAST_BROKERS, Cluster

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("settings"), controllers=3, brokers=1, properties=FAST_BROKERS
    ) as running:
        running.start()
        yield running
        running.assert_no_bugs()


def upgrade(cluster: Cluster, level: int) -> SettingResult:
    update = FeatureUpdate(name="metadata.version", level=level)
    return cluster.kafka(lambda client: update_features(client, [update]))[0]


def test_a_level_is_finalized_once_every_controller_has_said_that_it_can(cluster: Cluster) -> None:
    def upgraded() -> bool:
        return upgrade(cluster, 20).error is ErrorCode.NONE

    cluster.wait(upgraded, "every controller registers, and the level is raised")
    stays = upgrade(cluster, MAX_METADATA_VERSION + 1)
    assert stays.error is ErrorCode.INVALID_UPDATE_VERSION
    # The records are in the log: a restart changes nothing, and each new process registers again.
    quorum = cluster.quorum()
    cluster.kill_all(cluster.controllers)
    for node in cluster.controllers:
        node.start()
    cluster.wait_leader(after_epoch=quorum.leader_epoch)
    cluster.wait(lambda: upgrade(cluster, 21).error is ErrorCode.NONE, "the level is raised again")
