"""What a replica remembers of other directories: which it forgets first, which requests prove a loss."""

from __future__ import annotations

import random

import pytest

from metaquorum.raft import memory
from metaquorum.raft.config import Identity, RaftConfig, RecoveredLog, Voter
from metaquorum.raft.messages import VoteRequest
from metaquorum.raft.roles import LeaderView, ReplicaProgress
from metaquorum.raft.state import RaftState
from metaquorum.storage.files.known_committed import Acknowledged
from metaquorum.storage.types import LogPosition
from tests.raft.world import directory


def state(*known: Acknowledged) -> RaftState:
    voters = [Voter(node_id=number, host="h", port=1, directory_id=directory(number)) for number in (1, 2, 3)]
    made = RaftState(
        RaftConfig(),
        Identity(node_id=1, directory_id=directory(1), cluster_id="c"),
        voters,
        RecoveredLog(),
        random.Random(1),
    )
    made.acknowledged = {one.directory_id: one for one in known}
    return made


def test_directories_that_no_longer_vote_are_forgotten_first_then_the_oldest() -> None:
    voters = [Acknowledged(directory(number), 1, 1) for number in (2, 3)]
    gone = [Acknowledged(directory(100 + age), 90 - age, 2 + age) for age in range(memory.DIRECTORIES_MAX)]
    made = state(*voters, *gone)
    memory.fold(made, LeaderView(voters={}))
    kept = {one.directory_id for one in memory.remembered(made)}
    assert len(kept) == memory.DIRECTORIES_MAX
    assert kept == {one.directory_id for one in (*voters, *gone[2:])}


def test_voters_without_directory_ids_are_not_taken_for_one_another() -> None:
    """Voters of Kafka 3.7 name none: what one of them has acknowledged, another one may lack."""
    made = state()
    made.log.high_watermark = 10
    progress = ReplicaProgress(node_id=2, directory_id=b"", acked_offset=10, highest_acked_offset=10)
    memory.fold(made, LeaderView(voters={2: progress}))
    assert memory.remembered(made) == ()
    progress.directory_id = directory(2)
    memory.fold(made, LeaderView(voters={2: progress}))
    assert memory.remembered(made) == (Acknowledged(directory(2), 10, made.epoch),)


@pytest.mark.parametrize(
    ("epoch", "offset", "refused"),
    [
        (6, 9, True),
        (6, 10, False),  # it has all that it acknowledged
        (5, 9, False),  # sent before it acknowledged that, perhaps
        (4, 9, False),
    ],
)
def test_a_candidate_is_refused_for_less_than_it_acknowledged_in_an_earlier_epoch(
    epoch: int, offset: int, refused: bool
) -> None:
    made = state(Acknowledged(directory(2), 10, 5))
    request = VoteRequest(
        cluster_id="c",
        epoch=epoch,
        candidate_id=2,
        candidate_directory_id=directory(2),
        voter_id=1,
        voter_directory_id=directory(1),
        last_position=LogPosition(4, offset),
        pre_vote=False,
    )
    assert memory.refuse_candidate(made, request) is refused
