"""Timeouts, voters and recovered state that a Raft core is built from."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from metaquorum.raft.voters import OWN_VERSIONS, Endpoint, VersionRange, VoterChange, VoterNode
from metaquorum.storage.files.known_committed import NOTHING, Acknowledged
from metaquorum.storage.types import LogPosition

# How durations follow from the configured ones; the properties of RaftConfig say why.
CHECK_QUORUM_PERCENT = 150
BEGINS_PER_TIMEOUT = 4
QUIET_TIMES_PER_TIMEOUT = 2
KEEPALIVES_PER_TIMEOUT = 4
FETCHES_PER_TIMEOUT = 3
UPDATES_PER_TIMEOUT = 2
HEARINGS_PER_TIMEOUT = 10
EMPTY_FETCH_BACKOFFS = 5

_MAY_BE_ZERO = frozenset(
    {
        *("election_backoff_max_ms", "fetch_max_wait_ms", "high_watermark_linger_ms", "note_committed_ms"),
        *("observer_fetch_max_wait_ms", "retry_backoff_ms", "retry_backoff_max_ms", "sync_committed_ms"),
        "new_voter_lag_max",
    }
)
_LARGEST = 2**31 - 1
"""Of any duration, size or number: Kafka's int."""


class RaftConfigError(ValueError):
    """A value, or two together, with which a core would not work. `fields` are those that the text names."""

    def __init__(self, text: str, fields: dict[str, int]) -> None:
        self._text, self.fields = text, fields
        super().__init__(self.named(lambda field: field))

    def named(self, name: Callable[[str], str]) -> str:
        """The text with other names for the fields, such as the keys of a configuration file."""
        return self._text.format(**{field: f"{name(field)} ({self.fields[field]})" for field in self.fields})


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ms, sizes in bytes. Names follow `controller.quorum.*` (KIP-595).

    docs/raft.md explains the defaults. Every fetch and election timeout is drawn again from [timeout, 1.5 x
    timeout], so that two followers do not time out together. Raises `RaftConfigError`.
    """

    election_timeout_ms: int = 300
    election_backoff_max_ms: int = 200
    fetch_timeout_ms: int = 1000
    fetch_max_wait_ms: int = 100
    high_watermark_linger_ms: int = 0
    """How long a voter's parked fetch waits for records when only the high watermark is new. Observers'
    fetches and read rounds never wait."""
    observer_fetch_max_wait_ms: int = 2000
    request_timeout_ms: int = 1000
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 500
    fetch_max_bytes: int = 1024 * 1024
    """The most that a leader reads, checks and copies for one response, while clients wait: a few
    milliseconds."""
    snapshot_chunk_bytes: int = 1024 * 1024
    parked_fetches_max: int = 4096
    pending_reads_max: int = 16384
    observer_session_ms: int = 300_000
    note_committed_ms: int = 50
    """The shortest time between two notes of what a follower or observer knows to be committed, and so the
    most that a kill makes it forget. A leader writes its note at once, before it responds to a client."""
    sync_committed_ms: int = 5000
    """The shortest time between two durable notes; a power loss forgets no more than this."""
    new_voter_lag_max: int = 1000
    """The most records by which an observer may be behind the leader's end when it becomes a voter: until
    it has them, nothing can be committed without the earlier voters."""
    bootstrap_ids: tuple[int, ...] = ()
    """Ids, all below 0, of servers whose addresses the driver knows and whose node ids are unknown
    (`controller.quorum.bootstrap.servers`). A node that finds no leader queries them too."""

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in self.__struct_fields__ if name != "bootstrap_ids"}
        for name, value in numbers.items():
            least = 0 if name in _MAY_BE_ZERO else 1
            if not least <= value <= _LARGEST:
                raise RaftConfigError(f"{{{name}}} must be from {least} to {_LARGEST}", {name: value})
        if any(each >= 0 for each in self.bootstrap_ids):
            raise RaftConfigError("bootstrap_ids must be below 0: node ids are not", {})
        for text, names, fits in (
            (
                "{fetch_max_wait_ms} must be at most half of {fetch_timeout_ms}, or a waiting fetch looks "
                "like a dead leader",
                ("fetch_max_wait_ms", "fetch_timeout_ms"),
                self.fetch_max_wait_ms * 2 <= self.fetch_timeout_ms,
            ),
            (
                "{retry_backoff_ms} must be at most {retry_backoff_max_ms}",
                ("retry_backoff_ms", "retry_backoff_max_ms"),
                self.retry_backoff_ms <= self.retry_backoff_max_ms,
            ),
            (
                "{note_committed_ms} must be at most {sync_committed_ms}: a durable note is a note",
                ("note_committed_ms", "sync_committed_ms"),
                self.note_committed_ms <= self.sync_committed_ms,
            ),
        ):
            if not fits:
                raise RaftConfigError(text, {name: numbers[name] for name in names})

    @property
    def check_quorum_ms(self) -> int:
        """A leader resigns if no majority has fetched from it for this long (KAFKA-15489): not before
        every follower that lost contact with it has given it up."""
        return self.fetch_timeout_ms * CHECK_QUORUM_PERCENT // 100

    @property
    def hear_voters_ms(self) -> int:
        """How long a voter that has won a pre-vote waits for the other voters that were asked: one of them
        may know of committed records that no voter of this majority has."""
        return self.election_timeout_ms // HEARINGS_PER_TIMEOUT

    @property
    def observer_patience_ms(self) -> int:
        """An observer that has not fetched for this long is down or cannot reach the leader."""
        return self.check_quorum_ms + self.observer_fetch_max_wait_ms

    @property
    def begin_quorum_ms(self) -> int:
        """How often a leader announces itself to a voter that does not fetch: several times before that
        voter stands for election."""
        return max(1, self.fetch_timeout_ms // BEGINS_PER_TIMEOUT)

    @property
    def quiet_voter_ms(self) -> int:
        """A voter that fetched knows its leader; the leader announces itself again after this long without
        a fetch."""
        return self.fetch_timeout_ms // QUIET_TIMES_PER_TIMEOUT

    @property
    def keepalive_ms(self) -> int:
        """How often a voter that cannot take more records sends a keep-alive: check-quorum and its own
        fetch timeout each outlast several lost ones."""
        return max(1, self.fetch_timeout_ms // KEEPALIVES_PER_TIMEOUT)

    @property
    def fetch_grace_ms(self) -> int:
        """How long the response to a fetch may take beyond the wait that the fetch allows: a lost response
        leaves time for two more before the fetch timeout."""
        return max(1, self.fetch_timeout_ms // FETCHES_PER_TIMEOUT)

    @property
    def update_voter_ms(self) -> int:
        """The shortest time between two update requests of a voter whose entry in the voters record is out
        of date: a change can be committed between them."""
        return self.fetch_timeout_ms // UPDATES_PER_TIMEOUT

    @property
    def empty_fetch_pause_ms(self) -> int:
        """The pause after an early, empty response and after an error: the leader is too busy to park the
        fetch, or no longer leads."""
        return EMPTY_FETCH_BACKOFFS * self.retry_backoff_ms


DOUBLINGS_MAX = 16
"""The most doublings of a pause; every ceiling is reached long before."""


def doubled_ms(first_ms: int, doublings: int, ceiling_ms: int) -> int:
    """A pause that starts at `first_ms` and doubles with every further failure, up to `ceiling_ms`."""
    return min(ceiling_ms, first_ms << min(doublings, DOUBLINGS_MAX))


class Voter(msgspec.Struct, frozen=True, kw_only=True):
    """One configured voter: `id@host:port:directory-id`. `directory_id` is None if it is not pinned
    (id@host:port). Configured voters are in force while no record in the log names voters."""

    node_id: int
    host: str
    port: int
    directory_id: bytes | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where it listens. The name is empty, because the configuration names no listener; this
        distinguishes it from the endpoints in a voters record."""
        return (Endpoint("", self.host, self.port),)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """This node's identity. A node observes if its id is not among the voters, or if its directory id
    differs.

    `endpoints` are where it listens and `versions` the levels of kraft.version that it supports: as a voter
    it keeps the voters record up to date with both (if empty, it leaves the record alone). A node that
    `may_vote` can be made a voter while it observes; a broker cannot.
    """

    cluster_id: str
    node_id: int
    directory_id: bytes
    endpoints: tuple[Endpoint, ...] = ()
    versions: VersionRange = OWN_VERSIONS
    may_vote: bool = True

    @property
    def as_voter(self) -> VoterNode:
        """This node's entry for a voters record."""
        return VoterNode(
            node_id=self.node_id,
            directory_id=self.directory_id,
            endpoints=self.endpoints,
            versions=self.versions,
        )


class RecoveredLog(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on disk: hard state, the epoch table, log bounds (offsets) and snapshots.

    Everything below `known_committed` was known to be committed when this replica last ran; `acknowledged` is
    how far directories of voters had acknowledged the log to it as their leader. `directory` names the log in
    messages. `voter_changes` are the voter changes of the newest snapshot and of the log after it, in order;
    a record in a snapshot counts as before the snapshot's end offset.
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
