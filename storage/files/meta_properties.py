"""`meta.properties`: the identity of a directory (cluster, node, and the directory's own id).

Owns reading versions 0 and 1 and writing version 1. Does not know the configuration, with which callers
compare it, and adds no missing id: `directory_ids` does. Source: KIP-631, KIP-858 (directory.id), Kafka's
`MetaProperties`.
"""

from __future__ import annotations

from contextlib import suppress

import javaproperties
import msgspec

from metaquorum.storage.disk.interface import Disk, join, read_file, write_atomically
from metaquorum.storage.errors import CorruptFileError, FileMissingError
from metaquorum.storage.uuids import is_reserved_directory, uuid_from_text, uuid_to_text

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
