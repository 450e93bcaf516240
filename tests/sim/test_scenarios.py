"""Chosen stories on the simulated cluster: each brings one fault and checks one promise.

The laws of `checks` are checked after every event here too; a story adds what a user would see at that
moment.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    CreateTopicsRequest,
    NewTopic,
    ReadImageRequest,
    ReadImageResponse,
    TopicsResponse,
)
from tests.sim.processes import SESSION_TIMEOUT_MS, BrokerProcess, ControllerProcess, format_host
from tests.sim.profile import calm_profile
from tests.sim.world import World


class Story:
    """A calm world with three controllers and two brokers, and the steps of the stories."""

    def __init__(self, seed: int, world: World | None = None, **profile: int) -> None:
        self.world = world or World(seed, profile=calm_profile(**profile))
        for node_id in self.world.directory.hosts:
            self.world.boot(node_id)
        self.until(self.world._is_well)

    def until(self, done: Any, within_ms: float = 30_000) -> None:
        assert self.world.engine.run_until(done, within_ms, self.world._after_event), (
            self.world._what_is_unwell() or "it did not come to this in time"
        )

    def run_for(self, duration_ms: float) -> None:
        self.world.engine.run_for(duration_ms, self.world._after_event)

    def active(self) -> ControllerProcess:
        active = self.world._active()
        assert active is not None
        return active

    def broker(self, broker_id: int) -> BrokerProcess:
        process = self.world.directory[broker_id].process
        assert isinstance(process, BrokerProcess)
        return process

    def ask(self, node_id: int, request: Any, timeout_ms: int = 20_000) -> list[Any]:
        """Sends a request; the returned list gets the response, or the reason why there is none."""
        got: list[Any] = []
        self.world.calls.client(
            "person",
            self.world.directory[node_id],
            request,
            timeout_ms,
            lambda response, _outright: got.append(response),
            got.append,
            once=True,
        )
        return got

    def create(self, node_id: int, name: str) -> list[Any]:
        return self.ask(
            node_id, CreateTopicsRequest(topics=(NewTopic(name=name, partitions=2, replication_factor=1),))
        )

    def isolate(self, node_id: int, for_ms: float = 60_000) -> None:
        """Cuts a node off from every other node; hosts outside the cluster still reach it."""
        hosts = self.world.directory.hosts
        others = [host.name for other, host in hosts.items() if other != node_id]
        self.world.network.partition([hosts[node_id].name], others, one_way=False, for_ms=for_ms)


def _created(got: list[Any]) -> bool:
    return bool(got) and isinstance(got[0], TopicsResponse) and got[0].results[0].error is ErrorCode.NONE


@pytest.mark.parametrize("seed", range(5))
def test_a_leader_that_was_cut_off_answers_no_read_from_its_past(seed: int) -> None:
    """It still considers itself the leader when it gets the requests, and the others have elected a new
    one."""
    story = Story(seed)
    old = story.active()
    story.isolate(old.node_id)
    read = story.ask(old.node_id, ReadImageRequest(linearizable=True))
    stale = story.ask(old.node_id, ReadImageRequest(linearizable=False))
    story.until(lambda: story.world._active() not in (None, old))
    created = story.create(story.active().node_id, "written-without-the-old-leader")
    story.until(lambda: bool(created))
    assert _created(created)
    late = story.ask(old.node_id, ReadImageRequest(linearizable=True))
    story.until(lambda: bool(read) and bool(late) and bool(stale))
    for answer in (read[0], late[0]):
        assert isinstance(answer, ApiError) and answer.code is ErrorCode.NOT_CONTROLLER
    assert isinstance(stale[0], ReadImageResponse), "a stale read is served, and says its offset"
    assert stale[0].offset <= story.active().node.ledger.committed_offset


@pytest.mark.parametrize("seed", range(3))
def test_a_read_after_a_leader_change_sees_every_acknowledged_write(seed: int) -> None:
    story = Story(seed)
    created = story.create(story.active().node_id, "kept")
    story.until(lambda: _created(created))
    old = story.active()
    story.world.crash(old.node_id, power_loss=True)
    story.until(lambda: story.world._active() is not None)
    read = story.ask(story.active().node_id, ReadImageRequest(linearizable=True))
    story.until(lambda: bool(read))
    assert isinstance(read[0], ReadImageResponse)
    assert read[0].image.topics.topic_named("kept") is not None


def test_a_leader_paused_past_every_session_fences_no_living_broker() -> None:
    """All heartbeats of the pause wait in its sockets; it must resign, and must not judge by its clock."""
    story = Story(11)
    paused = story.active()
    paused.pause()
    story.run_for(3 * SESSION_TIMEOUT_MS)
    paused.resume()
    story.run_for(500)
    assert not paused.core.is_leader
    assert paused.node.sessions.expired_count == 0
    story.until(story.world._is_well)
    image = story.active().node.ledger.committed.image
    assert all(not registration.fenced for registration in image.brokers.values())


def test_a_single_controller_paused_past_every_session_hears_the_brokers_first() -> None:
    """The only voter remains the leader: only the rules about gaps keep the brokers unfenced."""
    story = Story(12, controllers=1)
    alone = story.active()
    epochs = {broker_id: story.broker(broker_id).node.status(now_ms=0).broker_epoch for broker_id in (0, 1)}
    alone.pause()
    story.run_for(SESSION_TIMEOUT_MS + 500)
    alone.resume()
    story.run_for(100)
    assert alone.node.sessions.expired_count == 0
    story.until(story.world._is_well)
    after = {broker_id: story.broker(broker_id).node.status(now_ms=0).broker_epoch for broker_id in (0, 1)}
    assert after == epochs, "nobody had to register again"


def test_a_broker_that_hears_nothing_stops_serving_on_its_own_clock() -> None:
    story = Story(13)
    broker = story.broker(0)
    story.isolate(0)
    story.run_for(SESSION_TIMEOUT_MS - 600)
    assert broker.node.serves(broker.host.monotonic_ms())
    story.run_for(700)
    assert not broker.node.serves(broker.host.monotonic_ms())
    story.until(lambda: story.active().node.ledger.committed.image.brokers[0].fenced)


def test_a_heartbeat_from_before_a_bounce_does_nothing() -> None:
    """S1.10: a shutdown request of the earlier incarnation arrives when the next one is running."""
    story = Story(14)
    before = story.broker(0).node.status(now_ms=0).broker_epoch
    assert before is not None
    story.world.crash(0, power_loss=False)
    story.world.boot(0)
    story.until(story.world._is_well)
    after = story.broker(0).node.status(now_ms=0).broker_epoch
    assert after is not None and after > before
    old = BrokerHeartbeatRequest(broker_id=0, broker_epoch=before, applied_offset=10**6, want_shutdown=True)
    got = story.ask(story.active().node_id, old)
    story.until(lambda: bool(got))
    assert isinstance(got[0], ApiError) and got[0].code is ErrorCode.STALE_BROKER_EPOCH
    story.run_for(1_000)
    assert not story.active().node.ledger.newest.brokers[0].fenced
    assert not story.active().node.ledger.newest.brokers[0].in_controlled_shutdown


@pytest.mark.parametrize("leads", [True, False])
def test_a_broker_that_somebody_else_stopped_finds_its_way_back(leads: bool) -> None:
    """A heartbeat in its name requests a shutdown; the broker did not, so it continues to serve, under the
    same epoch."""
    story = Story(21)
    if leads:
        created = story.create(story.active().node_id, "led")
        story.until(lambda: _created(created))
    image = story.active().node.ledger.committed.image
    topic = image.topics.topic_named("led")
    broker_id = 0 if topic is None else image.topics.partitions_of(topic.topic_id)[0].leader
    epoch = image.brokers[broker_id].epoch
    story.world.forge_heartbeat(broker_id)
    story.until(lambda: story.world.marks.counts["heartbeat forged"] > 0)
    newest = story.active().node.ledger.newest.brokers[broker_id]
    assert newest.in_controlled_shutdown is leads and newest.fenced is not leads
    story.until(story.world._is_well)
    back = story.active().node.ledger.committed.image.brokers[broker_id]
    assert back.is_active and back.epoch == epoch
    assert story.broker(broker_id).node.serves(story.broker(broker_id).host.monotonic_ms())


def test_a_fast_bounce_keeps_the_id_and_raises_the_epoch() -> None:
    """S1.14: killed and back within its session: refused while the old lease is valid, then accepted."""
    story = Story(15)
    before = story.broker(1).node.status(now_ms=0).broker_epoch
    story.world.crash(1, power_loss=True)
    story.world.boot(1)
    story.until(lambda: story.world.marks.counts["duplicate broker refused"] > 0)
    story.until(story.world._is_well)
    assert story.broker(1).node.status(now_ms=0).broker_epoch > before
    assert story.active().node.sessions.expired_count == 1


def test_power_loss_of_everybody_at_once_loses_nothing_acknowledged() -> None:
    story = Story(16)
    acknowledged = []
    for number in range(12):
        created = story.create(story.active().node_id, f"topic-{number}")
        story.until(lambda created=created: bool(created))
        assert _created(created)
        acknowledged.append(f"topic-{number}")
    under_way = [story.create(story.active().node_id, f"under-way-{number}") for number in range(5)]
    story.run_for(2)
    for node_id in story.world.directory.hosts:
        story.world.crash(node_id, power_loss=True)
    acknowledged += [f"under-way-{number}" for number, got in enumerate(under_way) if _created(got)]
    for node_id in story.world.directory.hosts:
        story.world.boot(node_id)
    story.until(story.world._is_well)
    topics = story.active().node.ledger.committed.image.topics
    assert [name for name in acknowledged if topics.topic_named(name) is None] == []


def test_a_follower_far_behind_comes_back_by_snapshot_and_can_lead() -> None:
    story = Story(17, snapshot_every_bytes=1_500)
    follower = next(process for process in story.world.controllers() if not process.core.is_leader)
    story.world.crash(follower.node_id, power_loss=True)
    for number in range(40):
        created = story.create(story.active().node_id, f"meanwhile-{number}")
        story.until(lambda created=created: bool(created))
        assert _created(created)
    assert story.active().core.log_start_offset > 0, "the log was trimmed, or this shows nothing"
    story.world.boot(follower.node_id)
    story.until(lambda: story.world.marks.counts["snapshot fetched and loaded by a controller"] > 0)
    story.until(story.world._same_offsets)
    other = next(
        process
        for process in story.world.controllers()
        if not process.core.is_leader and process.node_id != follower.node_id
    )
    story.world.crash(other.node_id, power_loss=True)
    story.world.crash(story.active().node_id, power_loss=True)
    story.world.boot(other.node_id)
    story.until(lambda: story.world._active() is not None)
    assert story.active().node.ledger.committed.image.topics.topic_named("meanwhile-39") is not None


def test_a_voter_with_an_emptied_disk_observes_and_does_not_vote() -> None:
    """With its old identity it could elect a leader that lacks what it once acknowledged."""
    story = Story(18)
    leader = story.active()
    follower, survivor = (process for process in story.world.controllers() if process is not leader)
    created = story.create(leader.node_id, "must-survive")
    story.until(lambda: _created(created))
    story.world.crash(follower.node_id, power_loss=True)
    host = story.world.directory[follower.node_id]
    host.disk = type(host.disk)(host.rng)
    format_host(host, follower.node_id, bytes([9] * 16))
    story.world.crash(survivor.node_id, power_loss=True)
    story.world.crash(leader.node_id, power_loss=True)
    story.world.boot(follower.node_id)
    story.run_for(20_000)
    emptied = host.process
    assert isinstance(emptied, ControllerProcess)
    assert emptied.core.is_observer and emptied.core.epoch == 0 and story.world._active() is None
    story.world.boot(survivor.node_id)
    story.run_for(20_000)
    assert story.world._active() is None, "one voter of three and an observer are no majority"
    story.world.boot(leader.node_id)
    story.until(lambda: story.world._active() is not None)
    assert story.active().node.ledger.committed.image.topics.topic_named("must-survive") is not None
    story.until(lambda: emptied.node.ledger.committed_offset > 0)
    assert emptied.core.is_observer


def test_a_disk_that_fails_stops_its_node_and_nobody_else() -> None:
    story = Story(19)
    follower = next(process for process in story.world.controllers() if not process.core.is_leader)
    follower.host.disk.inject("/data", operation="sync")
    created = story.create(story.active().node_id, "needs-two-disks")
    story.until(lambda: bool(created))
    assert _created(created)
    assert story.world.directory[follower.node_id].process is None
    assert story.world._active() is not None


def test_profiles_are_calm_only_where_asked() -> None:
    """The stories must not pass because the swarm's profiles have no faults either."""
    calm = calm_profile()
    drawn = World(1).profile
    assert replace(drawn, **{name: getattr(calm, name) for name in ("clients",)}) != calm
