"""Why the quorum's leader changed, by the first record of an epoch and the silence before it.

Owns the rules about elections of controllers. The log records which voters voted for the winner (KIP-595),
but not why a candidate stood for election. Does not read the log: its caller measures the silence.
"""

from __future__ import annotations

from metaquorum.metadata.inspect.causes.cause_types import NOOP_LEVEL, Cause, cannot_tell, ids
from metaquorum.metadata.records import control

FETCH_TIMEOUT_MS = 2_000
"""The default of controller.quorum.fetch.timeout.ms: no voter stands for election before this much silence,
unless the leader asked it to (KIP-595)."""


def election_causes(
    record: control.LeaderChangeMessage,
    epoch: int,
    leader_before: int | None,
    epoch_before: int | None,
    silence_ms: int | None,
    metadata_version: int = NOOP_LEVEL,
) -> tuple[Cause, ...]:
    """Why the quorum has this leader. The first record of an epoch lists the voters that voted for it
    (KIP-595). `silence_ms` is the time since the previous batch: None if unknown, below 0 if the two
    clocks cannot be compared."""
    granting = [voter.voter_id for voter in record.granting_voters]
    votes = f" by {ids(granting)}" if granting else ""
    found = [Cause(rule="leader-elected", text=f"controller {record.leader_id} was elected{votes}")]
    if leader_before is not None and leader_before != record.leader_id and granting:
        voted = leader_before in granting
        found.append(_leader_gone(leader_before, voted, silence_ms, metadata_version))
    if epoch_before is not None and epoch > epoch_before + 1:
        skipped = f"{epoch_before + 1}" if epoch == epoch_before + 2 else f"{epoch_before + 1} to {epoch - 1}"
        which = (
            f"epoch {skipped}, or its winner" if skipped.isdigit() else f"epochs {skipped}, or the winners"
        )
        text = f"no controller won {which} committed nothing"
        found.append(Cause(rule="epochs-skipped", text=text))
    return tuple(found)


def _leader_gone(leader: int, voted: bool, silence_ms: int | None, metadata_version: int) -> Cause:
    if silence_ms is not None and 0 <= silence_ms < FETCH_TIMEOUT_MS:
        text = (
            f"controller {leader}, which led before, wrote until {silence_ms} ms before: it resigned, or was"
            " started again at once"
        )
        return Cause(rule="leader-resigned", text=text)
    silent = silence_ms is not None and silence_ms >= FETCH_TIMEOUT_MS
    if silent and not voted and metadata_version >= NOOP_LEVEL:
        text = (
            f"controller {leader}, which led before, stopped writing and did not vote: it failed, was cut "
            "off, or was stopped without a successor"
        )
        return Cause(rule="leader-lost", text=text)
    if silence_ms is None:
        why = "; its last write is not known"
    elif not silent:
        why = ", and its successor's clock disagrees with its own"
    elif voted:
        why = ", stopped writing, and voted for its successor"
    else:
        why = "; below metadata.version 3.3-IV1 a leader writes nothing when idle"
    text = f"controller {leader} led before{why}; " + cannot_tell(
        ("it resigned", "its own log says that it shuts down or resigns"),
        ("it failed or was cut off", "the logs of the others say that the fetch timeout passed"),
    )
    return Cause(rule="leader-replaced", text=text, certain=False)
