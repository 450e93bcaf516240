"""A formatted directory: `meta.properties` v1 and `bootstrap.checkpoint`, as Kafka 3.7 writes them.

The identity is written last, so that a crash in between leaves an unformatted directory. Sources: KIP-631,
KIP-778 (bootstrap.checkpoint), KIP-858 (directory.id), KIP-853 (the first voter set), Kafka's StorageTool and
BootstrapDirectory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metaquorum.metadata.features import KRAFT_VERSION, METADATA_VERSION
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import (
    ControlRecord,
    KRaftVersionFeature,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    Voter,
    VoterEndpoint,
    VotersRecord,
)
from metaquorum.metadata.records.types import FeatureLevelRecord, UserScramCredentialRecord
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import Disk, join, make_durable_directory, write_atomically
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.files.snapshots import BOOTSTRAP_FILE, BOOTSTRAP_SNAPSHOT, SnapshotWriter
from metaquorum.storage.log.config import METADATA_DIRECTORY

SUPPORTED_KRAFT_VERSIONS = KRaftVersionFeature(min_supported_version=0, max_supported_version=1)


def write_formatted(
    disk: Disk,
    directory: str,
    identity: MetaProperties,
    bootstrap: bytes,
    voters: tuple[Voter, ...],
    *,
    timestamp_ms: int,
) -> None:
    """Formats one directory. `voters`: the first voter set; empty: another directory has it, or the
    configuration."""
    make_durable_directory(disk, directory)
    write_atomically(disk, join(directory, BOOTSTRAP_FILE), bootstrap)
    if voters:
        log_directory = join(directory, METADATA_DIRECTORY)
        disk.make_directory(log_directory)
        writer = SnapshotWriter(disk, log_directory, BOOTSTRAP_SNAPSHOT)
        writer.append(first_checkpoint(voters, timestamp_ms=timestamp_ms))
        writer.freeze()
    store_meta_properties(disk, directory, identity)


def new_voter(node_id: int, host: str, directory_id: bytes, listeners: Sequence[tuple[str, int]]) -> Voter:
    """A voter of this release, as VotersRecord has it. `listeners`: names and ports."""
    return Voter(
        voter_id=node_id,
        voter_directory_id=directory_id,
        # Kafka writes listener names in upper case.
        endpoints=tuple(VoterEndpoint(name=name.upper(), host=host, port=port) for name, port in listeners),
        kraft_version_feature=SUPPORTED_KRAFT_VERSIONS,
    )


def bootstrap_checkpoint(
    features: Mapping[str, int], timestamp_ms: int, credentials: Sequence[UserScramCredentialRecord] = ()
) -> bytes:
    """The bytes of `bootstrap.checkpoint`: header, one FeatureLevelRecord per feature, the credentials,
    footer.

    Leader epoch 0 and offsets from 0, as Kafka's BatchFileWriter writes them. Level 0 means that a feature is
    disabled; it is not written. kraft.version has a record of its own, beside the voter set.
    """
    ordered = sorted(features.items(), key=lambda item: (item[0] != METADATA_VERSION, item[0]))
    values = [
        encode(FeatureLevelRecord(name, level), 0)
        for name, level in ordered
        if level > 0 and name != KRAFT_VERSION
    ]
    values += [encode(record, 0) for record in credentials]
    header_key, header_value = encode_control(SnapshotHeaderRecord(last_contained_log_timestamp=0))
    footer_key, footer_value = encode_control(SnapshotFooterRecord())
    return b"".join(
        (
            _batch(0, timestamp_ms, [header_value], [header_key]),
            _batch(1, timestamp_ms, values, None),
            _batch(1 + len(values), timestamp_ms, [footer_value], [footer_key]),
        )
    )


def _batch(base_offset: int, timestamp_ms: int, values: list[bytes], keys: list[bytes] | None) -> bytes:
    return encode_batch(
        base_offset=base_offset,
        leader_epoch=0,
        timestamp_ms=timestamp_ms,
        values=values,
        keys=keys,
        is_control=keys is not None,
    )


# The checkpoint of dynamic voters (KIP-853). Not written with `metadata.snapshot`: to load the image takes
# longer than to format a directory.


def first_checkpoint(voters: Sequence[Voter], *, timestamp_ms: int) -> bytes:
    """The bytes of a checkpoint with kraft.version 1 and the first voter set.

    It ends at BOOTSTRAP_SNAPSHOT, before the log's first record. `timestamp_ms` is the time of writing, also
    in its header. Source: KIP-853, Kafka's `Formatter` and `RecordsSnapshotWriter`.
    """
    head = (
        SnapshotHeaderRecord(timestamp_ms),
        KRaftVersionRecord(kraft_version=1),
        VotersRecord(voters=tuple(voters)),
    )
    return _checkpoint_batch(head, 0, timestamp_ms) + _checkpoint_batch(
        (SnapshotFooterRecord(),), len(head), timestamp_ms
    )


def _checkpoint_batch(records: Sequence[ControlRecord], base_offset: int, timestamp_ms: int) -> bytes:
    keys, values = zip(*map(encode_control, records), strict=True)
    return encode_batch(
        base_offset=base_offset,
        leader_epoch=BOOTSTRAP_SNAPSHOT.epoch,
        timestamp_ms=timestamp_ms,
        values=list(values),
        keys=list(keys),
        is_control=True,
    )
