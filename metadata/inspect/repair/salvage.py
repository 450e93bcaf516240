"""A quorum that lost its majority: which survivor is the most caught-up, and what may be missing.

The survivors are only read. A broker's directory counts too: it follows the log and holds only committed
records, so its end is a lower bound of what was committed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.features import LEVEL_DYNAMIC_VOTERS, metadata_version_name
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.coverage import offsets_text
from metaquorum.metadata.inspect.log.log import INDEX_SUFFIXES, damage_line
from metaquorum.metadata.inspect.log.points import utc_text
from metaquorum.metadata.inspect.log.quorum import QuorumView, VoterSets, quorum_in_snapshot
from metaquorum.metadata.inspect.nodes.lost import Holding, LostCommitted, find_losses, holding
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles, NodeWriter, stored_epochs, whole_snapshot
from metaquorum.metadata.inspect.walk.rewrite import repaired_headers
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records.batches import DecodedRecord, decode_batch
from metaquorum.metadata.records.codec import encode_control
from metaquorum.metadata.records.control import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    Voter,
    VoterEndpoint,
    VotersRecord,
)
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches
from metaquorum.storage.disk.interface import join, name_of
from metaquorum.storage.files.meta_properties import MetaProperties
from metaquorum.storage.files.quorum_state import FILE_NAME as QUORUM_STATE
from metaquorum.storage.files.quorum_state import QuorumState
from metaquorum.storage.log.config import PARTITION_METADATA_FILE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.segment import parse_segment_name
from metaquorum.storage.types import LogPosition

EPOCH_MARGIN = 1000
"""How far the new quorum's first epoch is above every epoch that a survivor knows: the lost voters may have
elected leaders among themselves that no survivor heard from, and brokers refuse a leader of an older
epoch."""


class Survivor(msgspec.Struct, frozen=True, kw_only=True):
    """One remaining directory.

    `end` is the position after its last whole batch, `time_ms` that of its newest record (-1: none). `epoch`
    is the highest epoch that it knows of (from its log, or from an election that wrote nothing here).
    `damage` is what follows `end`, or None. `quorum` is the voter set in its log.
    """

    files: NodeFiles
    end: LogPosition
    time_ms: int
    epoch: int
    quorum: QuorumView
    epochs: EpochTable
    sets: VoterSets
    damage: Damage | None

    @property
    def holds_batches(self) -> bool:
        """Whether the log reaches `end`; if not, a snapshot does and the log ends before it."""
        return self.epochs.entries[0][1] < self.end.offset

    @property
    def holding(self) -> Holding:
        """What its node knew to be committed, and what its log holds."""
        return holding(self.files.log, self.end.offset, self.epochs, self.sets)

    @property
    def node_id(self) -> int | None:
        """The node id in its meta.properties."""
        return None if self.files.identity is None else self.files.identity.node_id


@dataclass(slots=True, kw_only=True)
class Ranking:
    """Survivors, the most caught-up first. `voters` are the ids of the old voter set; `voter_set` is the set
    itself if the log has it (kraft.version 1)."""

    survivors: list[Survivor] = field(default_factory=list)
    voters: tuple[int, ...] = ()
    voter_set: tuple[Voter, ...] = ()
    warnings: list[str] = field(default_factory=list)
    losses: list[LostCommitted] = field(default_factory=list)

    @property
    def best(self) -> Survivor:
        """The survivor whose log the new quorum gets."""
        return self.survivors[0]

    @property
    def cluster_id(self) -> str | None:
        """The cluster id in the survivors' meta.properties."""
        identities = (one.files.identity for one in self.survivors)
        return next((one.cluster_id for one in identities if one is not None and one.cluster_id), None)

    @property
    def found_voters(self) -> list[int]:
        """Old voters whose directory is among the survivors."""
        there = {one.node_id for one in self.survivors if self.is_voter(one)}
        return [voter for voter in self.voters if voter in there]

    def is_voter(self, survivor: Survivor) -> bool:
        """Whether a directory is an old voter's: by its node id, and by its directory id if the
        log has the voter set."""
        if not self.voter_set:
            return survivor.node_id in self.voters
        held = survivor.holding
        return any(held.is_voter(voter) for voter in self.voter_set)

    @property
    def damaged_voters(self) -> list[int]:
        """Found voters whose log is damaged: what they had after the damage is unknown."""
        damaged = {one.node_id for one in self.survivors if one.damage is not None and self.is_voter(one)}
        return [voter for voter in self.found_voters if voter in damaged]

    @property
    def has_majority(self) -> bool:
        """Whether the survivors together must hold every committed record."""
        return 2 * (len(self.found_voters) - len(self.damaged_voters)) > len(self.voters)

    @property
    def first_epoch(self) -> int:
        """The new quorum starts after this epoch."""
        return max(one.epoch for one in self.survivors) + EPOCH_MARGIN


def examine(files: NodeFiles) -> Survivor:
    """Reads a survivor's whole log once. Raises InspectError if it has no whole batch or snapshot."""
    log = files.log
    end, time_ms, damage = LogPosition(0, log.start_offset), -1, None
    older = [position for position in log.snapshots() if position.offset <= log.start_offset]
    quorum = quorum_in_snapshot(log.snapshot(older[-1])).without_leader() if older else QuorumView()
    epochs, sets = EpochTable(), VoterSets(log)
    for item, mended in repaired_headers(log.batches(), log.start_offset):
        if isinstance(item, Damage):
            if not item.file.endswith(INDEX_SUFFIXES):
                damage = damage or item
            continue
        if damage is not None:
            break  # what follows lost bytes does not continue the log
        header = item.header
        records = decode_batch(item, tolerant=True) if header.is_control else []
        problem = _unelected(header.leader_epoch, epochs.last_epoch, records)
        if mended is not None:
            problem = f"{mended} by a repair"
        if problem is not None:  # no CRC covers the epoch, which would rank this directory
            damage = _damaged_header(item, problem)
            break
        end, time_ms = LogPosition(header.leader_epoch, header.next_offset), header.max_timestamp_ms
        epochs = epochs.append(header.leader_epoch, header.base_offset)
        sets.take(item)
        if records:
            quorum = quorum.after(header.leader_epoch, records)
    newest = log.snapshots()[-1:]
    if newest and (newest[0].offset > end.offset or not epochs.entries):
        end = newest[0]  # a snapshot was fetched, and the log does not continue from it yet
        epochs = EpochTable.reset(end)
        quorum = quorum_in_snapshot(log.snapshot(end)).without_leader()
        time_ms = max(time_ms, log.snapshot(end).snapshot_timestamp_ms())
    if end.offset == 0:
        if damage is None:
            raise InspectError(f"{log.path} holds no complete record; leave it out")
        raise InspectError(
            f"{log.path} holds no complete record before its damage ({damage_line(damage)}); leave it out, or"
            f" save what can be read after it with: {_saving(files.home)}"
        )
    voted = 0 if files.quorum is None else files.quorum.epoch
    return Survivor(
        files=files,
        end=end,
        time_ms=time_ms,
        epoch=max(end.epoch, voted, stored_epochs(log).last_epoch),
        quorum=quorum,
        epochs=epochs,
        sets=sets,
        damage=damage,
    )


def _unelected(epoch: int, before: int, records: Sequence[DecodedRecord]) -> str | None:
    """What is wrong with an epoch that was begun neither by an election nor by a salvage, which leaves a
    voter set. Nothing is known `before` the first batch (0)."""
    begins = any(isinstance(one.record, LeaderChangeMessage | VotersRecord) for one in records)
    if before == 0 or epoch <= before or begins:
        return None
    return f"leader epoch {epoch} begins without an election, after epoch {before}"


def _damaged_header(batch: RecordBatch, problem: str) -> Damage:
    offset = batch.header.base_offset
    return Damage(
        file=batch.file, position=batch.position, offset=offset, reason=f"damaged header: {problem}"
    )


def rank(survivors: Sequence[Survivor]) -> Ranking:
    """The survivors in order, what is known of the old voters, and what to look at first.

    Raises InspectError if there are none, or if they are of two clusters.
    """
    if not survivors:
        raise InspectError("there is no directory to salvage from; give those of the surviving nodes")
    clusters = {
        one.files.identity.cluster_id: one
        for one in survivors
        if one.files.identity is not None and one.files.identity.cluster_id
    }
    if len(clusters) > 1:
        first, second = list(clusters.values())[:2]
        raise InspectError(
            f"{first.files.home} and {second.files.home} belong to different clusters; give one cluster's"
        )
    ordered = sorted(survivors, key=lambda one: one.end, reverse=True)
    newest = max((one.quorum for one in ordered), key=lambda view: view.epoch)
    ranking = Ranking(survivors=ordered, voters=newest.voters or _stored_voters(ordered))
    if ordered[0].quorum.kraft_version and ordered[0].quorum.voter_set:
        ranking.voter_set, ranking.voters = ordered[0].quorum.voter_set, ordered[0].quorum.voters
    ranking.warnings += [
        f"{one.files.identity_problem}; its log is used nevertheless"
        for one in ordered
        if one.files.identity_problem is not None
    ]
    ranking.warnings += [
        f"{one.files.home} is of node {one.node_id}, but not the voter's directory: it is an observer's"
        for one in ordered
        if one.node_id in ranking.voters and not ranking.is_voter(one)
    ]
    ranking.warnings += [line for one in ordered for line in _damage_lines(one)]
    ranking.warnings += [line for one in ordered[1:] for line in _parting(ordered[0], one)]
    ranking.losses = find_losses([one.holding for one in ordered], ranking.voters)
    ranking.warnings += map(str, ranking.losses)
    return ranking


def _stored_voters(ordered: Sequence[Survivor]) -> tuple[int, ...]:
    """The voters in the quorum-state files, for a trimmed log without an election."""
    for one in ordered:
        if one.files.quorum is not None and one.files.quorum.voters:
            return tuple(sorted(one.files.quorum.voters))
    return ()


def _damage_lines(survivor: Survivor) -> list[str]:
    if survivor.damage is None:
        return []
    home = survivor.files.home
    return [
        f"{home}: nothing after offset {survivor.end.offset} is used: {damage_line(survivor.damage)}; if more"
        f" can be read after it, save that first with: {_saving(home)}"
    ]


def _saving(home: str) -> str:
    return f"metaquorum log repair {shlex.quote(home)} --past-corruption --to NEW"


def _parting(best: Survivor, other: Survivor) -> list[str]:
    """Where `other` has records that the best log lacks (KIP-595's divergence check)."""
    common, end = other.files.log.start_offset, other.end.offset
    committed = other.holding.committed.offset
    for epoch, start in reversed(other.epochs.entries):
        best_end = best.epochs.end_offset_for(epoch, best.end.offset)
        if best_end is None:
            return []  # the best log begins later: nothing to compare
        if best_end.epoch == epoch:
            common = min(end, best_end.offset)
            break
        end = start
    if common >= other.end.offset:
        return []
    if committed > common:
        return [
            f"{other.files.home} has {offsets_text(common, other.end.offset)} of epoch {other.end.epoch}"
            f" that the best log lacks, and those below {committed} were committed: a controller's directory"
            f" was replaced by an older copy or emptied, and the best log's records from offset {common} on"
            " were written without them; decide which to keep: to keep these, salvage from"
            f" {other.files.home} alone"
        ]
    return [
        f"{other.files.home} has {offsets_text(common, other.end.offset)} of epoch {other.end.epoch}"
        " that the best log lacks; a later leader did not have them, so they were never committed"
    ]


def what_is_missing(ranking: Ranking) -> list[str]:
    """What the new quorum may lack, as far as is known, in lines for people."""
    best = ranking.best
    lines = []
    present, voters = ranking.found_voters, ranking.voters
    if not voters:
        lines.append("the old voters are unknown: records after the end may be missing")
    elif ranking.losses:
        lines.append(
            "see the warnings above: some records that a node knew to be committed are not on all nodes"
        )
    elif ranking.has_majority:
        whole = len(present) - len(ranking.damaged_voters)
        how = "" if whole == len(present) else " and whole"
        lines.append(f"no committed record: {whole} of the {len(voters)} voters are here{how}, a majority")
        if best.damage is None:
            lines.append("this quorum can start as it is; salvage only to change the voter set")
    elif 2 * len(present) > len(voters):
        damaged = ", ".join(map(str, ranking.damaged_voters))
        lines.append(
            f"anything committed from offset {best.end.offset} on: a majority of the voters is here, but"
            f" what {damaged} held after the damage is unknown"
        )
    else:
        gone = ", ".join(str(voter) for voter in voters if voter not in present)
        lines.append(
            f"anything committed from offset {best.end.offset} on: voters {gone} are gone, and the "
            f"{len(voters) // 2 + 1} of {len(voters)} voters that commit a record may not have included "
            "a survivor"
        )
        if best.time_ms >= 0:
            lines.append(
                f"the newest record here is from {utc_text(best.time_ms)}; later changes may be lost"
            )
    highest = max(one.epoch for one in ranking.survivors)
    if highest > best.end.epoch and not ranking.has_majority:
        lines.append(
            f"the survivors know of epoch {highest}, but the best log ends in epoch {best.end.epoch}: a "
            "leader of an epoch in between may have committed records that are in no directory here"
        )
    if best.node_id is not None and best.node_id in voters:
        lines.append(
            "its last records may never have been committed: no client got an answer for them, but now "
            "they count as committed"
        )
    return lines


# The directories of a new voter set, made from the best remaining log.
#
# Their content: that log unchanged, an epoch above every known one, no vote, and at kraft.version 1 the new
# voter set as the log's last record.


class NewVoter(msgspec.Struct, frozen=True, kw_only=True):
    """One voter of the new set: its address, and the id of its new directory (16 bytes)."""

    node_id: int
    host: str
    port: int
    directory_id: bytes


def write_voters(
    ranking: Ranking,
    voters: Sequence[NewVoter],
    homes: Sequence[str],
    cluster_id: str,
    *,
    kraft_version: int = 0,
    now_ms: int = 0,
) -> MetadataImage:
    """Writes a directory for each new voter (`homes`, in the same order). Returns the state that all of them
    hold.

    Each gets the best log and its snapshots unchanged, a quorum-state of `ranking.first_epoch` without a
    vote, and its own identity. At kraft.version 1 the log ends with the new voter set, in that epoch and at
    the time `now_ms`: no leader wrote it, and the first leader commits it. Raises InspectError if the best
    survivor's state cannot be replayed or does not allow that version, or if a directory is not empty;
    StorageError if the disk fails.
    """
    best = ranking.best
    state = state_at(best.files.log)
    if state.problems and best.damage is None:
        raise InspectError(f"{state.problems[0]}; repair that directory first (metaquorum log repair)")
    last = b""
    if kraft_version:
        _require_level(state.image)
        last = _voter_set_batch(ranking, voters, now_ms)
    ids = () if kraft_version else tuple(sorted(voter.node_id for voter in voters))
    quorum = QuorumState(epoch=ranking.first_epoch, voters=ids).encode(kraft_version)
    for voter, home in zip(voters, homes, strict=True):
        identity = MetaProperties(
            cluster_id=cluster_id, node_id=voter.node_id, directory_id=voter.directory_id
        )
        _write_one(best, home, last, quorum, identity)
    return state.image


def _require_level(image: MetadataImage) -> None:
    level = image.features.metadata_version
    if level < LEVEL_DYNAMIC_VOTERS:
        raise InspectError(
            f"kraft.version 1 needs metadata.version {metadata_version_name(LEVEL_DYNAMIC_VOTERS)}, but this"
            f" log is at {metadata_version_name(level)}; leave out --kraft-version"
        )


def _voter_set_batch(ranking: Ranking, voters: Sequence[NewVoter], now_ms: int) -> bytes:
    """The new set as the last batch of the log, with the old set's listener name."""
    names = [at.name for voter in ranking.voter_set for at in voter.endpoints]
    listed = tuple(
        Voter(
            voter_id=voter.node_id,
            voter_directory_id=voter.directory_id,
            endpoints=(VoterEndpoint(name=[*names, "CONTROLLER"][0], host=voter.host, port=voter.port),),
            kraft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
        )
        for voter in sorted(voters, key=lambda one: one.node_id)
    )
    records = (KRaftVersionRecord(kraft_version=1), VotersRecord(voters=listed))
    keys, values = zip(*(encode_control(one) for one in records), strict=True)
    return encode_batch(
        base_offset=ranking.best.end.offset,
        leader_epoch=ranking.first_epoch,
        timestamp_ms=now_ms,
        values=list(values),
        keys=list(keys),
        is_control=True,
    )


def _write_one(best: Survivor, home: str, last: bytes, quorum: bytes, identity: MetaProperties) -> None:
    log = best.files.log
    writer = NodeWriter(log.disk, home, EpochTable() if best.holds_batches else best.epochs)
    try:
        if best.holds_batches:
            _copy_segments(best, writer)
        else:  # the log does not reach the snapshot's end
            writer.begin_segment(best.end.offset)
        for batch in iter_batches(last, file=home):
            writer.append(batch)
        for position in log.snapshots():
            if position.offset <= best.end.offset and whole_snapshot(log, position) is not None:
                writer.copy_snapshot(log, position)
        writer.copy_beside(best.files, (PARTITION_METADATA_FILE,))
        writer.write_file(join(writer.directory, QUORUM_STATE), quorum)
        writer.finish(identity.encode())
    finally:
        writer.close()


def _copy_segments(best: Survivor, writer: NodeWriter) -> None:
    log = best.files.log
    segment: int | None = None
    for item in log.batches():
        if isinstance(item, Damage):
            continue  # damage to an index, or followed only by what is past the end
        if item.header.next_offset > best.end.offset:
            break
        base = parse_segment_name(name_of(item.file))
        if base is not None and base != segment:
            segment = base
            writer.begin_segment(base)
        writer.append(item)
