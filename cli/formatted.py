"""Reads what a directory was formatted as: its cluster and node.

Formatting loads the codec of records, which this module must not import.
"""

from __future__ import annotations

from pathlib import Path

from metaquorum.storage.disk.interface import join
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import CorruptFileError, FileMissingError
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.meta_properties import MetaProperties, load_meta_properties


def existing_cluster_id(directory: Path) -> str | None:
    """The cluster id of a directory, None if it has no identity. Raises CorruptFileError."""
    try:
        if not (directory / META_PROPERTIES).exists():
            return None
        return load_meta_properties(PosixDisk(), str(directory)).cluster_id
    except FileMissingError:
        return None


def identity_of(directory: str) -> tuple[str, MetaProperties | None, str | None]:
    """(directory, identity or None, problem or None). A bad directory raises nothing."""
    disk = PosixDisk()
    if not disk.is_directory(directory):
        return directory, None, "is a file" if disk.exists(directory) else "does not exist"
    try:
        return directory, load_meta_properties(disk, directory), None
    except CorruptFileError as error:
        if not disk.exists(join(directory, META_PROPERTIES)):
            return directory, None, "is not formatted"
        return directory, None, error.reason
