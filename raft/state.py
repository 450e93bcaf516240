"""The data of one Raft replica, and how it emits effects.

While a change of hard state (epoch, vote, leader) is not durable, every request and response waits for it
(`after`), so no peer ever learns of a vote that a crash could undo.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from metaquorum.raft import effects
from metaquorum.raft.config import Identity, RaftConfig, RecoveredLog, Voter, doubled_ms
from metaquorum.raft.errors import RaftInvariantError
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import RaftRequest, RaftResponse
from metaquorum.raft.roles import Follower, Leader, LeaderView, RoleState, Unattached
from metaquorum.raft.voters import Endpoint, VoterHistory, VoterNode, VoterSet
from metaquorum.storage.files.known_committed import Acknowledged, CommittedLoss
from metaquorum.storage.types import LogPosition

FIRST_ELECTION_BACKOFF_MS = 50
"""The random wait after a lost election is drawn from twice this, then doubled: a round of votes takes a
few ms, so the losers of a split vote rarely collide again."""
WARNINGS_MAX = 1000
"""The most distinct warnings remembered as logged; peers choose some of their words."""
JITTER_PART = 2
"""A drawn timeout is longer than the configured one by up to this part of it."""
REQUEST_LIFETIMES = 2
"""The driver reports a failure after one timeout. After this many timeouts the core no longer waits for
the report."""


@dataclass(slots=True)
class NoteTimes:
    """When the next note may be written, and the next one made durable."""

    durable: int
    """The offset of the last durable note (a start makes durable what it finds). Never above `log.noted`."""
    next_ms: int = 0
    """The earliest time of a follower's or observer's next note."""
    next_durable_ms: int = 0
    """The earliest time of the next durable note."""


class Vote(msgspec.Struct, frozen=True):
    """The node that got this node's vote in its epoch."""

    node_id: int
    directory_id: bytes | None


class KnownMore(msgspec.Struct, frozen=True):
    """Everything below `position` was committed, and the voter that says so was heard from at
    `heard_ms`."""

    position: LogPosition
    heard_ms: int


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was sent and has no response yet."""

    to: int
    request: RaftRequest
    sent_ms: int
    timeout_ms: int

    @property
    def expires_ms(self) -> int:
        return self.sent_ms + REQUEST_LIFETIMES * self.timeout_ms


def _any_observer(node_id: int) -> bool:
    return True


class RaftState:
    """Only the protocol modules of this package write the fields; all other code only reads them."""

    config: RaftConfig
    """Never changes."""
    identity: Identity
    """Never changes: one directory, one identity."""
    node_id: int
    """The same as `identity.node_id`, which many inputs read."""
    _configured_endpoints: dict[int, tuple[Endpoint, ...]]
    """Where configured voters listen. Never changes."""
    voter_history: VoterHistory
    """The voter sets of the log from the newest snapshot on: it follows every append, truncation and
    reset of the log."""
    rng: random.Random
    """Draws every timeout, so that equal inputs and an equal seed give equal effects."""
    wall_ms: int
    """Unix time of the input. No rule depends on it."""
    log: LogView
    """What is known of the log, ahead of the disk by the effects that are not carried out yet."""
    epoch: int
    """Never falls, and never below the epoch of a record in the log."""
    known_leader_id: int | None
    """The leader of `epoch`, in any role of this node; None if unknown. Within an epoch, it never becomes
    another one."""
    announced_endpoints: tuple[Endpoint, ...]
    """Where the known leader listens, from the message that named it."""
    vote: Vote | None
    """Who got this node's vote in `epoch`; None if there is none. Within an epoch, never another one."""
    role: RoleState
    """Unattached without a timer until `start`; then changed only as the table of roles allows."""
    out: effects.Outbox[effects.RaftEffect]
    """The effects of the input in progress; empty between inputs."""
    unpersisted_token: int | None
    """The newest write of epoch, vote and leader that is not durable; None if all are. Requests and
    responses that are emitted meanwhile wait for it."""
    in_flight: dict[int, InFlight]
    """Requests without a response, by correlation id. A change of role forgets them."""
    retry_at_ms: dict[int, int]
    """By node whose last request failed: the earliest time of the next. A change of role forgets them."""
    election_attempts: int
    """Candidacies since this node last had a leader, itself included: they set the pause after a loss."""
    note_times: NoteTimes
    """When what is committed is written down next."""
    acknowledged: dict[bytes, Acknowledged]
    """By directory: how far it has acknowledged committed records to this node as a leader."""
    claims: dict[int, KnownMore]
    """By voter: what it said to be committed when it last refused this node a vote, and this log lacks."""
    log_ends: dict[int, LogPosition]
    """By voter: where its log ended when it last requested this node's vote, or the beginning of an epoch
    that it led since, of which it has a record."""
    knows_observer: Callable[[int], bool]
    """Whether the cluster has registered the node with this id. Without the driver's word, everyone is."""
    losses: dict[int, CommittedLoss]
    """By replica: what it knows to be committed and this node, as the leader, does not have."""
    _observed_in: VoterSet | None
    """The voter set that the next three were computed from; they are stale if another is in force."""
    _is_observer: bool
    """This node and directory are not in it."""
    _is_misdescribed: bool
    """They are, and the entry is out of date."""
    _other_voters: list[int]
    """Its other node ids, rising."""
    _last_token: int
    """Grows by one per write of epoch, vote and leader."""
    _last_correlation_id: int
    """Grows by one per request: no two of this process share one."""
    _announced: effects.RoleChanged | None
    """The last RoleChanged; None before the start."""
    _warned: set[str]
    """Messages that were logged; at most WARNINGS_MAX."""

    def __init__(
        self,
        config: RaftConfig,
        identity: Identity,
        voters: tuple[Voter, ...],
        recovered: RecoveredLog,
        rng: random.Random,
    ) -> None:
        self.config = config
        self.identity = identity
        self.node_id = identity.node_id
        configured = VoterSet(
            VoterNode(node_id=voter.node_id, directory_id=voter.directory_id) for voter in voters
        )
        self._configured_endpoints = {voter.node_id: voter.endpoints for voter in voters}
        self.voter_history = VoterHistory(configured, recovered.voter_changes)
        self.rng = rng
        self.wall_ms = 0
        self.log = LogView(recovered)
        self.epoch = max(recovered.epoch, self.log.epochs.last_epoch)
        same_epoch = self.epoch == recovered.epoch
        self.known_leader_id = recovered.leader_id if same_epoch else None
        self.announced_endpoints = ()
        voted_id = recovered.voted_id if same_epoch else None
        self.vote = None if voted_id is None else Vote(voted_id, recovered.voted_directory_id)
        self.role = Unattached(deadline_ms=None)
        self.out = effects.Outbox()
        self.unpersisted_token = None
        self.in_flight = {}
        self.retry_at_ms = {}
        self.election_attempts = 0
        self.note_times = NoteTimes(durable=self.log.noted.offset)
        self.acknowledged = {one.directory_id: one for one in recovered.acknowledged}
        self.claims = {}
        self.log_ends = {}
        self.knows_observer = _any_observer
        self.losses = {}
        self._observed_in = None
        self._is_observer = True
        self._is_misdescribed = False
        self._other_voters = []
        self._last_token = 0
        self._last_correlation_id = 0
        self._announced = None
        self._warned = set()

    # ---- identity and voters -----------------------------------------------------------------

    @property
    def voters(self) -> VoterSet:
        """The voters in force: those of the newest record in the log, committed or not; otherwise the
        configured ones."""
        return self.voter_history.newest

    @property
    def kraft_version(self) -> int:
        return self.voter_history.kraft_version

    @property
    def is_observer(self) -> bool:
        """Read many times per input; changes only with the voter set."""
        voters = self.voter_history.newest
        if voters is not self._observed_in:
            self._find_itself(voters)
        return self._is_observer

    @property
    def is_misdescribed(self) -> bool:
        """Whether this node votes and the voters record describes it differently than it does itself."""
        return not self.is_observer and self._is_misdescribed

    def _find_itself(self, voters: VoterSet) -> None:
        identity = self.identity
        self._observed_in = voters
        self._is_observer = not voters.is_voter(self.node_id, identity.directory_id)
        self._is_misdescribed = bool(identity.endpoints) and voters.get(self.node_id) != identity.as_voter
        self._other_voters = [node_id for node_id in voters if node_id != self.node_id]

    @property
    def may_stand(self) -> bool:
        """Whether this node takes part in elections: as a voter, or because its log, and perhaps no other,
        has the record that removes it, not yet known to be committed. Its own vote does not count then,
        but its log may be the only one that can win the votes that do (Raft dissertation 4.2.2)."""
        if not self.is_observer:
            return True
        newest = self.voter_history.newest_offset
        if newest is None or newest < self.log.high_watermark:
            return False
        return self.voter_history.previous.is_voter(self.node_id, self.identity.directory_id)

    @property
    def acknowledges(self) -> bool:
        """Whether this node's fetch offset states what is durable here: true for a voter, and for an
        observer that can become one, since its earlier fetches then count."""
        return not self.is_observer or (self.kraft_version >= 1 and self.identity.may_vote)

    @property
    def other_voters(self) -> list[int]:
        """By rising id."""
        voters = self.voter_history.newest
        if voters is not self._observed_in:
            self._find_itself(voters)
        return self._other_voters

    @property
    def leader_endpoints(self) -> tuple[Endpoint, ...]:
        """Where the leader that this node names in responses listens; empty at kraft.version 0."""
        leader_id = self.leader_id
        return () if leader_id is None else self.endpoints_of(leader_id)

    def leader_endpoints_for(self, replica_id: int) -> tuple[Endpoint, ...]:
        """The leader's endpoints for the response to a fetch. At kraft.version 0 only nodes that are not
        voters need them: they may know only bootstrap servers."""
        leader_id = self.leader_id
        if leader_id is None:
            return ()
        endpoints = self.endpoints_of(leader_id)
        if endpoints or self.kraft_version >= 1 or replica_id in self.voters:
            return endpoints
        return self._configured_endpoints.get(leader_id, ())

    def accepted_endpoints(self, endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        """The part of a message's leader endpoints that this node accepts. Endpoints without a listener
        name come from another node's configuration, and are accepted only if this node knows no voters."""
        return () if endpoints and not endpoints[0].name and len(self.voters) else endpoints

    def endpoints_of(self, node_id: int) -> tuple[Endpoint, ...]:
        """Where a node listens, unless it is configured. The leader's own endpoints are newer than those
        in the log."""
        if self.kraft_version >= 1 and node_id == self.node_id and self.identity.endpoints:
            return self.identity.endpoints
        if node_id == self.known_leader_id and self.announced_endpoints:
            return self.announced_endpoints
        voter = self.voters.get(node_id)
        return () if voter is None else voter.endpoints

    @property
    def leader_id(self) -> int | None:
        """This node if it leads, or the leader that it follows; otherwise None."""
        match self.role:
            case Leader():
                return self.node_id
            case Follower(leader_id=leader_id):
                return leader_id
            case _:
                return None

    def is_voter_replica(self, node_id: int, directory_id: bytes) -> bool:
        """True if this node and directory are a voter (an unpinned voter matches any directory)."""
        return self.voter_history.newest.is_voter(node_id, directory_id)

    def leader_view(self) -> LeaderView:
        role = self.role
        if type(role) is not Leader:
            raise RaftInvariantError(f"a {role.role} has no view of replicas: only a leader has")
        return role.view

    # ---- effects -----------------------------------------------------------------------------

    def warn_once(self, message: str, *, is_loss: bool = False) -> None:
        """One line for the operator, logged once."""
        if message not in self._warned and len(self._warned) < WARNINGS_MAX:
            self._warned.add(message)
            self.out.append(effects.Warn(message=message, is_loss=is_loss))

    def respond(self, key: int, response: RaftResponse) -> None:
        if self.leader_endpoints:
            response = replace(response, leader_endpoints=self.leader_endpoints)
        self.out.append(effects.Respond(key=key, response=response, after=self.unpersisted_token))

    def send(self, to: int, request: RaftRequest, timeout_ms: int, *, now_ms: int) -> None:
        self._last_correlation_id += 1
        correlation_id = self._last_correlation_id
        self.in_flight[correlation_id] = InFlight(
            to=to, request=request, sent_ms=now_ms, timeout_ms=timeout_ms
        )
        self.out.append(
            effects.SendRequest(
                to=to,
                correlation_id=correlation_id,
                request=request,
                timeout_ms=timeout_ms,
                after=self.unpersisted_token,
                endpoints=self.endpoints_of(to),
            )
        )

    def is_asking(self, to: int) -> bool:
        """True while a request to this node has no response: only one request at a time."""
        return bool(self.in_flight) and any(flight.to == to for flight in self.in_flight.values())

    def may_ask(self, to: int, *, now_ms: int) -> bool:
        return self.retry_at_ms.get(to, now_ms) <= now_ms and not self.is_asking(to)

    def next_ask_ms(self, targets: Iterable[int]) -> int | None:
        """When the next request may be sent to the first of `targets`; None if all have a request pending."""
        free = (self.retry_at_ms.get(to, 0) for to in targets if not self.is_asking(to))
        return min(free, default=None)

    def persist(self) -> None:
        """Request a durable write of epoch, vote and leader together; whatever follows waits for it."""
        self._last_token += 1
        self.unpersisted_token = self._last_token
        self.out.append(
            effects.PersistQuorumState(
                token=self._last_token,
                epoch=self.epoch,
                leader_id=self.known_leader_id,
                voted_id=None if self.vote is None else self.vote.node_id,
                voted_directory_id=None if self.vote is None else self.vote.directory_id,
                kraft_version=self.kraft_version,
            )
        )

    def persisted(self, token: int) -> None:
        if token == self.unpersisted_token:  # the newest: after an earlier one, later writes are pending
            self.unpersisted_token = None

    def announce(self) -> None:
        """Emit RoleChanged if role, epoch or leader differ from the last announcement."""
        start = self.role.epoch_start_offset if isinstance(self.role, Leader) else None
        change = effects.RoleChanged(
            role=self.role.role.value, epoch=self.epoch, leader_id=self.leader_id, epoch_start=start
        )
        if change != self._announced:
            self._announced = change
            self.out.append(change)

    # ---- randomness --------------------------------------------------------------------------

    def with_jitter(self, timeout_ms: int) -> int:
        """A timeout drawn from [timeout, 1.5 x timeout]."""
        return timeout_ms + self.rng.randint(0, max(1, timeout_ms // JITTER_PART))

    def election_patience_ms(self) -> int:
        """How long a candidate waits for votes, and a voter without a leader before it stands. It doubles
        with the elections tried since a leader was last known: voters that write their votes slowly would
        answer each of many short elections too late, and an elected one would announce itself too late."""
        first_ms = self.config.election_timeout_ms
        ceiling_ms = max(first_ms, self.config.request_timeout_ms)
        return self.with_jitter(doubled_ms(first_ms, max(0, self.election_attempts - 1), ceiling_ms))

    def backoff_ms(self) -> int:
        """A short random wait that grows with the elections tried since a leader was last known."""
        ceiling_ms = self.config.election_backoff_max_ms
        return self.rng.randint(0, doubled_ms(FIRST_ELECTION_BACKOFF_MS, self.election_attempts, ceiling_ms))
