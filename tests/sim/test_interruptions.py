"""Every change of a broker's state, interrupted at many points on either side, ends in a correct state.

One change begins in a calm world with partitions on three brokers; some events later the active controller
dies or is cut off, or the broker dies. The laws are checked after every event, and in the end everything
runs, has a leader and is in sync again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metaquorum.metadata.requests.common import CreateTopicsRequest, NewTopic, UnregisterBrokerRequest
from tests.sim.load import quiet_load
from tests.sim.loaded import LoadedWorld
from tests.sim.profile import calm_profile
from tests.sim.test_scenarios import Story

BROKER = 2
POINTS = (0, 4, 12, 30)
"""Events between the beginning of the change and the failure."""


class LoadedStory(Story):
    """Three controllers and three brokers, each with two directories; one record per slice."""

    world: LoadedWorld

    def __init__(self, seed: int, **load: int) -> None:
        super().__init__(seed, LoadedWorld(seed, profile=calm_profile(), load=quiet_load(**load)))

    def topic(self, name: str, partitions: int, factor: int = 3) -> None:
        topic = NewTopic(name=name, partitions=partitions, replication_factor=factor)
        got = self.ask(self.active().node_id, CreateTopicsRequest(topics=(topic,)))
        self.until(lambda: bool(got))
        self.until(lambda: self.world.log.image.topics.topic_named(name) is not None)
        self.until(self.world._is_well)

    def run_events(self, count: int) -> None:
        end = self.world.engine.events + count
        self.until(lambda: self.world.engine.events >= end)


def _register(story: LoadedStory) -> None:
    story.world.boot(BROKER)


def _bounce(story: LoadedStory) -> None:
    story.world.crash(BROKER, power_loss=True)
    story.world.boot(BROKER)


def _fence(story: LoadedStory) -> None:
    story.isolate(BROKER, for_ms=6_000)
    story.until(lambda: bool(story.active().node.sessions.fencing))


def _unfence(story: LoadedStory) -> None:
    story.isolate(BROKER, for_ms=4_500)
    story.until(lambda: story.world.log.image.brokers[BROKER].fenced)
    story.until(lambda: not story.world.network.is_cut(f"b{BROKER}", "b0"))


def _shut_down(story: LoadedStory) -> None:
    story.broker(BROKER).ask_to_stop()


def _unregister(story: LoadedStory) -> None:
    story.ask(story.active().node_id, UnregisterBrokerRequest(broker_id=BROKER))


CHANGES: dict[str, Callable[[LoadedStory], None]] = {
    "register": _register,
    "bounce": _bounce,
    "fence": _fence,
    "unfence": _unfence,
    "controlled shutdown": _shut_down,
    "unregister": _unregister,
}


def _controller_dies(story: LoadedStory) -> None:
    active = story.world._active()
    if active is not None:
        story.world.crash(active.node_id, power_loss=True)


def _controller_cut_off(story: LoadedStory) -> None:
    active = story.world._active()
    if active is not None:
        story.isolate(active.node_id, for_ms=2_500)


def _broker_dies(story: LoadedStory) -> None:
    story.world.crash(BROKER, power_loss=True)


FAILURES = {
    "controller dies": _controller_dies,
    "controller cut off": _controller_cut_off,
    "broker dies": _broker_dies,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_at_any_point_ends_in_a_right_state(change: str, failure: str) -> None:
    for point in POINTS:
        story = LoadedStory(100 + point)
        story.topic("held", 6)
        if change == "register":
            story.world.crash(BROKER, power_loss=False)
            story.until(lambda story=story: story.world.log.image.brokers[BROKER].fenced)
        CHANGES[change](story)
        story.run_events(point)
        FAILURES[failure](story)
        # The cut-off node comes back first: an immediate check would prove nothing.
        story.run_for(3_000 if failure == "controller cut off" else 300)
        if change == "controlled shutdown":
            story.until(lambda story=story: story.world.directory[BROKER].process is None)
        for node_id in story.world.directory.hosts:
            story.world.boot(node_id)
        story.until(story.world._is_well)
        image = story.world.log.image
        rows = image.topics.columns.live_rows().tolist()
        assert len(rows) == 6
        assert all(sorted(image.topics.at(row).isr) == [0, 1, 2] for row in rows)
        assert not any(known.in_controlled_shutdown for _, known in image.brokers.items())
