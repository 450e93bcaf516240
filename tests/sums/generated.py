"""Stories that a seed writes: the life of a small cluster, with every type of record and what goes wrong.

Most of it a controller could have written; now and then there is a record that does not fit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

BROKERS = (1, 2, 3, 4)
CONTROLLERS = (3000, 3001, 3002)
LENGTH = 50
WILD = 0.04
CAUSES = ("CreateTopics", "AlterPartition", "BrokerHeartbeat", "IncrementalAlterConfigs", "ElectLeaders")


@dataclass(slots=True)
class Partition:
    replicas: list[int]
    isr: list[int]
    leader: int
    is_moving: bool = False


@dataclass(slots=True)
class Cluster:
    """The cluster as the commands so far make it."""

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    fenced: dict[int, bool] = field(default_factory=dict)
    topics: dict[str, list[Partition]] = field(default_factory=dict)
    settings: list[tuple[str, str]] = field(default_factory=list)
    made: int = 0
    voters: int = 1
    is_open: bool = False

    def add(self, *records: str) -> None:
        by = self.rng.random()
        if by < 0.15 and not self.is_open:
            who = f'by("{self.rng.choice(CAUSES)}", principal="User:u{self.made % 3}", address="10.0.0.1")'
            records = (who, *records)
        elif by < 0.2 and not self.is_open:
            records = ('by(rule="session-expired")', *records)
        self.lines.append(f"> add {', '.join(records)}")

    # ---- brokers ---------------------------------------------------------------------------------

    def broker(self) -> None:
        rng = self.rng
        broker = rng.choice(BROKERS)
        if broker not in self.fenced or rng.random() < 0.25:
            self.fenced[broker] = True
            self.add(f'registers({broker}, "d{broker}", rack="r{broker % 2}")')
            return
        pick = rng.random()
        if self.fenced[broker]:
            self.add(f"unfences({broker})")
            self.fenced[broker] = False
        elif pick < 0.2:
            self.add(f"stops({broker})")
        elif pick < 0.3:
            self.add(f'dirs({broker}, "d{broker}", "e{broker}")')
        elif pick < 0.35:
            self.fenced.pop(broker)
            self.add(f"fences({broker})", f"unregisters({broker})")
        else:
            self._leaves(broker)

    def _leaves(self, broker: int) -> None:
        """It is fenced, and its partitions get other leaders or none."""
        self.fenced[broker] = True
        moves = []
        for name, partitions in self.topics.items():
            for index, one in enumerate(partitions):
                if broker in one.isr and len(one.isr) > 1:
                    one.isr.remove(broker)
                    one.leader = one.isr[0] if one.leader == broker else one.leader
                    moves.append(f'moves("{name}-{index}", leader={one.leader}, isr={one.isr})')
                elif broker == one.leader:
                    one.leader = -1
                    moves.append(f'moves("{name}-{index}", leader=-1)')
        self.add(*moves[:6], f"fences({broker})")

    # ---- topics ----------------------------------------------------------------------------------

    def create(self) -> None:
        rng = self.rng
        if self.topics and rng.random() < 0.3:
            name = rng.choice(sorted(self.topics))
            one = self._partition()
            self.topics[name].append(one)
            self.add(f'adds("{name}-{len(self.topics[name]) - 1}", {one.replicas})')
            return
        self.made += 1
        name = rng.choice(("orders", "Payments", "t", "x.y")) + (str(self.made) if self.made > 1 else "")
        self.topics[name] = [self._partition() for _ in range(rng.randint(1, 3))]
        records = [f'topic("{name}", {", ".join(str(one.replicas) for one in self.topics[name])})']
        if rng.random() < 0.4:
            records.append(f'sets("topic/{name}", "min.insync.replicas", "{rng.randint(1, 3)}")')
        self.add(*records)

    def _partition(self) -> Partition:
        replicas = self.rng.sample(BROKERS, self.rng.randint(1, 3))
        return Partition(replicas, list(replicas), replicas[0])

    def delete(self) -> None:
        if len(self.topics) > 2:
            name = self.rng.choice(sorted(self.topics))
            del self.topics[name]
            self.add(f'RemoveTopic(uuid("{name}"))')

    def change(self) -> None:
        rng = self.rng
        if not self.topics:
            self.create()
            return
        name = rng.choice(sorted(self.topics))
        index = rng.randrange(len(self.topics[name]))
        one = self.topics[name][index]
        fields = self._wild() if rng.random() < WILD else self._changed(one)
        self.add(f'moves("{name}-{index}", {fields})')

    def _wild(self) -> str:
        return self.rng.choice(("leader=9", "isr=[]", "replicas=[1, 1]", "isr=[7]", "leader=4, isr=[1]"))

    def _changed(self, one: Partition) -> str:
        rng = self.rng
        pick = rng.randrange(7)
        if pick == 0 and not one.is_moving:
            new = next((broker for broker in BROKERS if broker not in one.replicas), one.replicas[0])
            one.is_moving = True
            one.replicas = [*dict.fromkeys([*one.replicas, new])]
            return f"replicas={one.replicas}, adding_replicas=[{new}], removing_replicas=[{one.replicas[0]}]"
        if pick == 1 and one.is_moving:
            one.is_moving = False
            one.isr = list(one.replicas)
            one.leader = one.replicas[-1]
            return (
                f"replicas={one.replicas}, isr={one.isr}, leader={one.leader}, "
                "adding_replicas=[], removing_replicas=[]"
            )
        if pick == 2:
            out = [broker for broker in one.replicas if broker not in one.isr]
            one.leader, one.isr = (out or one.isr)[0], [(out or one.isr)[0]]
            return f"leader={one.leader}, isr={one.isr}, leader_recovery_state={int(bool(out))}"
        if pick == 3 and len(one.isr) > 1:
            gone = one.isr.pop()
            one.leader = one.isr[0]
            return f"isr={one.isr}, leader={one.leader}, eligible_leader_replicas=[{gone}]"
        if pick == 4:
            one.leader = -1
            return "leader=-1"
        one.isr = rng.sample(one.replicas, rng.randint(1, len(one.replicas)))
        one.leader = rng.choice(one.isr)
        return f"isr={one.isr}" + (f", leader={one.leader}" if rng.random() < 0.8 else "")

    # ---- everything else -------------------------------------------------------------------------

    def setting(self) -> None:
        rng = self.rng
        places = [*(f"topic/{name}" for name in sorted(self.topics)), "broker/", "broker/1", "broker/9"]
        names = ("min.insync.replicas", "retention.ms", "unclean.leader.election.enable")
        if self.settings and rng.random() < 0.3:
            where, name = self.settings.pop(rng.randrange(len(self.settings)))
            self.add(f'sets("{where}", "{name}", None)')
            return
        where, name = rng.choice(places), rng.choice(names)
        self.settings.append((where, name))
        self.add(f'sets("{where}", "{name}", "{rng.randint(1, 3)}")')

    def security(self) -> None:
        rng = self.rng
        user, number = rng.choice(("bob", "eve")), rng.randint(1, 2)
        quota = 'ClientQuota((QuotaEntity("client-id", None),), "request_percentage"'
        keys = f'uuid("salt"), uuid("stored")*{2 * number}, uuid("server")*{2 * number}'
        self.add(
            rng.choice(
                (
                    f'UserScramCredential("{user}", {number}, {keys}, {rng.choice((4096, 8192))})',
                    f'RemoveUserScramCredential("{user}", {number})',
                    f'AccessControlEntry(uuid("acl {number}"), 2, "orders", 3, "User:{user}", "*", 3, 3)',
                    f'RemoveAccessControlEntry(uuid("acl {number}"))',
                    f'DelegationToken("{user}", "eve", ["joe"], 1, 2, 3, "token {number}")',
                    f'RemoveDelegationToken("token {number}")',
                    f'ClientQuota((QuotaEntity("user", "{user}"),), "producer_byte_rate", {number}.5, False)',
                    f'ClientQuota((QuotaEntity("user", "{user}"),), "producer_byte_rate", 0.0, True)',
                    f"{quota}, {number}.0, False)",
                    f'Config(16, "metrics", "interval.ms", "{number}000")',
                    f'Config(32, "group", "consumer.session.timeout.ms", "{number}000")',
                )
            )
        )

    def rare(self) -> None:
        rng = self.rng
        pick = rng.randrange(8)
        if pick == 0:
            self.add(f"level({rng.choice((23, 24, 25))})")
        elif pick == 1:
            self.add(f'level({rng.randint(0, 1)}, "group.version")')
        elif pick == 2:
            self.add(f"ProducerIds({rng.choice(BROKERS)}, 0, {1000 * len(self.lines)})")
        elif pick == 3:
            self.add(f'Controller({rng.choice(CONTROLLERS)}, uuid("c{rng.randint(1, 3)}"))')
        elif pick == 4:
            self.voters += 1
            self.lines.append(f"> control voters({', '.join(map(str, CONTROLLERS[: 1 + self.voters % 3]))})")
        elif pick == 5:
            self.add(rng.choice(('moves("none-0", leader=1)', "fences(1)", 'RemoveTopic(uuid("never"))')))
        elif pick == 6:
            self.lines.append("> raw 01630007")
        else:
            self.add(f"ZkMigrationState({rng.randint(0, 2)})")

    def time(self) -> None:
        rng = self.rng
        pick = rng.randrange(6)
        if pick == 0:
            self.lines.append(f"> wait {rng.choice((400, 6_000, 90_000, -2_000, 4_000_000))}")
        elif pick == 1:
            self.lines.append(f"> leads {rng.choice(CONTROLLERS)}")
        elif pick == 2:
            self.lines.append("> roll")
        elif pick == 3:
            self.lines.append("> snapshot")
        else:
            self.lines.append(f"> idle {rng.randint(1, 12)}")

    def transaction(self) -> None:
        rng = self.rng
        self.is_open = True
        self.lines.append(f'> add BeginTransaction("{rng.choice(("move", "grow"))}")')
        steps: list[Callable[[], None]] = [self.create, self.change, self.setting, self.broker]
        for _ in range(rng.randint(1, 4)):
            rng.choice(steps)()
        self.lines.append(rng.choice(("> add EndTransaction()", '> add AbortTransaction("gave up")')))
        self.is_open = False


def generated(seed: int) -> str:
    """The story of a seed."""
    cluster = Cluster(random.Random(f"story {seed}"))
    lines = cluster.lines
    lines += ["> leads 3000", "> add level(24)", "> control KRaftVersionRecord(1), voters(3000, 3001)"]
    for broker in BROKERS[:3]:
        cluster.add(f'registers({broker}, "d{broker}")')
        cluster.add(f"unfences({broker})")
        cluster.fenced[broker] = False
    cluster.create()
    steps = {
        cluster.broker: 5,
        cluster.create: 3,
        cluster.change: 8,
        cluster.delete: 1,
        cluster.setting: 3,
        cluster.security: 3,
        cluster.rare: 2,
        cluster.time: 6,
        cluster.transaction: 1,
    }
    for step in cluster.rng.choices(list(steps), list(steps.values()), k=LENGTH):
        step()
    return "\n".join(lines) + "\n"
