"""Stories of replicas that are damaged while their broker is down (ADR 13)."""

from __future__ import annotations

from metaquorum.metadata.image import PartitionInfo
from metaquorum.metadata.image.directories import damaged_in
from metaquorum.metadata.records.types import NO_LEADER
from metaquorum.metadata.requests.partitions import ElectLeadersRequest
from metaquorum.storage.disk.interface import join
from tests.sim.data_disks import DataDirectory
from tests.sim.data_load import TopicPlan
from tests.sim.test_data_stories import DataStory

TWO = TopicPlan(name="kept", partitions=2, factor=2, min_insync=1)


def directory_of(story: DataStory, partition: PartitionInfo, broker_id: int) -> DataDirectory:
    held = partition.directory_of(broker_id)
    assert held is not None
    return story.world.data[broker_id].by_id(held)


def rot(story: DataStory, broker_id: int) -> DataDirectory:
    """Damages partition 0 of the broker, which is down."""
    directory = directory_of(story, story.partition(), broker_id)
    assert story.world.rot(broker_id, directory, "kept-0")
    return directory


def names_in(directory: DataDirectory) -> list[str]:
    return [name for name in directory.disk.list_directory(directory.path) if name.startswith("kept-0")]


def test_a_damaged_follower_is_set_aside_and_made_anew_and_everything_else_goes_on() -> None:
    story = DataStory(321)
    story.goes_on(20)
    follower = next(each for each in story.partition().replicas if each != story.partition().leader)
    story.world.crash(follower, power_loss=False)
    directory = rot(story, follower)
    story.world.boot(follower)
    story.until(lambda: story.partition().directory_of(follower) == damaged_in(directory.directory_id))
    assert not directory.dead and follower not in story.partition().isr
    story.goes_on(10)
    story.finish()
    aside, kept = sorted(names_in(directory), key=len, reverse=True)
    assert aside.endswith("-stray") and kept == "kept-0"
    assert all(
        each.directory_of(follower) != damaged_in(directory.directory_id) for each in story.partitions()
    )


def alone_and_damaged(story: DataStory) -> tuple[int, int, DataDirectory]:
    """The last in-sync replica of partition 0 comes back damaged; the other one is up."""
    leader = story.partition().leader
    other = next(each for each in story.partition().replicas if each != leader)
    story.goes_on(10)
    story.world.crash(other, power_loss=False)
    story.until(lambda: story.partition().isr == (leader,))
    story.goes_on(5)
    story.world.crash(leader, power_loss=False)
    directory = rot(story, leader)
    for broker_id in (leader, other):
        story.world.boot(broker_id)
    story.until(lambda: story.partition().directory_of(leader) == damaged_in(directory.directory_id))
    story.run_for(10_000)
    assert (story.partition().leader, story.partition().isr) == (NO_LEADER, (leader,))
    assert names_in(directory) == ["kept-0"], "it is not touched"
    assert story.partition(1).leader != NO_LEADER
    return leader, other, directory


def test_the_last_one_in_sync_waits_and_leads_again_when_it_is_whole() -> None:
    story = DataStory(322, TWO)
    leader, _, _ = alone_and_damaged(story)
    story.world.crash(leader, power_loss=False)
    story.world.restore(leader)
    story.world.boot(leader)
    story.until(lambda: story.partition().leader == leader)
    assert story.partition().leader_recovery_state == 0
    story.goes_on(5)
    story.finish()


def test_one_that_was_moved_away_leads_nothing_before_its_loss_is_accepted() -> None:
    story = DataStory(323, TWO)
    leader, other, directory = alone_and_damaged(story)
    story.world.crash(leader, power_loss=False)
    directory.disk.rename(join(directory.path, "kept-0"), "/elsewhere")
    directory.disk.sync_directory(directory.path)
    story.world.laws.disk_lost(leader, story.world.log.image, directory.directory_id)
    story.world.boot(leader)
    story.run_for(10_000)
    assert (story.partition().leader, story.partition().isr) == (NO_LEADER, (leader,))
    story.world.log.unclean_asked.add(("kept", 0))
    story.world.ask_active(ElectLeadersRequest(unclean=True, partitions=(("kept", 0),)))
    story.until(lambda: story.partition().leader == other)
    story.goes_on(5)
    story.finish()
