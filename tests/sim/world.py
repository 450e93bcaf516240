"""A whole cluster in one deterministic run: a safety phase with faults, then healing and liveness.

`run(seed)` does everything: it draws a fault profile, runs the real controller and broker state machines on
simulated machines, checks invariants after every event, and returns what was seen. Equal seeds give equal
runs, in any process. TigerBeetle's VOPR is the model for the two phases.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metaquorum.metadata.errors import InvariantViolation
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    TransferLeadershipRequest,
)
from metaquorum.raft.config import Voter
from tests.sim.calls import Calls
from tests.sim.checks import Checks
from tests.sim.clients import NAMES, Client
from tests.sim.data_load import DATA_FROM
from tests.sim.engine import Engine
from tests.sim.errors import LivenessError, SafetyError
from tests.sim.host import Host, Process
from tests.sim.linearizability import Operation
from tests.sim.load import LOADED_FROM
from tests.sim.marks import Marks
from tests.sim.network import Network
from tests.sim.processes import (
    SESSION_TIMEOUT_MS,
    BrokerProcess,
    ControllerProcess,
    Directory,
    Registrations,
    directory_id,
    format_host,
)
from tests.sim.profile import FaultProfile, draw_profile
from tests.sim.promises import BrokenPromise
from tests.sim.strangers import Strangers, are_there

FIRST_CONTROLLER_ID = 3000
LIVENESS_MS = 60_000
STEP_MS = 100
FORGETFUL = "older copy of itself"
"""Part of the reason with which a node stops that has forgotten what it acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run: its fingerprint, how much happened and which rare states were reached."""

    seed: int
    digest: str
    events: int
    simulated_ms: int
    healed_after_ms: int
    operations: int
    marks: dict[str, int]


class World:
    """Hosts, clients and their faults."""

    def __init__(
        self, seed: int, on_line: Callable[[str], None] | None = None, profile: FaultProfile | None = None
    ) -> None:
        self.seed = seed
        self.engine = Engine(seed, on_line=on_line)
        drawn = draw_profile(random.Random(self.engine.rng.getrandbits(64)))
        self.profile = profile or drawn
        self.marks = Marks()
        self.network = Network(self.engine, self.profile)
        self.calls = Calls(self.engine, self.network)
        self.directory = Directory()
        self.checks = Checks()
        self.controller_ids, self.broker_ids = self.node_ids()
        self.own_controller_ids = self.controller_ids
        self.voters = tuple(
            Voter(node_id=node_id, host="127.0.0.1", port=0, directory_id=directory_id(node_id))
            for node_id in self.controller_ids
        )
        for node_id in dict.fromkeys(self.controller_ids + self.broker_ids):
            name = f"{'c' * (node_id in self.controller_ids)}{'b' * (node_id in self.broker_ids)}{node_id}"
            host = Host(name, self.engine, self.network, self.profile)
            self.prepare(host, node_id)
            self.directory.hosts[node_id] = host
        self.history: dict[str, list[Operation]] = {name: [] for name in NAMES}
        self.clients = [self._client(f"client{number}") for number in range(self.profile.clients)]
        self.registrations = Registrations()
        self.faults_on = True

    def node_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids of the controllers and of the brokers. A combined node has one machine."""
        controllers = tuple(FIRST_CONTROLLER_ID + i for i in range(self.profile.controllers))
        return controllers, tuple(range(self.profile.brokers))

    def _client(self, name: str) -> Client:
        return Client(
            name,
            self.engine,
            self.calls,
            self.directory,
            self.controller_ids,
            self.profile.client_pause_ms,
            self.history,
            self.marks,
        )

    # ---- the run ---------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self.engine.trace("world", f"seed {self.seed} {self.profile}")
        for node_id in self.directory.hosts:
            self.engine.after(self.engine.rng.random() * 300, lambda node_id=node_id: self.boot(node_id))
        for client in self.clients:
            client.begin()
        self.engine.after(STEP_MS, self._throw_faults)
        strangers = Strangers(self)
        if are_there(self.seed):
            strangers.begin()
        self.engine.run_for(self.profile.safety_ms, self._after_event)
        healed_at_us = self.engine.now_us
        self._heal()
        if not self.engine.run_until(self._is_well, LIVENESS_MS, self._after_event):
            raise LivenessError(f"{LIVENESS_MS} ms after healing: {self._what_is_unwell()}")
        healed_after_ms = (self.engine.now_us - healed_at_us) // 1000
        for client in self.clients:
            client.running = False
        self._last_words()
        strangers.check()
        return Outcome(
            seed=self.seed,
            digest=self.engine.digest(),
            events=self.engine.events,
            simulated_ms=int(self.engine.now_ms),
            healed_after_ms=healed_after_ms,
            operations=sum(len(operations) for operations in self.history.values()),
            marks=dict(sorted(self.marks.counts.items())),
        )

    def _last_words(self) -> None:
        """Looks up every name through the active controller once more, then makes the final checks."""
        reader = self._client("reader")
        reader.running = False
        for name in NAMES:
            before = len(self.history[name])
            deadline_us = self.engine.now_us + LIVENESS_MS * 1000
            while len(self.history[name]) == before:
                if self.engine.now_us > deadline_us:
                    raise LivenessError(f"a lookup of {name!r} is not answered by the healed cluster")
                reader.send("describe", name)
                self.engine.run_until(lambda: not reader.busy, LIVENESS_MS, self._after_event)
        if not self.engine.run_until(self._same_offsets, LIVENESS_MS, self._after_event):
            raise LivenessError("the nodes did not come to one offset after the clients had stopped")
        for client in self.clients:
            client.give_up()
        self.checks.at_end(self.controllers(), self.brokers(), self.history, self.registrations.histories())

    # ---- processes -------------------------------------------------------------------------------

    def controllers(self) -> list[ControllerProcess]:
        hosts = self.directory.hosts
        found = [hosts[node_id].process for node_id in self.controller_ids]
        return [process for process in found if isinstance(process, ControllerProcess) and process.alive]

    def brokers(self) -> list[BrokerProcess]:
        hosts = self.directory.hosts
        found = [hosts[node_id].process for node_id in self.broker_ids]
        parts = [process.broker for process in found if process is not None]
        return [part for part in parts if part is not None and part.alive]

    def prepare(self, host: Host, node_id: int) -> None:
        """What a machine holds before its first start."""
        format_host(host, node_id)

    def make_process(self, host: Host, node_id: int) -> ControllerProcess | BrokerProcess:
        parts = (host, node_id, self.voters, self.calls, self.directory, self.marks)
        if node_id in self.controller_ids:
            return ControllerProcess(*parts)
        return BrokerProcess(*parts, self.registrations)

    def boot(self, node_id: int) -> None:
        host = self.directory[node_id]
        if host.process is not None and host.process.alive:
            return
        process = self.make_process(host, node_id)
        host.process = process
        self.engine.trace(
            host.name, f"boots, log {process.core.log_start_offset}..{process.core.log_end_offset}"
        )
        process.begin()

    def _after_event(self) -> None:
        """Most events are not a step of a process: a wake-up that came too early, a packet that gets lost."""
        for host in self.directory.hosts.values():
            process = host.process
            if process is not None and (process.touched or not process.alive):
                self._after_step()
                return

    def _after_step(self) -> None:
        """A process took a step, or ended."""
        for node_id, host in self.directory.hosts.items():
            process = host.process
            if process is not None and not process.alive:
                self._ended(node_id, host, process)
        try:
            self.checks.after_event(self.controllers(), self.brokers())
        except (InvariantViolation, BrokenPromise) as error:
            raise SafetyError(str(error)) from error

    def _ended(self, node_id: int, host: Host, process: Process) -> None:
        """A process stopped by its own decision: cleanly, or because its disk failed. Never because of a
        bug."""
        host.process = None
        self.calls.process_died(process)
        stopped = process.stopped
        if stopped is not None:
            if stopped.failed and not self.may_fail(node_id, stopped.reason):
                raise SafetyError(f"{host.name} stopped by itself: {stopped.reason}")
            process.store.close(clean=not stopped.failed)
            if node_id in self.broker_ids and not stopped.failed:
                self.marks.add("controlled shutdown finished")
        self.engine.after(self.engine.rng.randint(*self.profile.down_ms), lambda: self.boot(node_id))

    def may_fail(self, node_id: int, reason: str) -> bool:
        """Whether a process may stop itself for this reason."""
        return "disk" in reason.lower()

    # ---- faults ----------------------------------------------------------------------------------

    def _throw_faults(self) -> None:
        if not self.faults_on:
            return
        profile, rng = self.profile, self.engine.rng
        seconds = STEP_MS / 1000
        names = [host.name for host in self.directory.hosts.values()]
        if rng.random() < profile.partition_rate * seconds:
            side = [rng.choice(names)]
            if rng.random() < 0.3:
                side.append(rng.choice([name for name in names if name not in side]))
            others = [name for name in names if name not in side]
            others = others if rng.random() < 0.5 else [rng.choice(others)]
            one_way = rng.random() < profile.one_way_chance
            self.network.partition(side, others, one_way=one_way, for_ms=rng.randint(*profile.partition_ms))
        for node_id, host in self.directory.hosts.items():
            self._maybe_crash(node_id, host, seconds)
            self._maybe_pause(host, seconds)
        self._maybe_stop_broker(seconds)
        self._maybe_transfer(seconds)
        if profile.forged_heartbeat_rate and rng.random() < profile.forged_heartbeat_rate * seconds:
            self.forge_heartbeat(rng.choice(self.broker_ids))
        self.engine.after(STEP_MS, self._throw_faults)

    def _maybe_crash(self, node_id: int, host: Host, seconds: float) -> None:
        process, rng = host.process, self.engine.rng
        if process is None:
            return
        rate = self.profile.crash_rate / len(self.directory.hosts)
        if process.writes_in_flight():
            rate *= self.profile.crash_while_writing_factor
        if rng.random() < rate * seconds:
            self.crash(node_id, power_loss=rng.random() < 0.7)

    def crash(self, node_id: int, *, power_loss: bool) -> None:
        """Ends a process at once and starts it again some time later."""
        host = self.directory[node_id]
        process = host.process
        if process is None:
            return
        if power_loss and process.store.log.synced_offset < process.store.log.end_offset:
            self.marks.add("unsynced data lost")
        host.crash(power_loss=power_loss)
        self.calls.process_died(process)
        self.engine.after(self.engine.rng.randint(*self.profile.down_ms), lambda: self.boot(node_id))

    def _maybe_pause(self, host: Host, seconds: float) -> None:
        process, rng = host.process, self.engine.rng
        if process is None or process.paused:
            return
        if rng.random() >= self.profile.pause_rate / len(self.directory.hosts) * seconds:
            return
        duration = rng.randint(*self.profile.pause_ms)
        if (
            isinstance(process, ControllerProcess)
            and process.core.is_leader
            and duration > SESSION_TIMEOUT_MS
        ):
            self.marks.add("leader paused past the session timeout")
        self.engine.trace(host.name, f"paused for {duration} ms")
        process.pause()

        def resume() -> None:
            if process.alive and process.paused:
                self.engine.trace(host.name, "resumed")
                process.resume()

        self.engine.after(duration, resume)

    def _maybe_stop_broker(self, seconds: float) -> None:
        rng = self.engine.rng
        if rng.random() < self.profile.broker_stop_rate * seconds:
            process = self.directory[rng.choice(self.broker_ids)].process
            if process is not None:
                self.engine.trace(process.host.name, "SIGTERM")
                process.ask_to_stop()

    def _maybe_transfer(self, seconds: float) -> None:
        rng = self.engine.rng
        if rng.random() < self.profile.transfer_rate * seconds:
            asked = self.directory[rng.choice(self.controller_ids)]
            request = TransferLeadershipRequest(target_id=rng.choice(self.controller_ids))

            def finish(response: object, _outright: bool) -> None:
                if type(response).__name__ == "Done":
                    self.marks.add("leadership transferred")

            self.calls.client("operator", asked, request, 2_000, finish, lambda reason: None)

    def forge_heartbeat(self, broker_id: int) -> None:
        """A heartbeat in a broker's name, with its current epoch, requests a shutdown."""
        active = self._active()
        known = None if active is None else active.node.ledger.newest.brokers.get(broker_id)
        if active is None or known is None:
            return
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=known.epoch,
            applied_offset=active.node.ledger.committed_offset,
            want_shutdown=True,
        )
        self.engine.trace("forger", f"broker {broker_id} of epoch {known.epoch} wants to stop")

        def finish(response: object, _outright: bool) -> None:
            if isinstance(response, BrokerHeartbeatResponse):
                self.marks.add("heartbeat forged")

        self.calls.client(
            "forger", self.directory[active.node_id], request, 2_000, finish, lambda reason: None
        )

    # ---- healing ---------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.engine.trace("world", "heals")
        self.faults_on = False
        self.network.heal()
        for node_id, host in self.directory.hosts.items():
            host.perfect_disk = True
            process = host.process
            if process is None:
                self.boot(node_id)
            elif process.paused:
                process.resume()

    def ask_active(self, request: Any, then: Callable[[Any], None] = lambda response: None) -> None:
        """An operator sends the active controller one request, if there is one."""
        active = self._active()
        if active is not None:
            self.calls.client(
                "admin",
                self.directory[active.node_id],
                request,
                2_000,
                lambda response, _: then(response),
                lambda reason: None,
                once=True,
            )

    def _active(self) -> ControllerProcess | None:
        active = [process for process in self.controllers() if process.node.active is not None]
        return max(active, key=lambda process: process.core.epoch, default=None)

    def _is_well(self) -> bool:
        return not self._what_is_unwell()

    def _what_is_unwell(self) -> str:
        active, controllers = self._active(), self.controllers()
        if active is None:
            return "no controller is active"
        if len(controllers) < len(self.own_controller_ids):
            return "a controller is down"
        followers = [process for process in controllers if process.core.epoch != active.core.epoch]
        if followers:
            return f"controller {followers[0].node_id} is in another epoch"
        return self.unwell_brokers(active)

    def unwell_brokers(self, active: ControllerProcess) -> str:
        """What is wrong with brokers, as far as that can be seen; empty: nothing."""
        brokers = {broker.node_id: broker for broker in self.brokers()}
        for node_id in self.broker_ids:
            broker = brokers.get(node_id)
            if broker is None:
                return f"broker {node_id} is down"
            now_ms = broker.host.monotonic_ms()
            if not broker.node.serves(now_ms):
                status = broker.node.status(now_ms=now_ms)
                return f"broker {node_id} is {status.state.name}: {status.last_problem}"
            registration = active.node.ledger.committed.image.brokers.get(node_id)
            if registration is None or registration.fenced:
                return f"broker {node_id} is fenced in the image"
            if registration.in_controlled_shutdown:
                return f"broker {node_id} is in controlled shutdown in the image, and runs"
        return ""

    def _same_offsets(self) -> bool:
        ends = {process.node.ledger.committed_offset for process in self.controllers()}
        active = self._active()
        return active is not None and len(ends) == 1 and not active.node.ledger.pending


def run(seed: int, on_line: Callable[[str], None] | None = None) -> Outcome:
    """One whole run, with load from `LOADED_FROM` on, with data from `DATA_FROM` on, with older copies of
    directories from `COPIES_FROM` on, with changing voters from `VOTERS_FROM` on, with groups and
    transactions from `KAFKA_FROM` on, with combined nodes from `COMBINED_FROM` on, with brokers of Apache
    Kafka from `FOREIGN_FROM` on, with voters of Apache Kafka from `MIXED_FROM` on, which are added and
    removed from `CHANGES_FROM` on. Raises SafetyError or LivenessError with the world's last lines as a
    note."""
    from tests.sim.combined import COMBINED_FROM, CombinedWorld
    from tests.sim.data_world import DataWorld
    from tests.sim.foreign.changes import CHANGES_FROM, ChangingWorld
    from tests.sim.foreign.quorum import MIXED_FROM, MixedWorld
    from tests.sim.foreign.world import FOREIGN_FROM, ForeignWorld
    from tests.sim.kafka.plan import KAFKA_FROM
    from tests.sim.kafka.world import KafkaWorld
    from tests.sim.loaded import LoadedWorld  # it is a World
    from tests.sim.older_copies import COPIES_FROM, OlderCopyWorld
    from tests.sim.voters.plan import VOTERS_FROM
    from tests.sim.voters.world import VoterWorld

    kinds = (
        (CHANGES_FROM, ChangingWorld),
        (MIXED_FROM, MixedWorld),
        (FOREIGN_FROM, ForeignWorld),
        (COMBINED_FROM, CombinedWorld),
        (KAFKA_FROM, KafkaWorld),
        (VOTERS_FROM, VoterWorld),
        (COPIES_FROM, OlderCopyWorld),
        (DATA_FROM, DataWorld),
        (LOADED_FROM, LoadedWorld),
        (0, World),
    )
    kind = next(kind for first, kind in kinds if seed >= first)
    world = kind(seed, on_line)
    try:
        return world.run()
    except Exception as error:
        error.add_note(f"replay it: make sim SEED={seed}")
        error.add_note("last events:\n" + "\n".join(list(world.engine.tail)[-25:]))
        raise
