"""Kafka's names for what a controller says of its role and vote."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from metaquorum.cli.server_commands import brokers_by_state, metrics
from metaquorum.metadata.requests.status import BrokerControlState
from tests.unit.observability.test_node_codec import BROKER, STATUS


@pytest.mark.parametrize(
    ("role", "voted_id", "is_observer", "state", "vote"),
    [
        ("leader", 3000, False, "leader", 3000),
        ("candidate", 3000, False, "candidate", 3000),
        ("prospective", 3001, False, "prospective", -1),
        ("follower", 3001, False, "follower", -1),
        ("follower", None, True, "observer", -1),
        ("unattached", 0, False, "voted", 0),
        ("unattached", None, False, "unattached", -1),
        ("resigned", 3000, False, "unattached", -1),
    ],
)
def test_state_and_vote(role: str, voted_id: int | None, is_observer: bool, state: str, vote: int) -> None:
    found = metrics(replace(STATUS, role=role, voted_id=voted_id, is_observer=is_observer, leader_id=None))
    assert (found["current-state"], found["current-vote"]) == (state, vote)
    assert found["current-leader"] == -1


def test_offsets_of_records_are_inclusive_and_brokers_are_fenced_or_active() -> None:
    brokers = tuple(
        replace(BROKER, broker_id=at, state=state) for at, state in enumerate(BrokerControlState, start=0)
    )
    brokers = tuple(broker for broker in brokers if broker.state is not BrokerControlState.UNREGISTERED)
    status = replace(STATUS, brokers=brokers)
    found = metrics(status)
    assert (found["LastCommittedRecordOffset"], found["LastAppliedRecordOffset"]) == (88, 98)
    assert (found["high-watermark"], found["log-end-offset"]) == (90, 2**50)
    assert (found["FencedBrokerCount"], found["ActiveBrokerCount"]) == (2, 2)
    assert brokers_by_state(status) == {"active": 1, "controlled shutdown": 1, "fenced": 1, "shutdown": 1}
