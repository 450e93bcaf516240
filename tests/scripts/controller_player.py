"""An active controller of a quorum of one, driven by a script: answers, records and the brokers' states.

A batch is shown when it is committed, with its offsets; topic ids are shown by the topics' names.
"""

from __future__ import annotations

from typing import Any

from metaquorum.controller.server.main import node_status
from metaquorum.metadata.image import Acl, ConfigResource, MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as records
from metaquorum.metadata.records.types import BrokerFeature, TopicRecord
from metaquorum.metadata.requests import common as requests
from metaquorum.metadata.requests import common as requests_broker_ids
from metaquorum.metadata.requests import common as requests_voters
from metaquorum.metadata.requests import partitions as requests_partitions
from metaquorum.metadata.requests import partitions as requests_reassignments
from metaquorum.metadata.requests import settings as requests_settings
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest, Mutator, RegisterBrokerRequest
from tests.scripts.player import Memory, Player, show
from tests.scripts.session_player import ids, numbers
from tests.unit.controller.node_quorum import CLUSTER, Quorum, registration

WORDS: dict[str, Any] = {
    name: value
    for module in (
        records,
        requests,
        requests_partitions,
        requests_settings,
        requests_broker_ids,
        requests_reassignments,
        requests_voters,
        control,
    )
    for name, value in vars(module).items()
    if isinstance(value, type)
} | {"ConfigResource": ConfigResource, "Acl": Acl}


FEATURES = (
    ("metadata.version", 1, 25),
    ("transaction.version", 0, 2),
    ("eligible.leader.replicas.version", 0, 1),
)
"""That every broker supports."""


NOT_TOLD = (
    *("_replica", "_config", "config", "_rng", "rng", "_quorum", "incarnation_id", "_scans"),
    *("_candidates_of", "image", "_topic_defaults", "_seen_brokers", "_seen"),
    *("_collects", "_sweeps"),
)
"""What the node remembers that records and facts show already, or that follows from the image."""


class ControllerPlayer(Player):
    """Brokers 1, 2, ... with one directory each, which are named by letters: d of broker 1 is `d1`."""

    def __init__(self) -> None:
        super().__init__()
        self._quorum: Quorum | None = None
        self.seen_offset = 0
        self.waiting: dict[int, str] = {}
        self.names: dict[str, str] = {}
        self._memory = Memory(*NOT_TOLD)
        self.tokens: list[requests_settings.CreateTokenResponse] = []
        self.mutator: Mutator | None = None

    @property
    def quorum(self) -> Quorum:
        assert self._quorum is not None, "begin with: quorum"
        return self._quorum

    @property
    def image(self) -> MetadataImage:
        return self.quorum.leader.node.ledger.newest

    # ---- what is shown

    def take(self) -> None:
        """Answers that are there now, batches since the last look, and what is other than before."""
        leader = self.quorum.leader
        for warning in leader.warnings:
            self.say(f"Warn {warning!r}")
        leader.warnings.clear()
        causes = self.quorum.causes(self.seen_offset)
        for cause, batch in zip(causes, self.quorum.batches(self.seen_offset), strict=True):
            if cause is not None:
                self.say(f"by {' of '.join(filter(None, (cause.rule, cause.request, cause.client_id)))}")
            for record in batch:
                if isinstance(record, TopicRecord):
                    self.names[record.topic_id.hex()] = record.name
            self.say(f"| {show(batch[0])}")
            for record in batch[1:]:
                self.say(f"  {show(record)}")
        self.seen_offset = leader.end_offset
        for key in [key for key in self.waiting if key in leader.answers]:
            answer = leader.answers[key]
            self.say(f"{self.waiting.pop(key)}: {show(answer)}")
            if isinstance(answer, requests_settings.CreateTokenResponse):
                self.tokens.append(answer)
        self._say_state()
        self.lines = [self._with_names(line) for line in self.lines]

    def _with_names(self, line: str) -> str:
        for identity, name in self.names.items():
            line = line.replace(identity, name)
        return line

    def _say_state(self) -> None:
        node = self.quorum.leader.node
        status = node_status(node)
        facts = {
            f"broker {each.broker_id}": f"{each.state.name} epoch={each.epoch}"
            f" applied={show(each.applied_offset)} lease={show(each.lease_remaining_ms)}"
            for each in status.brokers
        }
        work = ", ".join(type(each).__name__ for each in node.active.work) if node.active else ""
        facts |= {"work": work or "-", "waiting": f"{len(self.waiting)}"}
        for name, fact in facts.items():
            if self._known.get(name, "-") != fact and (name, fact) != ("waiting", "0"):
                self.say(f". {name}: {fact}")
        for name in sorted(self._known.keys() - facts.keys()):
            self.say(f". {name}: no more")
        self._known = facts
        told = self._memory.told(active=node.active)
        if told:
            self.say(f". due={node.next_deadline_ms()} {told}")

    # ---- commands

    def do_quorum(self, level: str = "25", elr: str = "no", **config: str) -> None:
        """quorum level=25 elr=yes records_per_slice_max=2: a log that begins at this level."""
        first = [records.FeatureLevelRecord("metadata.version", int(level))]
        if elr == "yes":
            first.append(records.FeatureLevelRecord("eligible.leader.replicas.version", 1))
        settings: dict[str, Any] = {
            name: value == "yes"
            if value in ("yes", "no")
            else int(value)
            if value.lstrip("-").isdigit()
            else value
            for name, value in config.items()
        }
        self._quorum = Quorum(
            size=1, config=ControllerConfig(cluster_id=CLUSTER, node_id=0, bootstrap=tuple(first), **settings)
        )
        self._known, self.seen_offset = {}, 0
        self.quorum.elect()
        self.quorum.settle()
        self.take()

    def do_restart(self) -> None:
        """The controller starts again with what it has on its disk."""
        leader = self.quorum.leader
        leader.kill()
        leader.boot()
        self.quorum.elect()
        self.quorum.settle()
        self.take()

    def do_pass(self, ms: str) -> None:
        """Time passes, deadline by deadline."""
        self.quorum.advance(int(ms))
        self.take()

    def request(self, name: str, request: object, ago_ms: int = 0) -> None:
        at = self.quorum.now_ms - ago_ms
        key = self.quorum.request(request, arrived_ms=at, mutator=self.mutator, client_id=f"'{name}'")
        self.waiting[key] = name
        self.quorum.settle()
        self.take()

    def do_register(self, broker: str, incarnation: str = "1", ago: str = "0", **options: str) -> None:
        """register 1 incarnation=2 dirs=d,e previous=7 rack=a key=host-1"""
        changes: dict[str, Any] = {
            "rack": options.get("rack"),
            "binding_key": options.get("key"),
            "features": tuple(BrokerFeature(*each) for each in FEATURES),
        }
        if "dirs" in options:
            changes["directories"] = ids(options["dirs"])
        if "previous" in options:
            changes["previous_broker_epoch"] = int(options["previous"])
        if "cluster" in options:
            changes["cluster_id"] = options["cluster"]
        request: RegisterBrokerRequest = registration(int(broker), int(incarnation), **changes)
        self.request(f"register {broker}", request, int(ago))

    def do_beat(self, *words: str, ago: str = "0", **options: str) -> None:
        """beat 1 fence stop behind=2 offline=d epoch=-1: relative to what is registered and committed."""
        broker_id = int(words[0])
        node = self.quorum.leader.node
        known = node.ledger.newest.brokers.get(broker_id)
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=(-1 if known is None else known.epoch) + int(options.get("epoch", "0")),
            applied_offset=node.ledger.committed_offset - int(options.get("behind", "0")),
            want_fence="fence" in words,
            want_shutdown="stop" in words,
            offline_directories=ids(options.get("offline", "")),
        )
        self.request(f"beat {broker_id}", request, int(ago))

    def do_up(self, *brokers: str, **options: str) -> None:
        """up 1 2 3: register and beat, not shown in between."""
        for broker in brokers:
            self.do_register(broker, **options)
            self.do_beat(broker)

    def do_beats(self, ms: str, brokers: str) -> None:
        """Time passes while brokers beat once a second; only what follows is shown."""
        self.quorum.beat_for(int(ms), *numbers(brokers))
        self.take()

    def do_create(self, name: str, *lists: str) -> None:
        """create x 1,2 2,3: partitions with these replicas."""
        topic = requests.NewTopic(name=name, assignments=tuple(numbers(each) for each in lists))
        self.request(f"create {name}", requests.CreateTopicsRequest(topics=(topic,)))

    def do_isr(self, name: str, index: str, members: str, **options: str) -> None:
        """isr x 0 1,2 [by=3 epoch=-1 version=-1 state=1 told=2]: its leader, or another, wants this ISR;
        epochs relative to those of the image. told: members whose epoch is said, and off by `late`."""
        topic = self.image.topics.topic_named(name)
        assert topic is not None
        known = self.image.topics.partition(topic.topic_id, int(index))
        sender = int(options.get("by", "0")) or (1 if known is None else known.leader)
        told = numbers(options.get("told", ""))
        late = int(options.get("late", "0"))
        wanted = requests_partitions.PartitionAlteration(
            topic_id=topic.topic_id,
            partition=int(index),
            leader_epoch=(known.leader_epoch if known else 0) + int(options.get("epoch", "0")),
            partition_epoch=(known.partition_epoch if known else 0) + int(options.get("version", "0")),
            isr=tuple(
                requests_partitions.IsrMember(
                    broker_id=each,
                    broker_epoch=self.image.brokers[each].epoch + late if each in told else None,
                )
                for each in numbers(members)
            ),
            leader_recovery_state=int(options.get("state", "0")),
        )
        epoch = self.image.brokers[sender].epoch
        request = requests_partitions.AlterPartitionRequest(
            broker_id=sender, broker_epoch=epoch, partitions=(wanted,)
        )
        self.request(f"isr {name}-{index}", request)

    def do_place(self, broker: str, directory: str, *replicas: str) -> None:
        """place 1 d x-0 x-1: broker 1 says that these replicas of it are in its directory d."""
        parts = [replica.rsplit("-", 1) for replica in replicas]
        topics = self.image.topics
        request = requests_partitions.AssignReplicasToDirsRequest(
            broker_id=int(broker),
            broker_epoch=self.image.brokers[int(broker)].epoch,
            assignments=tuple(
                requests_partitions.ReplicaAssignment(
                    directory_id=ids(directory)[0],
                    topic_id=topics.topic_named(name).topic_id,  # type: ignore[union-attr]
                    partition=int(index),
                )
                for name, index in parts
            ),
        )
        self.request(f"place {broker}", request)

    def do_set(self, resource: str, key: str, value: str = "", kind: str = "SET") -> None:
        """set topic:x unclean.leader.election.enable true, set broker: min.insync.replicas kind=DELETE"""
        types = {"topic": 2, "broker": 4}
        kind_of, _, name = resource.partition(":")
        op = requests_settings.ConfigOp(
            kind=requests_settings.OpKind[kind], name=key, value=value if kind != "DELETE" else None
        )
        change = requests_settings.ConfigChange(resource=ConfigResource(types[kind_of], name), ops=(op,))
        self.request(f"set {resource}", requests_settings.AlterConfigsRequest(changes=(change,)))

    def do_move(self, name: str, index: str, replicas: str) -> None:
        """move x 0 2,3; move x 0 - cancels."""
        wanted = requests_reassignments.WantedReplicas(
            topic=name, partition=int(index), replicas=None if replicas == "-" else numbers(replicas)
        )
        self.request(
            f"move {name}-{index}", requests_reassignments.AlterReassignmentsRequest(wanted=(wanted,))
        )

    def do_elect(self, kind: str, *partitions: str) -> None:
        """elect unclean x-0; elect preferred: all."""
        named = tuple((each.rsplit("-", 1)[0], int(each.rsplit("-", 1)[1])) for each in partitions)
        request = requests_partitions.ElectLeadersRequest(
            unclean={"unclean": True, "preferred": False}[kind], partitions=named or None
        )
        self.request(f"elect {kind}", request)

    def do_by(self, user: str, client_id: str, kind: str) -> None:
        """by alice cli strict, by alice cli patient: this client sends the requests from now on."""
        self.mutator = Mutator(
            user=user, client_id=client_id, strict={"strict": True, "patient": False}[kind]
        )

    def do_status(self) -> None:
        """All that the node says of itself, and when the active controller has something to do next."""
        node, now_ms = self.quorum.leader.node, self.quorum.now_ms
        due_ms = node.active.next_deadline_ms(now_ms) if node.active else None
        self.say(show(node_status(node)))
        self.say(f"due: {'-' if due_ms is None else f'+{due_ms - now_ms}'}")

    def do_partition(self, name: str, index: str = "0") -> None:
        found = self.image.topics.topic_named(name)
        assert found is not None
        self.say(show(self.image.topics.partition(found.topic_id, int(index))))
        self.lines = [self._with_names(line) for line in self.lines]

    def run(self, command: str) -> list[str]:
        """`ask NAME EXPRESSION`: a request as it is written in Python, `id("x")` being a topic's id."""
        if not command.startswith("ask "):
            return super().run(command)
        self.lines = []
        _, name, expression = command.split(" ", 2)
        names = {"__builtins__": {"bytes": bytes, "tuple": tuple}, **WORDS, **self._names_for_requests()}
        request = eval(expression, names)
        self.request(name, request)
        return self.lines

    def _hmac(self, owner: str) -> bytes:
        """Of the newest token of an owner."""
        return [each.hmac for each in self.tokens if each.owner == owner][-1]

    def _names_for_requests(self) -> dict[str, Any]:
        brokers = self.image.brokers
        return {
            "id": lambda name: self.image.topics.topic_named(name).topic_id,  # type: ignore[union-attr]
            "epoch": lambda broker_id: brokers[broker_id].epoch,
            "d": lambda word: ids(word)[0],
            "hmac": self._hmac,
        }
