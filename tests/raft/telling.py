"""Everything that comes out of a Raft core, as lines of a script: messages, effects, and what the core holds.

No field is left out, so that a wrong one shows in a recorded text. What is elided is what a reader knows
anyway, and only while it is that: a default, the own cluster, ids and directories of sender and receiver.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import msgspec

from metaquorum.raft import effects as fx
from metaquorum.raft import messages as ms
from metaquorum.raft.core import RaftCore
from metaquorum.raft.roles import Leader, LeaderView, ReplicaProgress, RoleState
from metaquorum.raft.voters import (
    OWN_VERSIONS,
    Endpoint,
    PreferredCandidate,
    VoterNode,
    VoterSet,
    voter_changes,
)
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.errors import CorruptLogError
from metaquorum.storage.files.known_committed import Acknowledged
from metaquorum.storage.types import LogPosition

CLUSTER_ID = "raft-scripts"
ADMIN = 0
"""Asks for changes of voters and only reads the answers."""
BOOTSTRAP = -100
"""Node 1 as a bootstrap server is -101, and so on."""
START_WALL_MS = 1_000_000
"""Unix time when the clock of a script is 0."""
FETCH_BYTES = 1024 * 1024

Asked = dict[int, tuple[int, int, int]]


def directory(node_id: int) -> bytes:
    return bytes([node_id]) * 16


# ---- parts ---------------------------------------------------------------------------------------


def _position(position: LogPosition | None) -> str:
    return "-" if position is None else f"{position.offset}@{position.epoch}"


def node_name(node_id: int | None) -> str:
    """`n1`, `bootstrap1`, or who is no node: `tool` reads the log."""
    if node_id is None:
        return "-"
    if node_id <= ADMIN:
        return (
            "admin"
            if node_id == ADMIN
            else "tool"
            if node_id > BOOTSTRAP
            else f"bootstrap{BOOTSTRAP - node_id}"
        )
    return f"n{node_id}"


def _directory(directory_id: bytes | None) -> str:
    return directory_id[:1].hex() if directory_id else "any"


def _candidate(one: PreferredCandidate) -> str:
    """With its directory where that is not the usual one."""
    if one.directory_id == directory(one.node_id):
        return node_name(one.node_id)
    return f"{node_name(one.node_id)}:{_directory(one.directory_id)}"


def _endpoint(endpoint: Endpoint) -> str:
    name = "" if endpoint.name == "CONTROLLER" else f"{endpoint.name or '?'}//"
    port = "" if endpoint.port == 9093 else f":{endpoint.port}"
    return f"{name}{endpoint.host}{port}"


def _voter(voter: VoterNode) -> str:
    hosts = ",".join(map(_endpoint, voter.endpoints))
    versions = "" if voter.versions == OWN_VERSIONS else f" {voter.versions.lowest}-{voter.versions.highest}"
    return f"{voter.node_id}:{_directory(voter.directory_id)}@{hosts or '-'}{versions}"


def show_voters(voters: VoterSet) -> str:
    """Each as id:directory@host."""
    return "{" + " ".join(_voter(voter) for voter in voters.nodes) + "}"


def _more(**fields: tuple[object, object]) -> str:
    """The fields that are not what they usually are: ` name=value` of each (value, usual value)."""
    return "".join(f" {name}={_show(value)}" for name, (value, usual) in fields.items() if value != usual)


def _show(value: object) -> str:
    """Any value of the core in few letters."""
    match value:
        case bool():
            return "yes" if value else "no"
        case LogPosition():
            return _position(value)
        case bytes():
            return _directory(value)
        case Endpoint():
            return _endpoint(value)
        case PreferredCandidate():
            return _candidate(value)
        case VoterNode():
            return _voter(value)
        case VoterSet():
            return show_voters(value)
        case Acknowledged():
            return f"{_directory(value.directory_id)}:{value.offset}@{value.epoch}"
        case tuple() | list() | deque():
            return "[" + " ".join(map(_show, value)) + "]"
        case set() | frozenset():
            return "[" + " ".join(sorted(map(_show, value))) + "]"
        case dict():
            return "[" + " ".join(f"{_show(key)}:{_show(each)}" for key, each in value.items()) + "]"
        case msgspec.Struct():
            return _fields({name: getattr(value, name) for name in value.__struct_fields__})
    if dataclasses.is_dataclass(value):
        return _fields({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    return "-" if value is None else str(value)


def _fields(values: dict[str, Any]) -> str:
    return "(" + " ".join(f"{_short(name)}={_show(value)}" for name, value in values.items()) + ")"


def _short(name: str) -> str:
    return name.removesuffix("_ms").removesuffix("_offset").removesuffix("_wall")


# ---- messages ------------------------------------------------------------------------------------


def describe_message(source: int, target: int, payload: ms.RaftRequest | ms.RaftResponse) -> str:
    """One line for a message on its way."""
    body = _request(source, target, payload) or _response(payload)
    return f"{node_name(source)} -> {node_name(target)} {body}"


def _request(source: int, target: int, payload: ms.RaftRequest | ms.RaftResponse) -> str:
    target = target if target >= ADMIN else BOOTSTRAP - target
    match payload:
        case ms.VoteRequest():
            name = "PreVote" if payload.pre_vote else "Vote"
            text = f"{name} epoch={payload.epoch} last={_position(payload.last_position)}" + _more(
                candidate=(payload.candidate_id, source),
                from_directory=(payload.candidate_directory_id, directory(source)),
                voter=(payload.voter_id, target),
                to_directory=(payload.voter_directory_id, directory(target)),
                kraft_version=(payload.kraft_version, 0),
            )
        case ms.BeginQuorumEpochRequest():
            text = f"BeginQuorumEpoch epoch={payload.epoch} leader={node_name(payload.leader_id)}" + _more(
                voter=(payload.voter_id, target),
                to_directory=(payload.voter_directory_id, directory(target)),
                at=(payload.leader_endpoints, ()),
            )
        case ms.EndQuorumEpochRequest():
            successors = ",".join(map(_candidate, payload.preferred_candidates))
            text = f"EndQuorumEpoch epoch={payload.epoch} successors={successors or '-'}" + _more(
                leader=(payload.leader_id, source), at=(payload.leader_endpoints, ())
            )
        case ms.FetchRequest():
            text = f"Fetch epoch={payload.epoch} from={payload.fetch_offset}@{payload.last_fetched_epoch}"
            text += f" hw={payload.high_watermark} wait={payload.max_wait_ms}" + _more(
                replica=(payload.replica_id, source),
                directory=(payload.replica_directory_id, directory(max(source, 0))),
                max=(payload.max_bytes, FETCH_BYTES),
                round=(payload.read_round, 0),
            )
        case ms.FetchSnapshotRequest():
            text = f"FetchSnapshot epoch={payload.epoch} snapshot={_position(payload.snapshot)}"
            text += f" byte={payload.position}" + _more(
                replica=(payload.replica_id, source),
                directory=(payload.replica_directory_id, directory(max(source, 0))),
                max=(payload.max_bytes, FETCH_BYTES),
            )
        case ms.AddVoterRequest():
            text = f"AddVoter {_voter(payload.voter)}"
        case ms.RemoveVoterRequest():
            text = f"RemoveVoter {payload.voter_id}:{_directory(payload.voter_directory_id)}"
        case ms.UpdateVoterRequest():
            text = f"UpdateVoter epoch={payload.epoch} {_voter(payload.voter)}"
        case ms.UpgradeRequest():
            text = f"Upgrade kraft.version={payload.kraft_version} {show_voters(payload.voters)}"
        case _:
            return ""
    cluster = getattr(payload, "cluster_id", CLUSTER_ID)
    return text + ("" if cluster == CLUSTER_ID else f" cluster={cluster}")


def _response(response: Any) -> str:
    head = "" if response.error is ms.RaftError.NONE else f" {response.error.name}"
    head += f" epoch={response.epoch} leader={node_name(response.leader_id)}"
    at = _more(at=(response.leader_endpoints, ()))
    match response:
        case ms.VoteResponse():
            name = "PreVote" if response.pre_vote else "Vote"
            granted = "yes" if response.vote_granted else "no"
            text = f"{name}Response{head} granted={granted} last={_position(response.last_position)}"
            return text + _more(committed=(response.known_committed, None)) + at
        case ms.VoterChangeResponse():
            return f"VoterChangeResponse{head}{at}" + (f" {response.message}" if response.message else "")
        case ms.FetchResponse():
            text = f"FetchResponse{head} hw={response.high_watermark}" + _more(
                start=(response.log_start_offset, 0),
                diverging=(response.diverging, None),
                snapshot=(response.snapshot, None),
            )
            return text + _records(response.records) + _more(round=(response.read_round, 0)) + at
        case ms.FetchSnapshotResponse():
            return (
                f"FetchSnapshotResponse{head} snapshot={_position(response.snapshot)} "
                f"byte={response.position} data={len(response.data)} of {response.size_bytes}{at}"
            )
        case _:
            return f"{type(response).__name__}{head}{at}"


def _records(records: bytes) -> str:
    """Where each batch begins, of which epoch, and where the last one ends."""
    if not records:
        return ""
    try:
        headers = [batch.header for batch in iter_batches(records)]
    except CorruptLogError:
        return f" records=damaged:{len(records)}"
    starts = ",".join(f"{header.base_offset}@{header.leader_epoch}" for header in headers)
    return f" records=[{starts},{headers[-1].next_offset})"


# ---- effects -------------------------------------------------------------------------------------


def name_exchange(effect: fx.RaftEffect, asked: Asked) -> str:
    """Which message an effect sends: `n2#7`, a request of this core or the answer to node 2's request 7;
    empty if it sends none. `asked`: by key who asked, and the number that it gave its request."""
    match effect:
        case fx.SendRequest():
            return f"{node_name(effect.to)}#{effect.correlation_id}"
        case fx.Respond() | fx.RespondWithRecords() | fx.RespondWithSnapshotChunk():
            return f"answer:{node_name(asked[effect.key][0])}#{asked[effect.key][1]}"
        case _:
            return ""


def describe_exchange(effect: fx.RaftEffect, asked: Asked) -> str | None:
    """One line for a message that the core wants sent, whose body is shown when it arrives; None for any
    other effect."""
    name = name_exchange(effect, asked)
    match effect:
        case fx.SendRequest():
            text = f" {type(effect.request).__name__.removesuffix('Request')}"
            text += _more(within=(effect.timeout_ms, None), at=(effect.endpoints, ()))
        case fx.Respond():
            text = ""
        case fx.RespondWithRecords():
            text = f" records=[{effect.read_from},{effect.read_to})"
            text += _more(max=(effect.max_bytes, FETCH_BYTES))
        case fx.RespondWithSnapshotChunk():
            text = f" snapshot={_position(effect.snapshot)} byte={effect.position}"
            text += _more(max=(effect.max_bytes, FETCH_BYTES))
        case _:
            return None
    return f"sends {name}{text}" + _more(after=(effect.after, None))


def describe_effect(effect: fx.RaftEffect) -> str | None:
    """One line for an effect that is no message; None for one that is."""
    match effect:
        case fx.PersistQuorumState():
            leader, voted = node_name(effect.leader_id), node_name(effect.voted_id)
            usual = None if effect.voted_id is None else directory(max(effect.voted_id, 0))
            more = _more(
                directory=(effect.voted_directory_id, usual), kraft_version=(effect.kraft_version, 0)
            )
            return f"persist #{effect.token} epoch={effect.epoch} leader={leader} vote={voted}{more}"
        case fx.AppendLog():
            changes = [
                f" kraft.version={one.kraft_version}"
                if one.voters is None
                else f" voters={show_voters(one.voters)}"
                for one in voter_changes(effect.batches)
            ]
            starts = ",".join(f"{at.base_offset}@{at.leader_epoch}" for at in effect.batches.headers)
            return f"append [{starts},{effect.end_offset})" + "".join(changes)
        case fx.TruncateLog():
            return f"truncate to {effect.end_offset}"
        case fx.ResetLog():
            return f"reset to {_position(effect.position)}"
        case fx.WriteSnapshotChunk():
            what = f"{_position(effect.snapshot)} at byte {effect.position}"
            return f"write chunk of {what}, {len(effect.data)} bytes"
        case fx.FinishSnapshot():
            return f"finish snapshot {_position(effect.snapshot)}, {effect.size_bytes} bytes"
        case fx.HighWatermarkChanged():
            return f"high watermark {effect.high_watermark}"
        case fx.NoteCommitted():
            durably = " durably" if effect.durably else ""
            return f"note {_position(effect.position)}{durably}" + _more(
                acknowledged=(effect.acknowledged, ())
            )
        case fx.RoleChanged():
            start = "" if effect.epoch_start is None else f" start={effect.epoch_start}"
            return f"{effect.role} epoch={effect.epoch} leader={node_name(effect.leader_id)}{start}"
        case fx.ReadReady():
            return f"read {effect.token} ready at {effect.offset}"
        case fx.ReadFailed():
            return f"read {effect.token} failed"
        case fx.Warn():
            return f"{'error' if effect.is_loss else 'warn'}: {effect.message}"
        case _:
            return None


# ---- what a core holds ---------------------------------------------------------------------------


def held(core: RaftCore, waiting: int) -> dict[str, str]:
    """Everything that decides what a core does next, by name. What is as it is at first is left out.
    `waiting`: the number of effects that its gate holds back."""
    state, log, vote = core.state, core.state.log, core.state.vote
    found: dict[str, object] = {
        "epoch": state.epoch,
        "vote": None
        if vote is None
        else _candidate(PreferredCandidate(vote.node_id, vote.directory_id or b"")),
        "gate": waiting or None,
        "leader": state.known_leader_id,
        "leader_at": state.announced_endpoints,
        "unwritten": state.unpersisted_token,
        "observes": state.is_observer or None,
        "stands": state.may_stand if state.is_observer else None,
        "log": f"{log.start_offset}..{log.end_offset}",
        "synced": log.synced_offset,
        "hw": log.high_watermark,
        "epochs": "[" + " ".join(f"{epoch}:{start}" for epoch, start in log.epochs.entries) + "]",
        "snapshots": sorted(log.snapshots),
        "noted": log.noted,
        "noting": (state.note_times.durable, state.note_times.next_ms, state.note_times.next_durable_ms),
        "levels": state.voter_history._levels,
        "voters": state.voter_history.entries,
        "asking": [f"{node_name(at.to)}#{number}" for number, at in state.in_flight.items()],
        "expires": min((at.expires_ms for at in state.in_flight.values()), default=None),
        "retry": state.retry_at_ms,
        "attempts": state.election_attempts or None,
        "acknowledged": list(state.acknowledged.values()),
        "losses": list(state.losses),
        "due": core.next_deadline_ms(),
        **_role(state.role),
    }
    return {name: _show(value) for name, value in found.items() if value not in (None, (), [], {}, "[]")}


def _role(role: RoleState) -> dict[str, object]:
    """Last in `held`, since another role has other names."""
    if isinstance(role, Leader):
        return {"role": role.role.value, "starts": role.epoch_start_offset, **_view(role.view)}
    return {"role": role.role.value} | _unusual(role, without={"role"})


def _unusual(value: Any, *, without: set[str]) -> dict[str, object]:
    """The fields of a dataclass that are not at their defaults."""
    found: dict[str, object] = {}
    for field in dataclasses.fields(value):
        now = getattr(value, field.name)
        usual = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.name not in without and now != usual:
            found[_short(field.name)] = now
    return found


def _view(view: LeaderView) -> dict[str, object]:
    found: dict[str, object] = {f"{node_name(at.node_id)}": _progress(at) for at in view.voters.values()}
    for at in view.observers.values():
        found[f"{node_name(at.node_id)}/{_directory(at.directory_id)}"] = _progress(at)
    waiting = [*view.parked.voters.values(), *view.parked.observers.values()]
    found["parked"] = [f"{node_name(at.replica[0])}<{at.deadline_ms}" for at in waiting]
    reads = view.reads
    found["reads"] = reads if len(reads) or reads.round else None
    return found | _unusual(view, without={"voters", "observers", "parked", "reads"})


def _progress(at: ReplicaProgress) -> str:
    """A replica as its leader sees it; times of day as the script's clock."""
    values = {
        "acked": at.acked_offset,
        "furthest": at.highest_acked_offset or None,
        "heard": at.last_fetch_ms,
        "matched": at.last_fetch_wall_ms and at.last_fetch_wall_ms - START_WALL_MS,
        "caught_up": at.last_caught_up_wall_ms and at.last_caught_up_wall_ms - START_WALL_MS,
        "end_then": at.end_at_last_fetch or None,
        "round": at.read_round or None,
        "begin": at.next_begin_ms,
        "directory": None if at.directory_id == directory(at.node_id) else _directory(at.directory_id),
    }
    return "(" + " ".join(f"{name}={value}" for name, value in values.items() if value is not None) + ")"


def changes(before: dict[str, str], after: dict[str, str]) -> str:
    """What became of what a core held, in one line; empty if nothing did. That an old role's fields are gone
    goes without saying."""
    changed = [f"{name}={value}" for name, value in after.items() if before.get(name) != value]
    names = list(before)
    if before.get("role") != after["role"] and before:
        names = names[: names.index("role")]
    return " ".join([*changed, *(f"-{name}" for name in names if name not in after)])
