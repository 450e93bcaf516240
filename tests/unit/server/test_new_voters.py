"""What a node that is to become a voter is asked first, and how long it may take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.controller.server import voter_changes as module
from metaquorum.controller.server.voter_changes import PROBE_TIMEOUT_MS, VoterChanges
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.requests.voters import AddRaftVoterRequest
from metaquorum.runtime.api.node import NodeReport
from metaquorum.runtime.client.nodes import NodeAnswer
from metaquorum.runtime.driver.statistics import LoopStatistics
from tests.unit.controller.node_quorum import Quorum
from tests.unit.runtime.test_node_codec import STATUS

ENDPOINTS = (VoterEndpoint("IN", "a", 1), VoterEndpoint("OUT", "b", 2))
VOTER = Voter(STATUS.node_id, STATUS.directory_id, ENDPOINTS)
REQUEST = AddRaftVoterRequest(voter=VOTER, cluster_id=STATUS.cluster_id)
SAME = replace(STATUS, kraft_version=1, min_kraft_version=0, max_kraft_version=1)


class Nodes:
    """`answers`: what each address says, or why it does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.asked: list[tuple[Any, int]] = []
        self._answers = answers
        monkeypatch.setattr(module, "describe_nodes", self.describe)

    async def describe(self, addresses: Sequence[Any], *, timeout_ms: int, tls: object) -> list[NodeAnswer]:
        self.asked.append((list(addresses), timeout_ms))
        return [
            NodeAnswer(address=address, problem=said)
            if isinstance(said, str)
            else NodeAnswer(address=address, report=NodeReport(status=said, loop=LoopStatistics()))
            for address, said in zip(addresses, self._answers, strict=True)
        ]


def changes() -> VoterChanges:
    unused: Any = None
    return VoterChanges(unused, Quorum(size=1).elect().node.raft, STATUS.cluster_id, None)


@pytest.mark.parametrize(
    ("asked_ms", "given_ms"), [(0, 1), (-5, 1), (1, 1), (700, 700), (600_000, PROBE_TIMEOUT_MS)]
)
async def test_it_has_as_long_as_who_asks_waits(
    asked_ms: int, given_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch, SAME, SAME)
    found = await changes()._probe(replace(REQUEST, timeout_ms=asked_ms))
    assert nodes.asked == [([("a", 1), ("b", 2)], given_ms)]
    supported = replace(VOTER, kraft_version_feature=KRaftVersionFeature(0, 1))
    assert found == replace(REQUEST, timeout_ms=asked_ms, voter=supported)


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ("refused", ErrorCode.REQUEST_TIMED_OUT, "voter 3000 does not answer at b:2 (refused)"),
        (
            replace(SAME, cluster_id="other"),
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"the node at a:1 or b:2 belongs to cluster other, not {STATUS.cluster_id}",
        ),
        (replace(SAME, node_id=0), ErrorCode.INVALID_REQUEST, "node 0 answers at a:1 or b:2, not node 3000"),
        (
            replace(SAME, directory_id=bytes(16)),
            ErrorCode.INVALID_VOTER_KEY,
            "has directory id AAAAAAAAAAAAAAAA",
        ),
    ],
)
async def test_every_address_must_be_the_voters(
    said: Any, code: ErrorCode, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Nodes(monkeypatch, SAME, said)
    found = await changes()._probe(REQUEST)
    assert isinstance(found, ApiError) and found.code is code and text in found.message


async def test_it_needs_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    found = await changes()._probe(replace(REQUEST, voter=replace(VOTER, endpoints=())))
    assert isinstance(found, ApiError) and found.code is ErrorCode.INVALID_REQUEST
    assert nodes.asked == []


@pytest.mark.parametrize(("level", "fits"), [(0, False), (1, True), (2, True), (3, False)])
def test_it_can_work_at_the_level_of_the_quorum(level: int, fits: bool) -> None:
    voter = replace(VOTER, kraft_version_feature=KRaftVersionFeature(1, 2))
    assert (module._too_old(voter, level) is None) == fits


@pytest.mark.parametrize(
    ("cluster_id", "code"),
    [
        ("other", ErrorCode.INCONSISTENT_CLUSTER_ID),
        *[(at, ErrorCode.UNSUPPORTED_VERSION) for at in (None, STATUS.cluster_id)],
    ],
)
def test_a_request_of_another_cluster_is_refused_before_anybody_is_asked(
    cluster_id: str | None, code: ErrorCode
) -> None:
    found = changes()._why_not_here(replace(REQUEST, cluster_id=cluster_id))
    assert found is not None and found.code is code  # voters are configured here
