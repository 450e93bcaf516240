"""AddRaftVoter and RemoveRaftVoter at a controller's listener: the same changes as over gRPC (KIP-853)."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.controller.server.forwarding_service import KafkaCalls
from metaquorum.listeners.forwarded.api import Call
from metaquorum.listeners.forwarded.cluster import add_raft_voter, remove_raft_voter
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.listeners.rights import CHECKS_OF_CONTROLLERS
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.control import Voter, VoterEndpoint
from metaquorum.metadata.requests.common import AddRaftVoterRequest, Done, Mutator, RemoveRaftVoterRequest
from metaquorum.wire import messages as wire

DIRECTORY = bytes(range(16))
LISTENER = wire.AddRaftVoterRequest.Listener(name="KAFKA", host="h", port=9095)
ADD = wire.AddRaftVoterRequest(
    cluster_id="c", timeout_ms=500, voter_id=4, voter_directory_id=DIRECTORY, listeners=(LISTENER,)
)
REMOVE = wire.RemoveRaftVoterRequest(cluster_id="c", voter_id=4, voter_directory_id=DIRECTORY)
ADDED = AddRaftVoterRequest(
    voter=Voter(4, DIRECTORY, (VoterEndpoint("KAFKA", "h", 9095),)), cluster_id="c", timeout_ms=500
)
REMOVED = RemoveRaftVoterRequest(voter_id=4, voter_directory_id=DIRECTORY, cluster_id="c")
TWICE = ApiError(ErrorCode.DUPLICATE_VOTER, "4 is already a voter")


@pytest.mark.parametrize(
    ("handle", "body", "wanted"),
    [(add_raft_voter.handle, ADD, ADDED), (remove_raft_voter.handle, REMOVE, REMOVED)],
)
async def test_a_change_is_asked_of_the_quorum(handle: Any, body: Any, wanted: Any) -> None:
    asked: list[Any] = []
    answers: list[Any] = [Done(), TWICE]

    async def ask(request: Any) -> Any:
        asked.append(request)
        return answers.pop(0)

    call = Call(version=0, ask=ask, wall_ms=0, image=MetadataImage())
    done = await handle(body, call)
    assert (done.error_code, done.error_message) == (0, None)
    refused = await handle(body, call)
    assert (refused.error_code, refused.error_message) == (126, "4 is already a voter")
    assert asked == [wanted, wanted]


async def test_changes_of_voters_do_not_go_to_the_core_directly() -> None:
    """A new voter is asked who it is before."""

    asked: list[Any] = []

    class Changes:
        async def change(self, request: Any) -> Any:
            asked.append(request)
            return Done()

    changes: Any = Changes()
    inbox: Any = None
    calls = KafkaCalls(inbox, changes, image=MetadataImage, static={}, token_key=None, wall_ms=lambda: 0)
    for request in (ADDED, REMOVED):
        assert await calls.ask(Mutator(user="", client_id="", strict=False), request) == Done()
    assert asked == [ADDED, REMOVED]


def test_brokers_forward_them_and_they_need_alter() -> None:
    changes = {"AddRaftVoter", "RemoveRaftVoter"}
    assert changes <= FORWARDED.keys()
    assert all(CHECKS_OF_CONTROLLERS[name] == CHECKS_OF_CONTROLLERS["UpdateFeatures"] for name in changes)
