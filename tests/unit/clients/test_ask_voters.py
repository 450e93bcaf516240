"""Whom `log check --bootstrap` asks about the voters, beside the leader."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaquorum.clients.kafka.live_log import LiveSource, ask_voters
from metaquorum.clients.kafka.observer import AskNode, LiveLog, LocateQuorum, NothingHeard, QuorumNodes
from metaquorum.clients.kafka.quorum import VoterEnd
from metaquorum.clients.search import Address
from metaquorum.raft.messages import FetchResponse, RaftError
from tests.unit.clients.metadata_leader import ADDRESSES

BROKER = ("127.0.0.1", 9101)
SILENT_BROKER = ("127.0.0.1", 9102)
LOG = LiveLog(
    cluster_id=None,
    leader_id=1,
    epoch=4,
    address=ADDRESSES[1],
    start_offset=0,
    end_offset=100,
    snapshot=None,
    last_epoch=4,
)


class Quorum:
    """Controllers that name no address, as Apache Kafka's to a principal without Alter, and a broker whose
    configuration names those of the voters."""

    located: list[Address]

    def __init__(self, source: LiveSource) -> None:
        type(self).located = []

    async def result(self, step: LocateQuorum | AskNode) -> Any:
        if isinstance(step, AskNode):
            return FetchResponse(error=RaftError.NOT_LEADER_OR_FOLLOWER, epoch=4, leader_id=1)
        self.located.append(step.address)
        if step.address == SILENT_BROKER:
            return NothingHeard(text="no answer in time")
        known = ADDRESSES if step.address == BROKER else {}
        return QuorumNodes(controllers=known, is_controller=step.address != BROKER)

    async def voters(self, address: Address) -> list[VoterEnd]:
        return [VoterEnd(node_id, 100) for node_id in ADDRESSES]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ((SILENT_BROKER, BROKER, ADDRESSES[2]), {1, 2, 3}),
        ((ADDRESSES[1], ADDRESSES[2]), {1}),
    ],
)
def test_a_broker_names_voters_that_no_controller_names(
    monkeypatch: pytest.MonkeyPatch, given: tuple[Address, ...], asked: set[int]
) -> None:
    monkeypatch.setattr("metaquorum.clients.kafka.live_log._Nodes", Quorum)
    reports = asyncio.run(ask_voters(LiveSource(addresses=given, timeout_ms=1_000), LOG))
    assert {each.node_id for each in reports if each.is_in_order} == asked
    assert [each.address for each in reports if each.node_id in asked] == [ADDRESSES[each] for each in asked]
    assert ADDRESSES[2] not in Quorum.located or BROKER not in given
