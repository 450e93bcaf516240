"""Rules about elections of the quorum's leader, by the first record of an epoch and the silence before it.

The log records which voters voted for the winner (KIP-595), but not why a candidate stood for election. A
short silence proves no resignation: fetch timeouts are configured (2 s in Kafka, 1 s here, by default), and
a connection that is reset counts sooner.
"""

from __future__ import annotations

from typing import NamedTuple

from metaquorum.metadata.inspect.causes.rule import WARNING, Alternative, Cause, CauseRules, Reason, ids
from metaquorum.metadata.inspect.changes.change_steps import NOOP_LEVEL
from metaquorum.metadata.records import control

FETCH_TIMEOUT_MS = 2_000
"""The default of controller.quorum.fetch.timeout.ms: a leader that was silent for as long had failed or
resigned."""


class QuorumElection(NamedTuple):
    """The first record of an epoch, and what the log said before it."""

    record: control.LeaderChangeMessage
    epoch: int
    leader_before: int | None
    epoch_before: int | None
    silence_ms: int | None
    """Since the previous batch; None if unknown, below 0 if the two clocks cannot be compared."""
    metadata_version: int

    @property
    def granting(self) -> list[int]:
        """The voters that voted for the winner."""
        return [voter.voter_id for voter in self.record.granting_voters]

    @property
    def has_lost_leader(self) -> bool:
        return self.leader_before not in (None, self.record.leader_id) and bool(self.granting)

    @property
    def is_plainly_lost(self) -> bool:
        """Whether the leader before was silent for too long, although an idle leader writes, and did not
        vote."""
        silent = self.silence_ms is not None and self.silence_ms >= FETCH_TIMEOUT_MS
        return silent and self.leader_before not in self.granting and self.metadata_version >= NOOP_LEVEL


ELECTIONS: CauseRules[QuorumElection] = CauseRules("the quorum's leader")
CHANGED_LEADER = ("leader-lost", "leader-replaced")
"""Names of the rules about the leader before."""


def election_causes(
    record: control.LeaderChangeMessage,
    epoch: int,
    leader_before: int | None,
    epoch_before: int | None,
    silence_ms: int | None,
    metadata_version: int = NOOP_LEVEL,
) -> tuple[Cause, ...]:
    """Why the quorum has this leader. The arguments are the fields of `QuorumElection`."""
    election = QuorumElection(record, epoch, leader_before, epoch_before, silence_ms, metadata_version)
    return tuple(ELECTIONS.all(election))


@ELECTIONS.rule("leader-elected", "a majority of the voters voted for the controller", precedence=10)
def elected(election: QuorumElection) -> Reason | None:
    votes = f" by {ids(election.granting)}" if election.granting else ""
    return Reason(f"controller {election.record.leader_id} was elected{votes}")


@ELECTIONS.rule(
    "leader-lost",
    "the previous leader wrote nothing for at least the default fetch timeout of Kafka (2 s) and did not "
    "vote for its "
    "successor: it failed, was cut off, or was stopped without a successor",
    precedence=11,
    severity=WARNING,
    word="stopped writing",
)
def lost(election: QuorumElection) -> Reason | None:
    if not (election.has_lost_leader and election.is_plainly_lost):
        return None
    text = (
        f"controller {election.leader_before}, which led before, stopped writing and did not vote: it "
        f"failed, was cut "
        "off, or was stopped without a successor"
    )
    return Reason(text)


_RESIGNED = Alternative("it resigned", "its own log says that it shuts down or resigns")
_FAILED = Alternative(
    "it failed, hung or was cut off", "the logs of the others say that the fetch timeout passed"
)


@ELECTIONS.rule(
    "leader-replaced",
    "another controller leads, and silence, votes and clocks do not show whether the previous leader "
    "resigned, hung "
    "or failed",
    precedence=12,
    severity=WARNING,
    word="resigned or failed",
    readings=(_RESIGNED, _FAILED),
)
def replaced(election: QuorumElection) -> Reason | None:
    if not election.has_lost_leader or election.is_plainly_lost:
        return None
    silence_ms = election.silence_ms
    if silence_ms is None:
        why = "; its last write is not known"
    elif silence_ms < 0:
        why = ", and its successor's clock disagrees with its own"
    elif silence_ms < FETCH_TIMEOUT_MS:
        why = f", and wrote until {silence_ms} ms before"
        why += "; it voted for its successor" if election.leader_before in election.granting else ""
    elif election.leader_before in election.granting:
        why = ", stopped writing, and voted for its successor"
    else:
        why = "; below metadata.version 3.3-IV1 a leader writes nothing when idle"
    text = f"controller {election.leader_before} led before{why}"
    return Reason(text, readings=(_RESIGNED, _FAILED))


@ELECTIONS.rule(
    "epochs-skipped",
    "epochs without a record precede this one: they had no winner, or their winners committed nothing",
    precedence=20,
)
def epochs_skipped(election: QuorumElection) -> Reason | None:
    before, epoch = election.epoch_before, election.epoch
    if before is None or epoch <= before + 1:
        return None
    if epoch == before + 2:
        return Reason(f"no controller won epoch {before + 1}, or its winner committed nothing")
    return Reason(f"no controller won epochs {before + 1} to {epoch - 1}, or the winners committed nothing")
