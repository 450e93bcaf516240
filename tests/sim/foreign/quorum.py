"""A quorum of our controllers and of Apache Kafka's (`foreign.voter`), in every proportion, under all faults
of `World`: all laws of Raft and of the metadata hold, whoever leads, and a healed quorum commits again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from metaquorum.controller.server.kafka import RoundsRepeated
from metaquorum.metadata.image import images_equal
from metaquorum.raft import effects as raft
from metaquorum.raft.config import Voter
from metaquorum.raft.core import RaftCore
from metaquorum.raft.messages import FetchRequest, FetchResponse, RaftRequest, RaftResponse
from metaquorum.raft.store import ReplicaStore
from metaquorum.raft.voters import VoterNode, VoterSet
from metaquorum.storage.batches.batch import iter_batches
from tests.sim.errors import SafetyError
from tests.sim.foreign.voter import DirectoryOfKafka, KafkaVoterProcess
from tests.sim.host import Host
from tests.sim.processes import RAFT_CONFIG, BrokerProcess, ControllerProcess
from tests.sim.profile import FaultProfile
from tests.sim.world import World

MIXED_FROM = 8_000
CHUNK_BYTES = 150
"""So that each snapshot takes several chunks."""
LATE_MS, LATE_CHANCE = 3_000, 0.25
"""In some seeds ours start so much later that Kafka's voters, if they can, write the first records."""


KAFKAS_ASTRAY = "a voter of Kafka's does not follow"


class MixedController(ControllerProcess):
    """Ours, as the voters of Kafka ask it: by connections, whose fetches repeat rounds of reads."""

    world: MixedWorld

    def __init__(self, world: MixedWorld, *parts: Any) -> None:
        self.world = world
        self.rounds = RoundsRepeated()
        self._connections: dict[int, int] = {}
        super().__init__(*parts)

    def make_core(self, store: ReplicaStore, voters: tuple[Voter, ...]) -> RaftCore:
        config = replace(RAFT_CONFIG, snapshot_chunk_bytes=CHUNK_BYTES)
        rng = random.Random(self.host.rng.getrandbits(64))
        return RaftCore(config, store.raft_identity, voters, store.recovered(), rng)

    def read(self, key: int, request: RaftRequest, connection: int) -> RaftRequest:
        """A request that arrives on a connection."""
        if not isinstance(request, FetchRequest):
            return request
        self._connections[key] = connection
        return self.rounds.asked(connection, request)

    def respond(self, key: int, response: RaftResponse) -> None:
        connection = self._connections.pop(key, None)
        if connection is not None and isinstance(response, FetchResponse):
            self.rounds.answered(connection, response)
        super().respond(key, response)

    def execute_own(self, effect: Any) -> None:
        match effect:
            case raft.SendRequest(to=to) if to in self.world.kafkas:
                self._calls.raft(self, self.reach(effect), to, effect, once=True)
            case _:
                super().execute_own(effect)

    def _execute(self, effect: Any) -> None:
        if isinstance(effect, raft.AppendLog) and self.core.state.unpersisted_token is None:
            # Before its vote is durable, a lone voter sends nobody what it writes, and may write it again.
            for batch in iter_batches(effect.batches.data):
                self.world.same_everywhere(
                    self.node_id, batch.header.leader_epoch, batch.header.base_offset, batch.data
                )
        if isinstance(effect, raft.Warn) and effect.is_loss:
            raise SafetyError(f"node {self.node_id} reports a loss, and nothing was lost: {effect.message}")
        super()._execute(effect)


class MixedWorld(World):
    """The seed draws how many of the voters are Kafka's."""

    def __init__(
        self, seed: int, on_line: Callable[[str], None] | None = None, profile: FaultProfile | None = None
    ) -> None:
        super().__init__(seed, on_line, profile)
        self.rng = random.Random(f"voters of Kafka of {seed}")
        self.kafkas = {node_id: DirectoryOfKafka() for node_id in sorted(self.choose_kafkas())}
        self.own_controller_ids = tuple(each for each in self.controller_ids if each not in self.kafkas)
        # Voters of Kafka 3.7 have no directory ids.
        self.voters = tuple(replace(voter, directory_id=None) for voter in self.voters)
        self.voter_set = VoterSet(VoterNode(node_id=each, directory_id=None) for each in self.controller_ids)
        self._late = set(self.own_controller_ids) if self.rng.random() < LATE_CHANCE else set()
        self._connection = 0
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, bytes, int], int] = {}
        self._batches: dict[tuple[int, int], bytes] = {}
        self._ended_epochs: set[int] = set()

    def choose_kafkas(self) -> list[int]:
        """The ids of the controllers that are Kafka's."""
        return self.rng.sample(self.controller_ids, self.rng.randint(1, len(self.controller_ids) - 1))

    def next_connection(self) -> int:
        self._connection += 1
        return self._connection

    def kafka_voters(self) -> list[KafkaVoterProcess]:
        found = [self.directory[node_id].process for node_id in self.kafkas]
        return [each for each in found if isinstance(each, KafkaVoterProcess) and each.alive]

    @staticmethod
    def read_by(process: Any, key: int, request: RaftRequest, connection: int) -> RaftRequest:
        return process.read(key, request, connection) if isinstance(process, MixedController) else request

    # ---- processes -------------------------------------------------------------------------------

    def make_process(self, host: Host, node_id: int) -> ControllerProcess | BrokerProcess:
        if node_id in self.own_controller_ids:
            return MixedController(self, host, node_id, self.voters, self.calls, self.directory, self.marks)
        return super().make_process(host, node_id)

    def make_kafka(self, host: Host, node_id: int) -> KafkaVoterProcess:
        return KafkaVoterProcess(host, node_id, self)

    def boot(self, node_id: int) -> None:
        host = self.directory[node_id]
        if node_id in self._late:
            self._late.remove(node_id)
            self.engine.after(LATE_MS, lambda: self.boot(node_id))
        elif node_id not in self.kafkas:
            super().boot(node_id)
        elif host.process is None or not host.process.alive:
            process: Any = self.make_kafka(host, node_id)
            host.process = process
            disk = process.directory.now
            self.engine.trace(host.name, f"boots as Kafka's, log {disk.start}..{disk.end}")
            process.begin()

    def crash(self, node_id: int, *, power_loss: bool) -> None:
        process: Any = self.directory[node_id].process
        if isinstance(process, KafkaVoterProcess) and power_loss:
            process.lose_power()
        super().crash(node_id, power_loss=power_loss)

    # ---- laws ------------------------------------------------------------------------------------

    def _after_step(self) -> None:
        stepped = [each for each in self.kafka_voters() if each.touched]
        for controller in self.controllers():
            if controller.core.is_leader:
                self._one_leader(controller.core.epoch, controller.node_id)
        for process in stepped:
            process.touched = False
            self._check_kafkas(process)
        super()._after_step()

    def _one_leader(self, epoch: int, node_id: int) -> None:
        if self._leaders.setdefault(epoch, node_id) != node_id:
            raise SafetyError(f"nodes {self._leaders[epoch]} and {node_id} lead in epoch {epoch}")

    def same_everywhere(self, node_id: int, epoch: int, base: int, data: bytes) -> None:
        """An epoch has one leader, which writes an offset once."""
        if self._batches.setdefault((epoch, base), bytes(data)) != bytes(data):
            raise SafetyError(
                f"node {node_id} has another batch at {base} of epoch {epoch} than was written there"
            )

    def _check_kafkas(self, process: KafkaVoterProcess) -> None:
        voter, node_id = process.voter, process.node_id
        now, durable = process.directory.now, process.directory.durable
        hard = durable.hard
        if hard is not None and hard.voted_id is not None:
            key = node_id, process.directory_id, hard.epoch
            if self._votes.setdefault(key, hard.voted_id) != hard.voted_id:
                raise SafetyError(f"Kafka's voter {node_id} voted twice in epoch {hard.epoch}")
        if process.is_flushing:
            return
        self.checks.saw_synced(node_id, process.directory_id, min(now.end, durable.end))
        for base, end, epoch, data in now.batches:
            if end > process.checked_to:
                self.same_everywhere(node_id, epoch, base, data)
            if process.committed_to <= base and end <= voter.high_watermark:
                self.checks.saw_committed(node_id, base, end, data)
                process.committed_to = end
        process.checked_to = now.end
        if process.leads:
            self._one_leader(voter.epoch, node_id)
            if voter.high_watermark > 0:
                self.checks.require_held(node_id, process.sets_that_count(), voter.high_watermark)
        image = process.controller.image
        known = self.checks.image_at(image.provenance.offset)
        if known is not None and known is not image and not images_equal(known, image):
            raise SafetyError(f"Kafka's voter {node_id} reached another image at {image.provenance.offset}")

    # ---- the end ---------------------------------------------------------------------------------

    def _what_is_unwell(self) -> str:
        voters = self.kafka_voters()
        if len(voters) < len(self.kafkas):
            return "a voter of Kafka's is down"
        epochs = {each.voter.epoch for each in voters} | {each.core.epoch for each in self.controllers()}
        leader = next((each for each in voters if each.leads and each.voter.epoch == max(epochs)), None)
        if leader is not None:
            return self._led_by_kafka(leader, epochs)
        active = self._active()
        problem = super()._what_is_unwell()
        if not problem and active is not None:
            behind = [
                each for each in voters if each.voter.high_watermark <= (active.core.epoch_start_offset or 0)
            ]
            if behind or epochs != {active.core.epoch}:
                return KAFKAS_ASTRAY
        return problem

    def _led_by_kafka(self, leader: KafkaVoterProcess, epochs: set[int]) -> str:
        """A quorum that Kafka's voter leads commits, too. Then it is stopped, since brokers are served by
        ours alone here: the first one in good order, others by kill -9, after which ours stand first."""
        others = [each.core.high_watermark for each in self.controllers()]
        others += [each.voter.high_watermark for each in self.kafka_voters()]
        if len(self.controllers()) < len(self.own_controller_ids) or len(epochs) > 1:
            return "not all follow Kafka's voter"
        if min(others) <= leader.voter.epoch_start:
            return "Kafka's voter does not commit"
        if leader.voter.epoch not in self._ended_epochs and not self.faults_on:
            self.marks.add("Kafka's voter led the healed quorum")
            is_first = not self._ended_epochs
            self._ended_epochs.add(leader.voter.epoch)
            if is_first:
                leader.ask_to_stop()
            else:
                self.engine.after(0, lambda: self.crash(leader.node_id, power_loss=False))
        return "Kafka's voter leads"
