"""What Kafka 3.7's voters asked each other in elections and failovers, asked of our core in the state that
the receiver was in, as its own messages show it: the answers are Kafka's."""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metaquorum.clients.kafka.raft_messages import request_of, response_of
from metaquorum.raft import messages as ms
from metaquorum.raft.config import Identity, RaftConfig, RecoveredLog, Voter
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import Respond
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition
from metaquorum.wire import codec
from metaquorum.wire.table import API_BY_NAME

pytestmark = pytest.mark.shared_data
CLUSTER = "d2lyZS1jYXB0dXJlLTM3MA"
VOTERS = tuple(
    Voter(node_id=node_id, host="127.0.0.1", port=1, directory_id=None) for node_id in (3000, 3001, 3002)
)
APIS = ("Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "Fetch")
KEYS = {API_BY_NAME[api].key for api in APIS}
RECORDINGS = ("A-cluster-start", "B-controller-failover", "D-snapshot-fetch", "E-acls-authorizer")


NOWHERE = LogPosition(0, 0)


@dataclass(slots=True)
class Shown:
    """What a node's own messages have shown of it so far."""

    epoch: int = 0
    leader_id: int | None = None
    voted_id: int | None = None
    end: LogPosition = NOWHERE
    stands: bool = False

    def is_in(self, epoch: int, leader_id: int | None) -> None:
        if epoch > self.epoch:
            self.epoch, self.leader_id, self.voted_id, self.stands = epoch, leader_id, None, False
        elif epoch == self.epoch and leader_id is not None:
            self.leader_id, self.stands = leader_id, False

    def said(self, message: Any) -> None:
        """It has sent this request."""
        match message:
            case ms.VoteRequest(epoch=epoch, candidate_id=own, last_position=end):
                self.is_in(epoch, None)
                self.voted_id, self.stands, self.end = own, True, max(self.end, end)
            case ms.BeginQuorumEpochRequest(epoch=epoch, leader_id=own):
                self.is_in(epoch, own)
            case ms.FetchRequest(epoch=epoch):
                self.is_in(epoch, None)
                self.end = max(self.end, LogPosition(message.last_fetched_epoch, message.fetch_offset))

    def core(self, node_id: int) -> RaftCore:
        """A core of ours in this state."""
        table = EpochTable()
        if self.end.offset:
            table = table.append(self.end.epoch, 0)
        recovered = RecoveredLog(
            epoch=self.epoch,
            leader_id=self.leader_id,
            voted_id=self.voted_id,
            voted_directory_id=None,
            epochs=table.entries,
            log_start_offset=0,
            log_end_offset=self.end.offset,
            snapshots=(),
        )
        identity = Identity(cluster_id=CLUSTER, node_id=node_id, directory_id=bytes(range(16)))
        core = RaftCore(RaftConfig(), identity, VOTERS, recovered, random.Random(1))
        core.start(now_ms=0)
        return core


def messages(folder: Path, name: str) -> Iterator[tuple[int, int, int, Any, Any]]:
    """(asker, receiver, whether it is answered, request, answer) in the order in which they were seen."""
    waiting: dict[tuple[int, int], tuple[int, Any]] = {}
    with gzip.open(folder / "kafka-3.7-wire" / f"{name}.jsonl.gz") as lines:
        for row in map(json.loads, lines):
            if row.get("api_key") not in KEYS or row.get("event") or not row["link"].startswith("controller"):
                continue
            place = row["conn"], row["correlation_id"]
            receiver, version = int(row["link"].partition("-")[2]), row["api_version"]
            frame = base64.b64decode(row["frame"])
            if row["dir"] == ">" and row["client_id"].startswith("raft-client-30"):
                asker = int(row["client_id"].rpartition("-")[2])
                body = codec.decode_request(frame).body
                request = request_of(body, version, cluster_id=CLUSTER, node_id=receiver)
                waiting[place] = asker, request
                yield asker, receiver, 0, request, None
            elif row["dir"] == "<" and place in waiting:
                asker, request = waiting.pop(place)
                body = codec.decode_response(row["api_key"], version, frame).body
                yield asker, receiver, 1, request, response_of(body, version, request)


@pytest.mark.parametrize("name", RECORDINGS)
def test_our_core_answers_kafkas_voters_as_kafka_did(shared_data: Path, name: str) -> None:
    known = {voter.node_id: Shown() for voter in VOTERS}
    count: Counter[tuple[str, str, bool]] = Counter()
    wrong = []
    stood = {
        (asker, request.epoch)
        for asker, _, _, request, _ in messages(shared_data, name)
        if isinstance(request, ms.VoteRequest)
    }
    for asker, receiver, is_answered, request, answer in messages(shared_data, name):
        if not is_answered:
            known[asker].said(request)
            continue
        at = known[receiver]
        if not isinstance(request, ms.FetchRequest):
            if isinstance(request, ms.VoteRequest) and (receiver, request.epoch) in stood:
                at.is_in(request.epoch, None)  # it had voted for itself, and its own requests came later
                at.voted_id = receiver
            is_unseen = at.epoch == 0 and isinstance(request, ms.EndQuorumEpochRequest)
            if is_unseen or answer.error is ms.RaftError.FENCED_LEADER_EPOCH:
                at.is_in(answer.epoch, answer.leader_id)  # the recording began later
            core = at.core(receiver)
            effects = core.on_request(1, request, now_ms=1)
            (ours,) = [each.response for each in effects if isinstance(each, Respond)]
            theirs = answer.error, answer.epoch, getattr(answer, "vote_granted", None)
            if (ours.error, ours.epoch, getattr(ours, "vote_granted", None)) != theirs:
                wrong.append((request, at, answer, ours))
            granted = getattr(answer, "vote_granted", False)
            count[type(request).__name__, answer.error.name, granted] += 1
            if granted:
                at.is_in(request.epoch, None)
                at.voted_id = request.candidate_id
        at.is_in(answer.epoch, answer.leader_id)
    assert not wrong, "\n".join(map(str, wrong))
    assert count["VoteRequest", "NONE", True] >= 1
    assert count.total() >= 6
