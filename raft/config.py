"""Timeouts, voters and recovered state that a Raft core is built from."""

from __future__ import annotations

import msgspec

from metaquorum.raft.voters.records import VoterChange
from metaquorum.raft.voters.voter_set import OWN_VERSIONS, Endpoint, VersionRange, VoterNode
from metaquorum.storage.files.known_committed import NOTHING, Acknowledged
from metaquorum.storage.types import LogPosition


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ms, sizes in bytes. Names follow `controller.quorum.*` (KIP-595).

    docs/raft.md says why the defaults are what they are. Every fetch and election timeout is drawn again from
    [timeout, 1.5 x timeout], so that two followers do not time out together.
    """

    election_timeout_ms: int = 300
    election_backoff_max_ms: int = 200
    fetch_timeout_ms: int = 1000
    fetch_max_wait_ms: int = 100
    high_watermark_linger_ms: int = 0
    """How long a voter's parked fetch waits, when only the high watermark is new, for records to go with it.
    Observers' fetches and read rounds never wait."""
    observer_fetch_max_wait_ms: int = 2000
    request_timeout_ms: int = 1000
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 500
    fetch_max_bytes: int = 1024 * 1024
    """What a leader reads, checks and copies for one answer, while clients wait: some milliseconds."""
    snapshot_chunk_bytes: int = 1024 * 1024
    parked_fetches_max: int = 4096
    pending_reads_max: int = 16384
    observer_session_ms: int = 300_000
    note_committed_ms: int = 50
    """How often at most a follower or observer writes down what is known to be committed, and what a kill
    makes it forget at most. A leader writes it at once, before a client is answered."""
    sync_committed_ms: int = 5000
    """How often at most that is made durable; a loss of power forgets no more than this."""
    new_voter_lag_max: int = 1000
    """How many records an observer may be behind the leader's end when it is made a voter: until it has them,
    nothing may be committed without the earlier voters."""
    bootstrap_ids: tuple[int, ...] = ()
    """Names, all below 0, of servers whose addresses the driver knows, and whose node ids are unknown
    (`controller.quorum.bootstrap.servers`). A node that finds no leader asks them too."""

    @property
    def check_quorum_ms(self) -> int:
        """A leader from which no majority fetched for this long resigns (KAFKA-15489): not before every
        follower that hears nothing of it has given it up."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def observer_patience_ms(self) -> int:
        """An observer that has not fetched for this long does not run, or does not reach the leader."""
        return self.check_quorum_ms + self.observer_fetch_max_wait_ms

    @property
    def begin_quorum_ms(self) -> int:
        """A voter that does not fetch hears of its leader again: several times before it stands."""
        return max(1, self.fetch_timeout_ms // 4)

    @property
    def quiet_voter_ms(self) -> int:
        """A voter that fetched knows its leader, and hears of it again after this long without a fetch."""
        return self.fetch_timeout_ms // 2

    @property
    def keepalive_ms(self) -> int:
        """How often a voter that can take no more records sends a keep-alive: check-quorum and its own fetch
        timeout each outlast several lost ones."""
        return max(1, self.fetch_timeout_ms // 4)

    @property
    def fetch_grace_ms(self) -> int:
        """What the answer to a fetch may take beyond the wait that the fetch allows: a lost one leaves time
        for two more before the fetch timeout."""
        return max(1, self.fetch_timeout_ms // 3)

    @property
    def update_voter_ms(self) -> int:
        """A voter whose entry in the voters' record is out of date asks for an update this often at most: a
        change can be committed between two."""
        return self.fetch_timeout_ms // 2

    @property
    def empty_fetch_pause_ms(self) -> int:
        """The pause after an answer that came early and brought nothing, and after an error: the leader is
        too busy to park the fetch, or no longer leads."""
        return 5 * self.retry_backoff_ms


DOUBLINGS_MAX = 16
"""A pause is doubled this often at most; every ceiling is reached long before."""


def doubled_ms(first_ms: int, doublings: int, ceiling_ms: int) -> int:
    """A pause that begins at `first_ms` and is doubled with every further failure, up to `ceiling_ms`."""
    return min(ceiling_ms, first_ms << min(doublings, DOUBLINGS_MAX))


class Voter(msgspec.Struct, frozen=True, kw_only=True):
    """One configured voter: `id@host:port:directory-id`. `directory_id` None: not pinned (id@host:port).
    Configured voters count while no record in the log names voters."""

    node_id: int
    host: str
    port: int
    directory_id: bytes | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where it listens. Without a name, since the configuration names no listener: so it is known from
        endpoints of a voters' record."""
        return (Endpoint("", self.host, self.port),)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who this node is. An id that is not among the voters, or whose directory id differs, observes.

    `endpoints` are where it listens and `versions` which levels of kraft.version it supports: as a voter it
    lets the voters' record say so (none: that record is left alone). A node that `may_vote` can be made a
    voter while it observes; a broker can not.
    """

    cluster_id: str
    node_id: int
    directory_id: bytes
    endpoints: tuple[Endpoint, ...] = ()
    versions: VersionRange = OWN_VERSIONS
    may_vote: bool = True

    @property
    def as_voter(self) -> VoterNode:
        """What a voters' record says of this node."""
        return VoterNode(
            node_id=self.node_id,
            directory_id=self.directory_id,
            endpoints=self.endpoints,
            versions=self.versions,
        )


class RecoveredLog(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on disk: hard state, the epoch table, log bounds (offsets) and snapshots.

    `known_committed`: everything below was known to be committed when this replica ran last; `acknowledged`:
    how far directories of voters had acknowledged that to it, as their leader. `directory` names the log in
    messages. `voter_changes`: what the newest snapshot, and the log behind it, say of voters, in order; a
    record in a snapshot counts as standing before the snapshot's end offset.
    """

    epoch: int = 0
    leader_id: int | None = None
    voted_id: int | None = None
    voted_directory_id: bytes | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    log_start_offset: int = 0
    log_end_offset: int = 0
    snapshots: tuple[LogPosition, ...] = msgspec.field(default=())
    known_committed: LogPosition = NOTHING
    acknowledged: tuple[Acknowledged, ...] = ()
    voter_changes: tuple[VoterChange, ...] = ()
    directory: str = "this log"
