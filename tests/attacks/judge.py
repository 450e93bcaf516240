"""The judge of attacks: what other clients notice, and what a node may use and say, whatever the attack
is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import msgspec

from tests.attacks.attack import Attack
from tests.attacks.site import TOPIC, AttackedSite
from tests.e2e.cluster import Node
from tests.e2e.processes import ENVIRONMENT, REPOSITORY, Timeout, wait_until

ATTACK_S = 40.0
"""An attack that has not ended by itself is killed."""
LATENCY_S = 1.0
"""The longest produce and the longest read of the quorum under attack, on a quiet machine; a multiple of what
they took before the attack is added. A machine with other work gets as many times more."""
LATENCY_BESIDE_TESTS_S = 5.0
"""The same where other tests take the processors in bursts that the load does not show yet."""
PATIENCE = 6
RECOVERY_S = 10.0
MEMORY_BYTES = 400 * 1024 * 1024
"""By how much a node's memory may grow under one attack."""
LINES = 20
"""The most log lines of a node about one attack."""
BASELINE_S = 2.0
PAUSE_S = 0.05
GIVE_UP_S = 30.0
OFFLINE = ("is offline", "went offline", "taken offline", "Traceback")


@dataclass(slots=True)
class Verdict:
    """What was measured; `problems` are empty if the site passed."""

    attack: str
    seed: int
    slowest_s: dict[str, float] = field(default_factory=dict)
    grown_bytes: dict[str, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    recovered_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        """One line, and one for each problem with how to repeat the attack."""
        slowest = ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in self.slowest_s.items())
        grown = max(self.grown_bytes.values(), default=0) // 2**20
        most = max(self.lines.values(), default=0)
        head = f"{self.attack} seed {self.seed}: {slowest}; +{grown} MB; {most} lines"
        if not self.problems:
            return head
        again = f"python -m tests.attacks {self.attack} --seed {self.seed}"
        return "\n  ".join([f"{head}; FAILED", *self.problems, f"repeat: {again}"])


class Probe:
    """Does something again and again on a thread, and notes the slowest."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name, self._work = name, work
        self.slowest_s, self.count, self.failures = 0.0, 0, 0
        self.last_failure = ""
        self._begun_s: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            self._begun_s = time.monotonic()
            try:
                self._work()
            except Exception as error:
                self.failures, self.last_failure = self.failures + 1, str(error) or repr(error)
            self._note(self._begun_s)
            self._begun_s = None
            self.count += 1

    def _note(self, begun_s: float) -> None:
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)

    def reset(self) -> float:
        """The slowest until now, an unfinished one included; starts over."""
        begun_s = self._begun_s
        if begun_s is not None:
            self._note(begun_s)
        slowest_s, self.slowest_s, self.failures = self.slowest_s, 0.0, 0
        return slowest_s

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(GIVE_UP_S)


class Producing:
    """Sends one record at a time with acks=all to one partition, on a connection that stays open."""

    def __init__(self, site: AttackedSite, broker_id: int) -> None:
        self._partition = broker_id
        self._producer = confluent_kafka.Producer(
            {**site.client(broker_id), "linger.ms": 0, "reconnect.backoff.max.ms": 200}
        )

    def __call__(self) -> None:
        failed: list[object] = []
        self._producer.produce(
            TOPIC, b"x" * 100, partition=self._partition, on_delivery=lambda error, _: failed.append(error)
        )
        if self._producer.flush(GIVE_UP_S):
            raise TimeoutError("no answer to a produce")
        if failed != [None]:
            raise RuntimeError(str(failed))


def crowding() -> float:
    """How many processes want each processor; 1 on a quiet machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def memory_bytes(node: Node) -> int:
    """The resident memory of a process; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


class Judge:
    """Judges attacks on one site, one after the other. Use as a context manager."""

    def __init__(self, site: AttackedSite, latency_s: float = LATENCY_S) -> None:
        self._site, self._latency_s = site, latency_s
        self._probes: list[Probe] = []

    def __enter__(self) -> Judge:
        site = self._site
        works: dict[str, Callable[[], None]] = {
            "produce": Producing(site, 0),
            "produce beside": Producing(site, 1),
            "quorum": self._quorum,
        }
        for work in works.values():
            work()
        self._probes = [Probe(name, work) for name, work in works.items()]
        return self

    def __exit__(self, *exception: object) -> None:
        for probe in self._probes:
            probe.stop()

    def _quorum(self) -> None:
        self._site.quorum(GIVE_UP_S)

    def judge(self, attack: Attack, seed: int) -> Verdict:
        """Runs one attack and says what it did."""
        site, verdict = self._site, Verdict(attack.name, seed)
        before = {node.name: memory_bytes(node) for node in site.nodes}
        said = {node.name: len(node.lines()) for node in site.nodes}
        epochs = {each.broker_id: each.epoch for each in site.registrations().values()}
        for probe in self._probes:
            probe.reset()
        time.sleep(BASELINE_S)
        usual_s = {probe.name: probe.reset() for probe in self._probes}
        most = self._strike(attack, seed, verdict)
        for probe in self._probes:
            slowest_s = verdict.slowest_s[probe.name] = probe.reset()
            bound_s = crowding() * self._latency_s + PATIENCE * usual_s[probe.name]
            if slowest_s > bound_s:
                verdict.problems.append(
                    f"{probe.name} took {slowest_s:.1f} s, at most {bound_s:.1f} s are allowed "
                    f"({usual_s[probe.name]:.2f} s before) {probe.last_failure}"
                )
        self._recover(verdict)
        for node in site.nodes:
            allowed = attack.memory_bytes or MEMORY_BYTES
            grown = verdict.grown_bytes[node.name] = most[node.name] - before[node.name]
            if grown > allowed:
                verdict.problems.append(
                    f"{node.name} grew by {grown >> 20} MB, at most {allowed >> 20} MB are allowed"
                )
            self._judge_node(node, node.lines()[said[node.name] :], verdict)
        if not verdict.problems:
            for each in site.registrations().values():
                if each.epoch != epochs[each.broker_id] or each.fenced:
                    verdict.problems.append(f"broker {each.broker_id} was fenced or registered again")
        return verdict

    def _strike(self, attack: Attack, seed: int, verdict: Verdict) -> dict[str, int]:
        """Runs the attack; returns the most memory that each node had meanwhile."""
        target = msgspec.json.encode(self._site.target).decode()
        command = (sys.executable, "-m", "tests.attacks.strike", attack.name, str(seed), target)
        most = {node.name: 0 for node in self._site.nodes}
        with subprocess.Popen(command, cwd=REPOSITORY, env=ENVIRONMENT, stderr=subprocess.PIPE) as child:
            deadline = time.monotonic() + ATTACK_S
            while child.poll() is None and time.monotonic() < deadline:
                for node in self._site.nodes:
                    most[node.name] = max(most[node.name], memory_bytes(node))
                time.sleep(PAUSE_S)
            child.kill()
            error = b"" if child.stderr is None else child.stderr.read()
        if error:
            verdict.problems.append(f"the attack itself failed: {error.decode()[-600:]}")
        return most

    def _recover(self, verdict: Verdict) -> None:
        """New connections of other clients get answers again within RECOVERY_S."""
        begun_s = time.monotonic()

        def works(broker_id: int) -> bool:
            producer = confluent_kafka.Producer({**self._site.client(broker_id), "linger.ms": 0})
            producer.produce(TOPIC, b"again", partition=broker_id)
            return producer.flush(RECOVERY_S) == 0

        try:
            for broker_id in self._site.clients:
                wait_until(
                    lambda broker_id=broker_id: works(broker_id),
                    f"broker {broker_id} to serve a new client",
                    timeout_s=RECOVERY_S,
                )
            self._site.quorum()
        except Timeout as error:
            verdict.problems.append(f"no recovery: {str(error).splitlines()[0]}")
        verdict.recovered_s = time.monotonic() - begun_s
        if verdict.recovered_s > RECOVERY_S:
            verdict.problems.append(f"recovery took {verdict.recovered_s:.1f} s")

    def _judge_node(self, node: Node, lines: list[str], verdict: Verdict) -> None:
        verdict.lines[node.name] = len(lines)
        if not node.is_running:
            verdict.problems.append(f"{node.name} ended ({node.exit_code}): {node.last_line()}")
        if len(lines) > LINES:
            verdict.problems.append(f"{node.name} said {len(lines)} lines: {lines[0]} ... {lines[-1]}")
        for sign in OFFLINE:
            if found := next((line for line in lines if sign in line), None):
                verdict.problems.append(f"{node.name}: {found}")
