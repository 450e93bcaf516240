"""The directories of a new voter set, made from the best remaining log.

Their content: that log unchanged, an epoch above every known one, no vote, and at kraft.version 1 the
new voter set as the log's last record. Must not write to survivors, and does not decide which log is the
best: `salvage` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.features import LEVEL_DYNAMIC_VOTERS, metadata_version_name
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.whole_snapshot import whole_snapshot
from metaquorum.metadata.inspect.repair.log_copy import NodeWriter
from metaquorum.metadata.inspect.repair.salvage import Ranking, Survivor
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records.codec import encode_control
from metaquorum.metadata.records.control import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    Voter,
    VoterEndpoint,
    VotersRecord,
)
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.storage.disk.interface import join, name_of
from metaquorum.storage.files.meta_properties import MetaProperties
from metaquorum.storage.files.quorum_state import FILE_NAME as QUORUM_STATE
from metaquorum.storage.files.quorum_state import QuorumState
from metaquorum.storage.log.config import PARTITION_METADATA_FILE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.segment import parse_segment_name


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
