"""The ways in which nodes go away, drawn from a seed, and a cluster in process that goes through one of them.

What was done is written down; `judge.py` compares it with what the log tools say.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.testing import Cluster
from metaquorum.testing.healing import ActiveFault

WAYS = 60
PAUSES = 10
"""Every tenth way is a pause."""
SILENT, STOPPED, BOUNCED = "silent", "stopped", "bounced"
"""A broker ended without a word; it shut down; it was back before its session ended."""
DIED, RESIGNED = "died", "resigned"
"""An active controller ended without a word; it gave up its leadership."""
BROKER_DEEDS = {
    "kill": SILENT,
    "power": SILENT,
    "isolate": SILENT,
    "stop": STOPPED,
    "bounce": BOUNCED,
}
CONTROLLER_DEEDS = {"kill": DIED, "isolate": DIED, "stop": RESIGNED, "transfer": RESIGNED}
TOPIC, PARTITIONS = "t", 4
SESSION_S = {"3000": 3.0, "9000": 9.0}


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done to a node, and the offsets of the metadata log around what followed from it.
    `broker` and `controller` say in which way the node went away in each role."""

    text: str
    node: int
    from_offset: int
    to_offset: int
    broker: str | None = None
    controller: str | None = None
    led: tuple[int, ...] = ()
    """The partitions that the broker led before."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, and what is done to it, by names of `BROKER_DEEDS` or `CONTROLLER_DEEDS`."""

    number: int
    brokers: int
    controllers: int | None
    session_ms: str
    causes: bool
    deeds: tuple[tuple[str, str], ...]

    @property
    def is_paused(self) -> bool:
        """Whether it needs processes (`paused.go_paused`)."""
        return any(what == "pause" for _, what in self.deeds)

    @property
    def text(self) -> str:
        """`way 7: 3 brokers, 3 controllers, session 9000 ms, with causes: kill controller, bounce broker`."""
        shape = f"{self.brokers} brokers" + (f", {self.controllers} controllers" if self.controllers else "")
        done = ", ".join(f"{what} {role}" for role, what in self.deeds)
        causes = "with" if self.causes else "without"
        return f"way {self.number}: {shape}, session {self.session_ms} ms, {causes} causes: {done}"


def way(number: int) -> Way:
    """The way with this number; neighbours differ in their first deed, and every deed comes with and without
    causes in the log."""
    rng = random.Random(number)
    if number % PAUSES == 0:
        return Way(
            number=number,
            brokers=2,
            controllers=3,
            session_ms=rng.choice(tuple(SESSION_S)),
            causes=number // PAUSES % 2 == 0,
            deeds=((rng.choice(("broker", "controller")), "pause"),),
        )
    every = [("broker", what) for what in BROKER_DEEDS] + [("controller", what) for what in CONTROLLER_DEEDS]
    first = every[number % len(every)]
    more = rng.sample(every, rng.randrange(2))
    controllers = rng.choice((None, 3))
    return Way(
        number=number,
        brokers=3 if controllers is None else rng.choice((2, 3)),  # two voters cannot lose one
        controllers=controllers,
        session_ms=rng.choice(tuple(SESSION_S)),
        causes=number // len(every) % 2 == 0,
        deeds=(first, *more),
    )


def go(way: Way, directory: Path) -> tuple[list[Deed], Path]:
    """Goes through a way. Returns what was done, and the directory of the last active controller, below
    `directory`."""
    properties: dict[str, object] = {
        "broker.session.timeout.ms": way.session_ms,
        "metadata.log.causes.enable": str(way.causes).lower(),
    }
    rng = random.Random(f"nodes of {way.number}")
    with Cluster(way.brokers, way.controllers, seed=way.number, properties=properties) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        done = [_done(cluster, way, role, what, rng) for role, what in way.deeds]
        cluster.clock.advance(seconds=1)
        active = cluster.active_controller
        cluster.save(directory)
    (home,) = directory.glob(f"*-{active}")
    return done, home


def _done(cluster: Cluster, way: Way, role: str, what: str, rng: random.Random) -> Deed:
    from_offset = _log(cluster).end_offset
    leaders = [cluster.leader(TOPIC, at) for at in range(PARTITIONS)]
    active = cluster.active_controller
    node = active if role == "controller" else rng.choice(cluster.brokers)
    is_broker = node in cluster.brokers
    session_s = SESSION_S[way.session_ms]
    if what == "transfer":
        other = rng.choice([one for one in cluster.controllers if one != node])

        def is_handed_over() -> bool:
            if cluster.active_controller != node:
                return True
            asyncio.run(_transfer(cluster, other))  # again, if no one was elected
            return False

        cluster.wait_until(is_handed_over, "another controller to lead")
    elif what == "bounce":
        cluster.kill(node).heal()
    else:
        acts: dict[str, Callable[[], ActiveFault]] = {
            "kill": lambda: cluster.kill(node),
            "power": lambda: cluster.kill(node, power_lost=True),
            "isolate": lambda: cluster.isolate(node),
            "stop": lambda: cluster.stop(node),
        }
        with acts[what]():
            if is_broker:
                _pass_until(cluster, lambda image: image.brokers[node].fenced, session_s + 2)
            if node in cluster.controllers:
                cluster.wait_until(lambda: cluster.active_controller != node, "another controller to lead")
    _pass_until(cluster, lambda image: not any(one.fenced for one in image.brokers.values()), 5)
    cluster.clock.advance(seconds=0.5)
    controller = None
    if node == active and node in cluster.controllers:
        how = {"power": "kill", "bounce": "kill"}.get(what, what)
        controller = CONTROLLER_DEEDS[how]
    return Deed(
        text=f"{what} {role} {node}",
        node=node,
        from_offset=from_offset,
        to_offset=_log(cluster).end_offset,
        broker=BROKER_DEEDS[what] if is_broker and what != "transfer" else None,
        controller=controller,
        led=tuple(at for at, leader in enumerate(leaders) if leader == node),
    )


def _pass_until(cluster: Cluster, is_so: Callable[[MetadataImage], bool], seconds: float) -> None:
    """Lets time pass until the committed state is so."""
    step_s = 0.5

    def looked() -> bool:
        if is_so(state_at(_log(cluster), past_corruption=True).image):
            return True
        cluster.clock.advance(seconds=step_s)
        return False

    cluster.wait_until(looked, f"the state to change (within about {seconds:g} s of the cluster's time)")


def _log(cluster: Cluster) -> MetadataLog:
    """Of the active controller: one that is cut off may have more, which is never committed."""
    return cluster.log(cluster.active_controller)


async def _transfer(cluster: Cluster, target: int) -> None:
    bootstrap = [("127.0.0.1", cluster._nodes[one].local.port) for one in cluster.controllers]
    async with AdminClient(bootstrap, timeout_ms=10_000) as client:
        await client.transfer_leadership(target)
