"""Voters are added, removed and replaced in a quorum of our controllers and of Apache Kafka's 3.9, in every
proportion, whoever leads, under all faults of `VoterWorld` and `MixedWorld`.

One of our controllers stays a voter with all its data, so that the healed cluster can serve brokers. Copies
of directories are not restored here: a voter of Kafka's does not notice that it has forgotten something.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import KRaftVersionRecord, Voter, VotersRecord
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    DescribeQuorumResponse,
    Done,
    RemoveRaftVoterRequest,
    ReplicaStatus,
    TransferLeadershipRequest,
)
from metaquorum.metadata.snapshot import QuorumRecord
from metaquorum.raft import effects as raft
from metaquorum.raft.events import Stop
from metaquorum.raft.messages import AddVoterRequest, RaftError, RemoveVoterRequest
from metaquorum.raft.voters import CONFIGURED, Endpoint, VersionRange, VoterNode, VoterSet
from metaquorum.storage.types import LogPosition
from tests.raft.kafka_voter import REQUEST_TIMEOUT_MS
from tests.raft.kafka_voter_39 import (
    LOST_ADDRESS,
    VERSIONS,
    WAS_EMPTIED,
    ApiVersionsRequest,
    KafkaEnds,
    KafkaVoter39,
)
from tests.raft.mixed_world import VERSIONS_39, answered_in_kafkas_words
from tests.sim.errors import SafetyError
from tests.sim.foreign.active import KafkaController
from tests.sim.foreign.joining import SelfJoining
from tests.sim.foreign.quorum import KAFKAS_ASTRAY, MixedController, MixedWorld
from tests.sim.foreign.voter import DirectoryOfKafka, KafkaVoterProcess
from tests.sim.host import Host
from tests.sim.processes import CLUSTER_ID, RAFT_CONFIG, BrokerProcess, ControllerProcess
from tests.sim.profile import FaultProfile
from tests.sim.voters.nodes import VoterController, as_record
from tests.sim.voters.operator import SeenLeader
from tests.sim.voters.plan import VoterPlan, draw_faults, draw_plan
from tests.sim.voters.world import VoterWorld

CHANGES_FROM = 9_000
JOINS_FROM = 9_500
"""In seeds from here on ours ask by themselves to be voters, beside the operator."""
OPERATOR_PAUSE_MS, SAFETY_MS = (50, 300), (6_000, 10_000)
"""Kafka's voters notice later that a leader is gone."""
ASTRAY_MS = 5_000
"""How long the operator waits for a voter of Kafka's that follows no one: it stands some times meanwhile."""


def draw_changes(seed: int) -> VoterPlan:
    """The plan of a seed: 3.9 has no upgrade of kraft.version."""
    drawn = draw_plan(seed)
    return replace(
        drawn,
        voters=min(drawn.voters, 5),
        formatted=True,
        upgrade=False,
        rollback_rate=0.0,
        rename_rate=4 * drawn.rename_rate,
        operator_pause_ms=OPERATOR_PAUSE_MS,
    )


def draw_faults_of_changes(seed: int, plan: VoterPlan) -> FaultProfile:
    """The faults of a seed: of those that undo a change, more."""
    rng = random.Random(f"faults of changes of {seed}")
    return structs.replace(
        draw_faults(seed, plan), safety_ms=rng.choice(SAFETY_MS), partition_rate=rng.choice((0.0, 0.8, 1.5))
    )


class ChangingController(VoterController, MixedController):
    """Ours."""

    world: ChangingWorld  # type: ignore[assignment]

    def execute_own(self, effect: Any) -> None:
        match effect:
            case raft.SendRequest(to=to) if self.world.node_at(to) in self.world.kafkas:
                self._calls.raft(self, self.reach(effect), to, effect, once=True)
            case _:
                super().execute_own(effect)


class ChangingKafka(KafkaVoterProcess):
    """Kafka's."""

    versions = VERSIONS_39
    world: ChangingWorld  # type: ignore[assignment]
    voter: KafkaVoter39

    def make_voter(self, rng: random.Random) -> KafkaVoter39:
        world, node_id = self.world, self.node_id
        self.directory_id = world.directory_ids[node_id]
        return KafkaVoter39(
            node_id,
            (),
            self.directory.now,
            rng,
            self.host.monotonic_ms(),
            directory_id=self.directory_id,
            endpoints=world.addresses.endpoints(node_id),
            formatted=world.formatted.get(node_id),
            bootstrap=tuple(world.addresses.bootstrap),
        )

    def make_controller(self) -> KafkaController:
        every = self.host.profile.snapshot_every_bytes
        return KafkaController(self.voter, self.rng, every, self._quorum)

    def _quorum(self, position: LogPosition) -> tuple[QuorumRecord, ...]:
        voters = self.voter.set_at(position.offset)
        assert voters is not None
        records = tuple(as_record(each) for each in voters.nodes)
        return KRaftVersionRecord(kraft_version=1), VotersRecord(voters=records)

    def sets_that_count(self) -> tuple[VoterSet, ...]:
        sets, committed = self.voter.sets, self.voter.high_watermark
        return tuple(each for _, each in (sets[-2:] if sets[-1][0] >= committed else sets[-1:]))

    def epoch_at(self, offset: int) -> int | None:
        """The epoch of the record there; None: its log does not hold it."""
        held = self.directory.now.batches
        return next((epoch for base, end, epoch, _ in held if base <= offset < end), None)

    def reach(self, to: int) -> Host:
        return self.world.addresses.at(to, self.voter.endpoints_of(to))

    def answer_in_words(self, response: Any, asked: Any) -> Any:
        return answered_in_kafkas_words(response, asked, versions=VERSIONS_39)

    def send_on(
        self,
        connection: int,
        to: int,
        asked: Any,
        finish: Callable[[Any], None],
        fail: Callable[[str], None],
    ) -> None:
        if not isinstance(asked, ApiVersionsRequest):
            super().send_on(connection, to, asked, finish, fail)
            return
        self.world.calls.shell(
            self.host.name,
            self.reach(to),
            lambda process, answer: answer(VERSIONS),
            REQUEST_TIMEOUT_MS,
            finish,
            fail,
        )

    def take_client(self, key: int, request: Any) -> None:
        now = self.host.monotonic_ms()
        match request:
            case AddRaftVoterRequest(voter=voter):
                change: Any = AddVoterRequest(cluster_id=CLUSTER_ID, voter=_node(voter), timeout_ms=0)
            case RemoveRaftVoterRequest(voter_id=voter_id, voter_directory_id=directory_id):
                change = RemoveVoterRequest(
                    cluster_id=CLUSTER_ID,
                    voter_id=voter_id,
                    voter_directory_id=directory_id,
                    timeout_ms=0,
                )
            case _:
                super().take_client(key, request)
                return
        self.voter.change(key, change, now)

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            super()._guarded(action)
        except SafetyError as error:
            if not isinstance(error.__cause__, KafkaEnds):
                raise
            self.trace(f"ends: {error.__cause__}")
            self.world.marks.add(f"Kafka's voter ended: it {error.__cause__}")
            self.stopped, self.alive = Stop(reason=str(error.__cause__), failed=True), False

    def _release(self) -> None:
        super()._release()
        changed, self.voter.changed = self.voter.changed, []
        for key, error in changed:
            if error is not RaftError.NONE:
                self.world.marks.add(f"Kafka's leader refused a change: {error.name}")
            refusal = ApiError(ErrorCode(int(error)), "refused by Kafka's leader")
            answer: Any = Done() if error is RaftError.NONE else refusal
            self.world.calls.answered_client(key, answer, outright=False)

    def _tell(self, role: str, start: int, end: int) -> None:
        super()._tell(role, start, end)
        events, self.voter.events = self.voter.events, []
        for event in events:
            self.trace(event)
            self.world.marks.add(f"Kafka's voter {event}")


def _node(voter: Voter) -> VoterNode:
    levels = voter.kraft_version_feature
    return VoterNode(
        node_id=voter.voter_id,
        directory_id=voter.voter_directory_id,
        endpoints=tuple(Endpoint(each.name, each.host, each.port) for each in voter.endpoints),
        versions=VersionRange(levels.min_supported_version, levels.max_supported_version),
    )


def _is_alone(process: ChangingKafka, voters: VoterSet) -> bool:
    """Whether a voter of Kafka's was removed, has missed it, and asks only nodes that do not vote either: it
    stands in one epoch after the other, and without pre-votes no answer says who leads in a lower one."""
    own = process.voter.voter_set
    return process.node_id in own and not any(each.node_id in voters for each in own.nodes)


class ChangingWorld(VoterWorld, MixedWorld):
    """The seed draws which of the controllers are Kafka's. The first of the voters is ours."""

    def __init__(
        self, seed: int, on_line: Callable[[str], None] | None = None, profile: FaultProfile | None = None
    ) -> None:
        plan = draw_changes(seed)
        faults = draw_faults_of_changes(seed, plan)
        self.formatted: dict[int, VoterSet] = {}
        super().__init__(seed, on_line, profile or faults, plan)
        first = self.controller_ids[: self.plan.voters]
        self.formatted = {each: self._voters_of(first) for each in first if each in self.kafkas}
        self._known_sets = {each: [(CONFIGURED, self._voters_of(first))] for each in first}
        self._were_kafkas: set[bytes] = set()
        self._emptied: set[int] = set()
        self._astray_from_us = 0
        self._transfer_rate = self.rng.choice((0.0, 0.7, 2.0))
        joins = seed >= JOINS_FROM
        self._joining = [SelfJoining(self, each) for each in self.own_controller_ids if joins]

    def choose_kafkas(self) -> list[int]:
        others = self.controller_ids[1:]
        return self.rng.sample(others, self.rng.randint(1, len(others)))

    def node_at(self, to: int) -> int:
        """The node behind the id of a bootstrap server."""
        return self.addresses.bootstrap.get(to, to)

    # ---- processes -------------------------------------------------------------------------------

    def make_process(self, host: Host, node_id: int) -> ControllerProcess | BrokerProcess:
        if node_id not in self.own_controller_ids:
            return super().make_process(host, node_id)
        parts = (self, host, node_id, (), self.calls, self.directory, self.marks)
        return ChangingController(self.addresses, self.plan.lag_max, self._mark_standing, *parts)

    def make_kafka(self, host: Host, node_id: int) -> KafkaVoterProcess:
        return ChangingKafka(host, node_id, self)

    def crash(self, node_id: int, *, power_loss: bool) -> None:
        self._note_kafka(self.directory[node_id].process)
        super().crash(node_id, power_loss=power_loss)

    def _ended(self, node_id: int, host: Host, process: Any) -> None:
        self._note_kafka(process)
        super()._ended(node_id, host, process)
        stopped = getattr(process, "stopped", None)
        if stopped is not None and stopped.reason == LOST_ADDRESS and not self._counts(node_id):
            self._format_again(node_id)

    def may_fail(self, node_id: int, reason: str) -> bool:
        """What 3.9 does by itself."""
        if node_id in self.kafkas and reason in (LOST_ADDRESS, WAS_EMPTIED):
            return reason == LOST_ADDRESS or node_id in self._emptied
        return super().may_fail(node_id, reason)

    def _note_kafka(self, process: object) -> None:
        if isinstance(process, ChangingKafka):
            self._known_sets[process.node_id] = list(process.voter.sets)

    def _format_again(self, node_id: int) -> None:
        super()._format_again(node_id)
        if node_id in self.kafkas:
            self.kafkas[node_id] = DirectoryOfKafka()
            self.formatted.pop(node_id, None)
            self._emptied.add(node_id)
            self.marks.add("disk of Kafka's emptied")

    # ---- joining by themselves -------------------------------------------------------------------

    def _throw_faults(self) -> None:
        super()._throw_faults()
        if not self.faults_on or self.wants_quiet:
            return
        for each in self._joining:
            process = self.directory[each.node_id].process
            if isinstance(process, ChangingController) and process.alive and not process.paused:
                each.step(process)

    def _may_lose(self) -> bool:
        return super()._may_lose() and all(each.is_quiet for each in self._joining)

    def described(self, leader_id: int) -> DescribeQuorumResponse | None:
        """What the node says of the quorum that it leads, with who is alive; None if it does not lead."""
        process = self.directory[leader_id].process
        found: list[tuple[int, bytes, bool]] = []
        if isinstance(process, ChangingKafka) and process.alive and process.leads:
            voter = process.voter
            epoch = voter.epoch
            for each in voter.voter_set.nodes:
                known = voter.progress.get((each.node_id, each.directory_id or b""))
                heard = known is not None and known.fetched_ms > voter.now - RAFT_CONFIG.check_quorum_ms
                found.append((each.node_id, each.directory_id or b"", heard))
        elif isinstance(process, ChangingController) and process.alive and process.core.is_leader:
            epoch = process.core.epoch
            told = process.core.describe(now_ms=process.host.monotonic_ms())
            found = [(each.node_id, each.directory_id, each.is_alive) for each in told if each.is_voter]
        else:
            return None
        voters = tuple(
            ReplicaStatus(
                node_id=node_id,
                directory_id=directory_id,
                log_end_offset=-1,
                lag=0,
                last_fetch_ms=None,
                last_caught_up_ms=None,
                status="Follower",
                is_alive=is_alive,
            )
            for node_id, directory_id, is_alive in found
        )
        return DescribeQuorumResponse(
            cluster_id=CLUSTER_ID,
            leader_id=leader_id,
            leader_epoch=epoch,
            high_watermark=0,
            voters=voters,
            observers=(),
        )

    # ---- who is well -----------------------------------------------------------------------------

    def leaders(self) -> list[SeenLeader]:
        kafkas = [
            SeenLeader(each.node_id, each.voter.epoch, each.voter.voter_set, 1, each.epoch_at)
            for each in self.kafka_voters()
            if isinstance(each, ChangingKafka) and each.leads
        ]
        return super().leaders() + kafkas

    def running(self) -> list[int]:
        return sorted(super().running() + [each.node_id for each in self.kafka_voters()])

    def _sets_of(self, node_id: int) -> list[tuple[int, VoterSet]]:
        process = self.directory[node_id].process
        if isinstance(process, ChangingKafka) and process.alive:
            return list(process.voter.sets)
        return super()._sets_of(node_id)

    def _ours(self, voters: VoterSet, but: int) -> bool:
        """Whether another one of ours is among the voters, with all its data."""
        others = [each for each in voters.nodes if each.node_id not in (but, *self.kafkas)]
        return any(map(self.is_well, others))

    def may_remove(self, leader: SeenLeader, node_id: int) -> bool:
        """A leader of Kafka's that ends with its own removal in its log alone does not stand afterwards, so
        the other one of two voters has no majority for ever."""
        if node_id in self.kafkas:
            return len(leader.voters) > 2 or node_id != leader.node_id
        return self._ours(leader.voters, node_id)

    def _spared(self, node_id: int) -> bool:
        ours = all(self._ours(voters, node_id) for voters in self._sets_that_count())
        return super()._spared(node_id) and (node_id in self.kafkas or ours)

    def is_lost(self, voter: VoterNode) -> bool:
        """A voter of Kafka's that was renamed has its entry updated by itself, later than ours."""
        own = self.directory_ids[voter.node_id] == voter.directory_id
        return super().is_lost(voter) and not (own and voter.node_id in self.kafkas)

    def _maybe_transfer(self, seconds: float) -> None:
        """Mostly to a voter of Kafka's, which seldom stand first."""
        rng, leader = self.rng, self.leader()
        if leader is None or rng.random() >= self._transfer_rate * seconds:
            return
        targets = [each for each in leader.voters if each in self.kafkas] or list(leader.voters)
        request = TransferLeadershipRequest(target_id=rng.choice(targets))
        asked = self.directory[leader.node_id]
        self.calls.client("operator", asked, request, 2_000, lambda answer, _: None, lambda reason: None)

    def _what_is_unwell(self) -> str:
        problem, leader = super()._what_is_unwell(), self.leader()
        if problem != KAFKAS_ASTRAY or leader is None or self.faults_on:
            self._astray_from_us = self.engine.now_us
            return problem
        if self.engine.now_us < self._astray_from_us + 1_000 * ASTRAY_MS:
            return problem
        for each in self.kafka_voters():
            if isinstance(each, ChangingKafka) and _is_alone(each, leader.voters):
                self.marks.add("voter of Kafka's that missed its removal formatted again")
                self.engine.after(0, partial(self.empty, each.node_id))
        return problem

    # ---- what is seen ----------------------------------------------------------------------------

    def _mark_committed(self) -> None:
        committed = self.checks.history.voters
        for offset in sorted(committed)[self._committed_sets :]:
            named = {
                each.directory_id or b"" for each in committed[offset].nodes if each.node_id in self.kafkas
            }
            if self._were_kafkas and named - self._were_kafkas:
                self.marks.add("voter of Kafka's added")
            if self._were_kafkas - named:
                self.marks.add("voter of Kafka's removed")
            self._were_kafkas = named
        super()._mark_committed()
