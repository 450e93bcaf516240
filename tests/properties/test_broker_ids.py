"""Broker ids on every schedule that a seed draws: starts, crashes, lost disks, failovers, lost responses
(S0).

Hosts behave as `broker.server.identity` does: they send requests until there is an id, write it, and register
with it. Messages are delivered one by one, so that the active controller also dies between an append and its
commit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import FeatureLevelRecord
from metaquorum.metadata.requests.common import (
    AllocateBrokerIdRequest,
    AllocateBrokerIdResponse,
    RegisterBrokerResponse,
)
from tests.unit.controller.node_quorum import CLUSTER, Machine, Quorum, registration


@dataclass
class Host:
    """A machine with a name, a disk and at most one process. `asked`: (controller, request key) in flight."""

    name: str
    disk: int | None = None
    home: int | None = None
    incarnation: int = 0
    runs: bool = False
    registered: bool = False
    asked: tuple[Machine, int] | None = None


class Story:
    """One run. `hosts` have keys of their own, as the documentation recommends."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        config = ControllerConfig(
            cluster_id=CLUSTER,
            node_id=0,
            bootstrap=(FeatureLevelRecord(name="metadata.version", feature_level=19),),
            broker_session_timeout_ms=2_000,
            broker_id_gc_interval_ms=700,
        )
        self.q = Quorum(seed=seed + 1, config=config)
        self.q.elect()
        self.hosts = [Host(name=f"host-{at}") for at in range(4)]
        self.starts = 0
        self.answers: dict[int, int] = {}

    def run(self, steps: int) -> None:
        for _ in range(steps):
            host = self.rng.choice(self.hosts)
            action = self.rng.choices(
                (self.start, self.crash, self.lose_disk, self.send, self.deliver, self.wait, self.fail_over),
                weights=(6, 1, 1, 10, 12, 4, 1),
            )[0]
            action(host)
            self.collect()
            self.check()

    # ---- what happens

    def start(self, host: Host) -> None:
        if not host.runs:
            self.starts += 1
            host.runs, host.registered, host.asked = True, False, None
            host.incarnation = self.starts

    def crash(self, host: Host) -> None:
        host.runs, host.registered, host.asked = False, False, None

    def lose_disk(self, host: Host) -> None:
        self.crash(host)
        host.disk = None

    def send(self, host: Host) -> None:
        leader = next((m for m in self.q.machines.values() if m.alive and m.node.active is not None), None)
        if leader is None or not host.runs or host.asked is not None:
            return
        request: object
        if host.disk is None:
            request = AllocateBrokerIdRequest(
                request_id=host.incarnation.to_bytes(16, "big"), binding_key=host.name
            )
        elif host.registered:
            request = self.q.heartbeat_request(host.disk)
        else:
            request = registration(
                host.disk,
                incarnation_id=host.incarnation.to_bytes(16, "big"),
                binding_key=host.name,
                directories=(host.incarnation.to_bytes(16, "little"),),
            )
        host.asked = (leader, self.q.request(request, leader))

    def deliver(self, host: Host) -> None:
        for _ in range(self.rng.choice((1, 3, 10, 40))):
            machine = self.rng.choice(list(self.q.machines.values()))
            machine.step()

    def wait(self, host: Host) -> None:
        self.q.advance(self.rng.choice((20, 300, 1_500, 2_500)))

    def fail_over(self, host: Host) -> None:
        dead = next((m for m in self.q.machines.values() if m.alive and m.node.active is not None), None)
        if dead is not None and all(machine.alive for machine in self.q.machines.values()):
            dead.kill()
            if self.rng.random() < 0.5:
                self.q.elect()
            dead.boot()

    # ---- what is seen

    def collect(self) -> None:
        for host in self.hosts:
            if host.asked is None:
                continue
            machine, key = host.asked
            answer = machine.answers.get(key)
            if answer is None:
                if not machine.alive or machine.node.active is None or self.rng.random() < 0.02:
                    host.asked = None  # it never arrives, or too late
                continue
            host.asked = None
            match answer:
                case AllocateBrokerIdResponse(broker_id=int(broker_id)):
                    before = self.answers.setdefault(host.incarnation, broker_id)
                    assert before == broker_id, "one request was given two ids"
                    if host.home is not None:
                        assert broker_id == host.home, f"{host.name} was {host.home} and is {broker_id}"
                    host.disk = broker_id
                case RegisterBrokerResponse():
                    host.registered = True
                    host.home = host.disk
                case ApiError() if host.registered:
                    host.registered = False
                case _:
                    pass

    def check(self) -> None:
        disks = [host.disk for host in self.hosts if host.disk is not None]
        assert len(set(disks)) == len(disks), f"two hosts have one id: {disks}"

    def calm_down(self) -> None:
        """All hosts start, nothing fails: each runs with an id of its own."""
        for _ in range(600):
            for host in self.hosts:
                self.start(host)
                self.send(host)
            self.q.elect()
            self.q.advance(100)
            self.collect()
            self.check()
            if all(host.registered and self.unfenced(host) for host in self.hosts):
                return
        raise AssertionError(f"hosts without a place: {self.hosts}")

    def unfenced(self, host: Host) -> bool:
        known = None if host.disk is None else self.q.image().brokers.get(host.disk)
        return known is not None and not known.fenced


@settings(max_examples=7, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_s0_ids_are_unique_and_known_hosts_keep_theirs(seed: int) -> None:
    """S0.10, S0.11, S0.13, S0.21: an id has one home, and there are no more ids than hosts."""
    story = Story(seed)
    story.run(250)
    story.calm_down()
    brokers = set(story.q.image().brokers)
    homes = {host.name: host.disk for host in story.hosts}
    assert set(homes.values()) <= brokers
    entries = ids.remembered(story.q.image())
    assert {each.key: each.broker_id for each in ids.bindings(entries)} == homes
    assert len(brokers) == len(story.hosts), "an id was registered that no host has"
    for host in story.hosts:
        story.lose_disk(host)
    story.calm_down()
    assert {host.name: host.disk for host in story.hosts} == homes
    assert set(story.q.image().brokers) == brokers
