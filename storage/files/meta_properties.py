"""`meta.properties`: the identity of a directory (cluster, node, and the directory's own id).

Source: KIP-631, KIP-858 (directory.id), Kafka's `MetaProperties`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random

import javaproperties
import msgspec

from metaquorum.storage.disk.interface import Disk, join, read_file, write_atomically
from metaquorum.storage.errors import CorruptFileError, FileMissingError, StorageError
from metaquorum.storage.uuids import is_reserved_directory, random_uuid, uuid_from_text, uuid_to_text

FILE_NAME = "meta.properties"
_FORMAT = "run `metaquorum storage format` for this directory first"
_RESTORE = (
    "restore it from a backup, or correct it by hand: everything except directory.id is the same as in "
    "the node's other directories"
)


class MetaProperties(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of one directory. `directory_id` is 16 bytes, or None if an older release wrote none.

    `cluster_id` and `node_id` may be None in version 0 only. `version` is the version that was read.
    """

    cluster_id: str | None
    node_id: int | None
    directory_id: bytes | None = None
    version: int = 1

    def encode(self) -> bytes:
        """Version 1 in Kafka's form: an empty comment, then key=value lines."""
        if self.cluster_id is None or self.node_id is None:
            raise ValueError("meta.properties version 1 needs a cluster id and a node id; give both")
        properties = {"node.id": str(self.node_id)}
        if self.directory_id is not None:
            properties["directory.id"] = uuid_to_text(self.directory_id)
        properties["version"] = "1"
        properties["cluster.id"] = self.cluster_id
        text: str = javaproperties.dumps(properties, comments="", timestamp=False)
        return text.encode("latin-1")

    @staticmethod
    def decode(data: bytes, file: str = FILE_NAME) -> MetaProperties:
        """Version 0 or 1. Raises CorruptFileError with the line that is missing or wrong."""
        try:
            properties: dict[str, str] = javaproperties.loads(data.decode("latin-1"))
        except ValueError as error:
            raise CorruptFileError(file, f"is not a properties file ({error})", _RESTORE) from None
        version = properties.get("version", "").strip()
        match version:
            case "0":
                return _decode_v0(properties, file)
            case "1":
                return _decode_v1(properties, file)
            case "" if "broker.id" in properties:
                return _decode_v0(properties, file)  # as in Kafka: no version line means version 0
            case "":
                raise CorruptFileError(file, "has no version line", _RESTORE)
            case _:
                raise CorruptFileError(
                    file,
                    f"has version {version}, this release reads 0 and 1",
                    "start the release that wrote it",
                )


def _decode_v0(properties: dict[str, str], file: str) -> MetaProperties:
    broker_id = properties.get("broker.id", "").strip()
    return MetaProperties(
        cluster_id=properties.get("cluster.id", "").strip() or None,
        node_id=_node_id("broker.id", broker_id, file) if broker_id else None,
        directory_id=_directory_id(properties, file),
        version=0,
    )


def _decode_v1(properties: dict[str, str], file: str) -> MetaProperties:
    cluster_id = properties.get("cluster.id", "").strip()
    node_id = properties.get("node.id", "").strip()
    for name, value in (("cluster.id", cluster_id), ("node.id", node_id)):
        if not value:
            raise CorruptFileError(file, f"has no {name} line", _RESTORE)
    return MetaProperties(
        cluster_id=cluster_id,
        node_id=_node_id("node.id", node_id, file),
        directory_id=_directory_id(properties, file),
    )


def _node_id(name: str, text: str, file: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > 0x7FFFFFFF:
        raise CorruptFileError(
            file, f"has {name}={text}, which is not an id from 0 to {2147483647}", _RESTORE
        )
    return int(text)


def _directory_id(properties: dict[str, str], file: str) -> bytes | None:
    text = properties.get("directory.id", "").strip()
    if not text:
        return None
    try:
        value = uuid_from_text(text)
    except ValueError as error:
        raise CorruptFileError(file, f"has an invalid directory.id ({error})", _RESTORE) from None
    if is_reserved_directory(value):
        raise CorruptFileError(file, f"has directory.id={text}, which is reserved", _RESTORE)
    return value


def cluster_id_problem(text: str) -> str | None:
    """Why no cluster can have this id; None if one can. Kafka takes any text: a uuid is what it draws."""
    if not text or text != text.strip() or not text.isprintable():
        return f"{text!r} is not a cluster id: give visible characters, without blanks around them"
    with suppress(ValueError):
        if is_reserved_directory(uuid_from_text(text)):
            return f"the id {text} is reserved"
    return None


def is_drawn_cluster_id(text: str) -> bool:
    """Whether the id is a uuid, as every tool that draws one writes it."""
    with suppress(ValueError):
        return uuid_to_text(uuid_from_text(text)) == text
    return False


def load_meta_properties(disk: Disk, directory: str) -> MetaProperties:
    """The identity of `directory`. Raises CorruptFileError if the file is missing or garbled, DiskError."""
    path = join(directory, FILE_NAME)
    try:
        return MetaProperties.decode(read_file(disk, path), path)
    except FileMissingError:
        raise CorruptFileError(path, "does not exist", _FORMAT) from None


def readable_meta_properties(disk: Disk, directory: str) -> tuple[MetaProperties, str | None]:
    """The readable part of a directory's identity, and what is wrong with it or None. For tools that
    continue in spite of it: a node must not. Raises FileMissingError, DiskError."""
    path = join(directory, FILE_NAME)
    data = read_file(disk, path)
    try:
        return MetaProperties.decode(data, path), None
    except CorruptFileError as error:
        problem = f"{path} {error.reason}"
    try:
        properties: dict[str, str] = javaproperties.loads(data.decode("latin-1"))
    except ValueError:
        properties = {}
    node_id = directory_id = None
    with suppress(CorruptFileError):
        node_id = _node_id("node.id", properties.get("node.id", "").strip(), path)
    with suppress(CorruptFileError):
        directory_id = _directory_id(properties, path)
    cluster_id = properties.get("cluster.id", "").strip() or None
    return MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id), problem


def store_meta_properties(disk: Disk, directory: str, properties: MetaProperties) -> None:
    """Durable on return. Raises DiskError."""
    write_atomically(disk, join(directory, FILE_NAME), properties.encode())


# Ids for log directories that were formatted before Kafka 3.7 and have none (KIP-858).
# Other problems of a directory are reported where it is opened.


def add_missing_ids(
    disk: Disk, own: MetaProperties, paths: Iterable[str], rng: Random, report: Callable[[str], None]
) -> None:
    """Writes an id drawn from `rng` into each directory of the node and cluster of `own` that has none.
    Does not change a directory that belongs to another node or cluster, is in use, or cannot be read or
    written."""
    for path in paths:
        identity = identity_of(disk, path)
        if identity is None or identity.directory_id is not None:
            continue
        if (identity.node_id, identity.cluster_id) == (own.node_id, own.cluster_id):
            report(_add(disk, path, identity, random_uuid(rng)))


def identity_of(disk: Disk, path: str) -> MetaProperties | None:
    """The contents of meta.properties; None if it cannot be read."""
    try:
        return load_meta_properties(disk, path)
    except StorageError:
        return None


def _add(disk: Disk, path: str, properties: MetaProperties, new_id: bytes) -> str:
    try:
        lock = disk.lock(path)
        try:
            store_meta_properties(
                disk,
                path,
                MetaProperties(
                    cluster_id=properties.cluster_id, node_id=properties.node_id, directory_id=new_id
                ),
            )
        finally:
            lock.release()
    except StorageError as error:
        return f"{path} has no directory.id, and it cannot be written: {error}"
    return f"{path} was formatted without a directory.id; it is now {uuid_to_text(new_id)}"


# The `metadata-log-opened` file: this directory's metadata log has been opened by a node that may vote.
# It is beside `meta.properties`, not in the log's directory, so that it survives when that is deleted: a
# voter that comes back without its log has forgotten its votes and what it acknowledged, and nothing else
# says so. The file, which names the directory by its id: a directory that is formatted again is another
# one. Kafka ignores the file.

OPENED_LOG_FILE = "metadata-log-opened"
_OPENED_LOG_VERSION = 0


def was_opened(disk: Disk, directory: str, directory_id: bytes) -> bool:
    """Whether the log of the directory with this id was opened. A file that cannot be read says that it was:
    only damage or another release can have changed it. Raises DiskError."""
    try:
        fields = json.loads(read_file(disk, join(directory, OPENED_LOG_FILE)))
    except FileMissingError:
        return False
    except ValueError:
        return True
    if not isinstance(fields, dict) or fields.get("version") != _OPENED_LOG_VERSION:
        return True
    return fields.get("directory.id") == uuid_to_text(directory_id)


def note_opened(disk: Disk, directory: str, directory_id: bytes) -> None:
    """Durable on return; the caller has made the log's directory durable before. Raises DiskError."""
    content = json.dumps(
        {"version": _OPENED_LOG_VERSION, "directory.id": uuid_to_text(directory_id)}
    ).encode()
    path = join(directory, OPENED_LOG_FILE)
    if disk.exists(path) and read_file(disk, path) == content:
        return
    write_atomically(disk, path, content)
