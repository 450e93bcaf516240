"""State that is kept between two runs for one cluster's log: the image as a snapshot, and open values.

The bytes: MessagePack, with a version at the start. If a state cannot be read, the log is read from its start
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.errors import RecordDecodeError, RecordEncodeError, ReplayError
from metaquorum.metadata.features import METADATA_VERSION_NAMES
from metaquorum.metadata.image import ImageBuilder, MetadataImage, images_equal
from metaquorum.metadata.secrets import REDACTED, is_secret_setting
from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
from metaquorum.storage.errors import StorageError
from metaquorum.storage.types import LogPosition

VERSION = 10


class StateError(Exception):
    """The saved state cannot be used. The text says why."""


class SavedState(msgspec.Struct, kw_only=True):
    """Everything below `offset` was replayed. `epoch`: of the record before it (-1: none). `last_offset`: the
    first offset of the last batch."""

    version: int = VERSION
    offset: int
    last_offset: int
    epoch: int
    image: bytes
    finalized: dict[str, int]
    """Feature levels. The snapshot has the newest metadata.version instead, which
    can represent everything."""
    trackers: dict[str, Any]


def encode_image(image: MetadataImage) -> bytes:
    """The image as a snapshot, without secrets, after reading it back as a proof. Raises
    StateError if that fails."""
    image = without_secrets(image)
    level = max(METADATA_VERSION_NAMES)
    try:
        data = b"".join(snapshot_batches(image, position=_position(image), metadata_version=level))
        if not images_equal(
            image, decode_image(data, _position(image), image.features.finalized), provenance=False
        ):
            raise StateError("the image does not match its snapshot")
    except (RecordDecodeError, RecordEncodeError, ReplayError, StorageError) as error:
        raise StateError(str(error)) from error
    return data


def without_secrets(image: MetadataImage) -> MetadataImage:
    """The image with zeros and `(redacted)` instead of secrets: no table has them, and readers of
    tables need not know them."""
    builder = ImageBuilder(image)
    for key, credential in image.scram.items_sorted():
        hidden = {
            name: bytes(len(getattr(credential, name))) for name in ("salt", "stored_key", "server_key")
        }
        builder.scram.put(key, replace(credential, **hidden))
    for resource, values in image.configs.items_sorted():
        if any(map(is_secret_setting, values)):
            shown = {name: REDACTED if is_secret_setting(name) else values[name] for name in values}
            builder.configs.put(resource, shown)
    return builder.freeze()


def decode_image(data: bytes, position: LogPosition, finalized: Mapping[str, int]) -> MetadataImage:
    """The image from the bytes of `encode_image`, with its own feature levels. Raises StateError."""
    try:
        image = load_snapshot([data], position=position)
    except (RecordDecodeError, ReplayError, StorageError) as error:
        raise StateError(f"the saved image cannot be read: {error}") from error
    return replace(image, features=replace(image.features, finalized=dict(finalized)))


def _position(image: MetadataImage) -> LogPosition:
    return LogPosition(max(image.provenance.epoch, 0), image.provenance.offset)


def saved_bytes(image: MetadataImage, last_offset: int, trackers: dict[str, Any]) -> bytes:
    """The state of a replay that reached `image`, with open values. Raises
    StateError if it cannot be saved."""
    provenance = image.provenance
    return msgspec.msgpack.encode(
        SavedState(
            offset=provenance.offset,
            last_offset=last_offset,
            epoch=provenance.epoch,
            image=encode_image(image),
            finalized=dict(image.features.finalized),
            trackers=trackers,
        )
    )


def decode_state(data: bytes) -> SavedState:
    """Raises StateError for bytes that are not a state of this version."""
    try:
        state = msgspec.msgpack.decode(data, type=SavedState)
    except msgspec.DecodeError as error:
        raise StateError(f"the saved state cannot be read: {error}") from error
    if state.version != VERSION:
        raise StateError(f"the saved state has version {state.version}, and this release reads {VERSION}")
    return state
