"""Controllers and brokers of a world in which voters are added and removed: they are found by their
endpoints."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from metaquorum.metadata.features import KRAFT_VERSION
from metaquorum.metadata.node_configs import BrokerConfig
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.records.types import BrokerFeature
from metaquorum.node.formatted import first_checkpoint
from metaquorum.raft import effects as raft
from metaquorum.raft.config import Voter as ConfiguredVoter
from metaquorum.raft.core import RaftCore
from metaquorum.raft.roles import Candidate, Leader, Prospective, Resigned
from metaquorum.raft.store import ReplicaStore
from metaquorum.raft.voters import OWN_VERSIONS, Endpoint, VoterNode, VoterSet
from metaquorum.storage.disk.interface import join
from metaquorum.storage.files.snapshots import SnapshotWriter
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.types import LogPosition
from tests.sim.host import Host
from tests.sim.processes import DATA_DIRECTORY, RAFT_CONFIG, BrokerProcess, ControllerProcess

LISTENER = "CONTROLLER"
PORT = 9093


class Addresses:
    """Which host listens where. A bootstrap server keeps its name, whichever voter the record names there."""

    def __init__(self, nowhere: Host) -> None:
        self.names: dict[int, str] = {}
        self.bootstrap: dict[int, int] = {}
        self._nowhere = nowhere
        self._hosts: dict[int, Host] = {}

    def add(self, node_id: int, host: Host, name: str) -> None:
        self._hosts[node_id] = host
        self.names[node_id] = name

    def endpoints(self, node_id: int) -> tuple[Endpoint, ...]:
        return (Endpoint(LISTENER, self.names[node_id], PORT),)

    def reach(self, effect: raft.SendRequest) -> Host:
        """The host that a request goes to."""
        return self.at(effect.to, effect.endpoints)

    def at(self, node_id: int, endpoints: tuple[Endpoint, ...]) -> Host:
        """The host of a node at these endpoints: after it was renamed, no host listens at its old name."""
        if node_id in self.bootstrap:
            return self._hosts[self.bootstrap[node_id]]
        found = self._hosts.get(node_id, self._nowhere)
        named = {endpoint.host for endpoint in endpoints}
        return found if not named or self.names[node_id] in named else self._nowhere


class VoterController(ControllerProcess):
    """A controller that may be made a voter if it is at most `lag_max` records behind. `on_standing` is
    called for every candidacy."""

    def __init__(
        self,
        addresses: Addresses,
        lag_max: int,
        on_standing: Callable[[VoterController], None],
        *parts: Any,
    ) -> None:
        self.addresses = addresses
        self._lag_max = lag_max
        self._on_standing = on_standing
        super().__init__(*parts)

    def make_core(self, store: ReplicaStore, voters: tuple[ConfiguredVoter, ...]) -> RaftCore:
        own = store.raft_identity
        return RaftCore(
            replace(
                RAFT_CONFIG, bootstrap_ids=tuple(self.addresses.bootstrap), new_voter_lag_max=self._lag_max
            ),
            replace(own, endpoints=self.addresses.endpoints(own.node_id)),
            voters,
            store.recovered(),
            random.Random(self.host.rng.getrandbits(64)),
        )

    def reach(self, effect: raft.SendRequest) -> Host:
        return self.addresses.reach(effect)

    @property
    def directory_id(self) -> bytes:
        return self.core.state.identity.directory_id

    def known_sets(self, configured: VoterSet) -> list[tuple[int, VoterSet]]:
        """Every set that its log still names, by offset."""
        return list(self.core.state.voter_history.entries) or [(-1, configured)]

    # ---- marks -----------------------------------------------------------------------------------

    def before_event(self, event: Any) -> None:
        super().before_event(event)
        self._newest_before = self.core.state.voter_history.newest_offset
        self._role_before = self.core.state.role

    def after_event(self, event: Any) -> None:
        super().after_event(event)
        state, add = self.core.state, self._marks.add
        newest, before = state.voter_history.newest_offset, self._newest_before
        if before is not None and before >= 0 and (newest is None or newest < before):
            add("change of voters undone by truncation")
        if state.role is self._role_before:
            return
        if isinstance(self._role_before, Leader) and isinstance(state.role, Resigned) and state.is_observer:
            add("leader removed itself")
        if isinstance(state.role, Prospective | Candidate):
            self._on_standing(self)
        if state.is_observer and isinstance(state.role, Prospective | Candidate | Leader):
            add("stood by a lone removal")
        if state.vote is not None and state.vote.node_id not in {*state.voters, self.node_id}:
            add("voted for a node that its log does not name")


class VoterBroker(BrokerProcess):
    """A broker that finds the quorum through bootstrap servers, whatever names its voters."""

    def __init__(self, addresses: Addresses, controllers: tuple[int, ...], *parts: Any) -> None:
        self.addresses = addresses
        self._controllers = controllers
        super().__init__(*parts)

    def make_config(self) -> BrokerConfig:
        config = super().make_config()
        return replace(config, features=(*config.features, BrokerFeature(KRAFT_VERSION, 0, 1)))

    def controllers_to_ask(self, voters: tuple[ConfiguredVoter, ...]) -> tuple[int, ...]:
        return self._controllers

    def make_core(self, store: ReplicaStore, voters: tuple[ConfiguredVoter, ...]) -> RaftCore:
        return RaftCore(
            replace(RAFT_CONFIG, bootstrap_ids=tuple(self.addresses.bootstrap)),
            replace(store.raft_identity, may_vote=False),
            (),
            store.recovered(),
            random.Random(self.host.rng.getrandbits(64)),
        )

    def reach(self, effect: raft.SendRequest) -> Host:
        return self.addresses.reach(effect)

    def after_event(self, event: Any) -> None:
        super().after_event(event)
        if self.core.leader_id is not None and self.core.kraft_version == 0 and self.core.high_watermark > 0:
            self._marks.add("static voters followed through bootstrap servers")


def write_first_checkpoint(host: Host, voters: VoterSet) -> None:
    """What formatting with voters writes besides the identity."""
    directory = join(DATA_DIRECTORY, METADATA_DIRECTORY)
    host.disk.make_directory(directory)
    host.disk.sync_directory(DATA_DIRECTORY)
    writer = SnapshotWriter(host.disk, directory, LogPosition(0, 0))
    writer.append(first_checkpoint([as_record(voter) for voter in voters.nodes], timestamp_ms=0))
    writer.freeze()


def as_record(voter: VoterNode) -> Voter:
    """A voter as in records and requests."""
    return Voter(
        voter_id=voter.node_id,
        voter_directory_id=voter.directory_id or b"",
        endpoints=tuple(VoterEndpoint(each.name, each.host, each.port) for each in voter.endpoints),
        kraft_version_feature=KRaftVersionFeature(voter.versions.lowest, voter.versions.highest),
    )


def as_voter(node_id: int, directory_id: bytes, addresses: Addresses) -> VoterNode:
    return VoterNode(
        node_id=node_id,
        directory_id=directory_id,
        endpoints=addresses.endpoints(node_id),
        versions=OWN_VERSIONS,
    )
