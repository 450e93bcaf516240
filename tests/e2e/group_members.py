"""Members of consumer groups as processes of their own, so that kill -9 is one way to leave, and the events
that the groups of each client go through.

A member prints JSON lines: {"assigned": [partitions]}, {"read": [values]} before it commits them, and
{"left": true} after SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.e2e.kafka_site import KafkaCluster, confluent_produce, kill_leader

PARTITIONS = 4
"""Of the topic of a group."""

MESSAGES = 200


class Member:
    def __init__(self, words: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
        self.output = output
        with output.open("wb") as stdout, output.with_suffix(".errors").open("wb") as stderr:
            self.child = subprocess.Popen(words, stdout=stdout, stderr=stderr, env=dict(environment))

    def events(self) -> list[dict[str, Any]]:
        assert self.child.poll() in (None, 0, -signal.SIGKILL), self.output.with_suffix(".errors").read_text()
        whole, _, _ = self.output.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def assigned(self) -> list[int]:
        found = [event["assigned"] for event in self.events() if "assigned" in event]
        return found[-1] if found else []

    def read(self) -> list[str]:
        return [value for event in self.events() for value in event.get("read", ())]

    def leave(self) -> None:
        self.child.send_signal(signal.SIGTERM)
        assert self.child.wait(60) == 0, self.output.with_suffix(".errors").read_text()
        assert self.events()[-1] == {"left": True}

    def kill(self) -> None:
        self.child.kill()
        self.child.wait(60)


Join = Callable[[str, Path], Member]
"""Starts a member of the group that has the name of its topic; its output goes to the file."""


class Group:
    """One client's group, which reads a topic of its own."""

    def __init__(
        self, site: KafkaCluster, client: str, join: Callable[[str, Path], Member], home: Path
    ) -> None:
        self.site, self.client, self.home = site, client, home
        self.topic = f"members-{client}"
        self.members: list[Member] = []
        self.sent: list[str] = []
        self._join = join
        site.create_topic(self.topic, PARTITIONS)

    def join(self) -> Member:
        member = self._join(self.topic, self.home / f"{self.client}-{len(self.members)}.out")
        self.members.append(member)
        return member

    def write(self) -> None:
        new = [f"{self.client} {len(self.sent) + number}" for number in range(MESSAGES)]
        confluent_produce(self.site, self.topic, [value.encode() for value in new])
        self.sent += new

    def is_shared(self, *members: Member) -> bool:
        shares = [member.assigned() for member in members]
        return sorted(index for share in shares for index in share) == list(range(PARTITIONS)) and all(shares)

    def wait_shared(self, *members: Member) -> None:
        self.site.cluster.wait(
            lambda: self.is_shared(*members) or None,
            f"{len(members)} {self.client} members share all partitions",
        )

    def wait_read(self) -> None:
        """Nothing is skipped. What a member read and could not commit is read again."""

        def all_is_read() -> bool:
            return {value for member in self.members for value in member.read()} == set(self.sent)

        self.site.cluster.wait(
            lambda: all_is_read() or None, f"{self.client} reads {len(self.sent)} messages"
        )

    def wait_committed(self) -> None:
        """What was read, and nothing else."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.site.bootstrap, "group.id": self.topic}
        )
        parts = [confluent_kafka.TopicPartition(self.topic, index) for index in range(PARTITIONS)]

        def committed() -> bool:
            return sum(part.offset for part in consumer.committed(parts, 60)) == len(self.sent)

        self.site.cluster.wait(committed, f"{self.client} to commit {len(self.sent)} messages")
        consumer.close()


def goes_through_everything(site: KafkaCluster, home: Path, clients: Mapping[str, Join]) -> None:
    """All groups at once: two members share the topic; one leaves; one is killed with -9; the coordinator is
    killed."""
    with contextlib.ExitStack() as stack:
        groups = [Group(site, client, join, home) for client, join in clients.items()]

        def joined(group: Group) -> Member:
            member = group.join()
            stack.callback(member.kill)
            return member

        def share_out(pairs: Sequence[tuple[Member, Member]]) -> None:
            for group, pair in zip(groups, pairs, strict=True):
                group.wait_shared(*pair)
            for group in groups:
                group.write()
            for group in groups:
                group.wait_read()

        firsts = [joined(group) for group in groups]
        seconds = [joined(group) for group in groups]
        share_out(list(zip(firsts, seconds, strict=True)))
        for group, first, second in zip(groups, firsts, seconds, strict=True):
            second.leave()
            group.wait_shared(first)
        thirds = [joined(group) for group in groups]
        share_out(list(zip(firsts, thirds, strict=True)))
        for third in thirds:
            third.kill()
        for group, first in zip(groups, firsts, strict=True):
            group.write()
            group.wait_shared(first)
        kill_leader(site, "__consumer_offsets")
        for group, first in zip(groups, firsts, strict=True):
            group.write()
            group.wait_read()
            group.wait_committed()
            first.leave()
