"""Formats a node's directories. Nothing is written if one of them may not be formatted.

If the voters are dynamic, the metadata directory also gets the checkpoint with the first voter set.
"""

from __future__ import annotations

import base64
import binascii
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.metadata.errors import UnsupportedVersionError
from metaquorum.metadata.features import (
    DEFAULT_METADATA_VERSION,
    LEVEL_DYNAMIC_VOTERS,
    METADATA_VERSION,
    METADATA_VERSION_NAMES,
    MIN_FINALIZED_METADATA_VERSION,
    metadata_version_name,
    needed_metadata_version,
    record_version_for,
    release_levels,
)
from metaquorum.metadata.records.control import Voter
from metaquorum.metadata.records.types import UserScramCredentialRecord
from metaquorum.metadata.settings.scram import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_BYTES,
    Mechanism,
    credential_record,
    salted_password,
)
from metaquorum.node.formatted import bootstrap_checkpoint, write_formatted
from metaquorum.storage.disk.interface import join
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.meta_properties import (
    MetaProperties,
    cluster_id_problem,
    load_meta_properties,
)
from metaquorum.storage.files.snapshots import (
    BOOTSTRAP_FILE,
    BOOTSTRAP_SNAPSHOT,
    snapshot_name,
)
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.uuids import is_reserved_directory, random_uuid, uuid_from_text

DEFAULT_RELEASE = metadata_version_name(DEFAULT_METADATA_VERSION)
DYNAMIC_RELEASE = metadata_version_name(LEVEL_DYNAMIC_VOTERS)
"""The default release of a cluster with dynamic voters."""


def level_of_release(name: str) -> int:
    """The metadata.version level of a release: its exact name (3.7-IV4), or its number (3.7) for its last
    level.

    The lowest is 3.3-IV0: before it, no record held the level. Raises ValueError, which lists the names.
    """
    levels = {
        each: level
        for level, each in METADATA_VERSION_NAMES.items()
        if level >= MIN_FINALIZED_METADATA_VERSION
    }
    within = [level for each, level in levels.items() if each == name or each.startswith(name + "-")]
    if not name or not within:
        raise ValueError(f"{name!r} is not a release for a new cluster; choose one of {', '.join(levels)}")
    return max(within)


# Left by an interrupted format, or in every new file system.
_HARMLESS = frozenset(
    {BOOTSTRAP_FILE, BOOTSTRAP_FILE + ".tmp", META_PROPERTIES + ".tmp", "lost+found", ".lock"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatPlan:
    """What to write. `directory_ids`: one per directory, as text; None: random. `voters`: the first voter set
    (empty: static voters, or another node's set), written to the directory at `metadata_index`, which gets
    this node's directory id of the set. `scram`: the first credentials as typed, with passwords."""

    directories: tuple[str, ...]
    cluster_id: str
    node_id: int
    directory_ids: tuple[str, ...] | None = None
    release: str = DEFAULT_RELEASE
    features: Mapping[str, int] = field(default_factory=dict)
    ignore_formatted: bool = False
    voters: tuple[Voter, ...] = ()
    scram: tuple[str, ...] = field(default=(), repr=False)
    metadata_index: int = 0


class FormatResult(msgspec.Struct, frozen=True, kw_only=True):
    """One directory afterwards. `written`: False if it was already formatted. `voters`: the ids of the
    voter set that was written."""

    directory: str
    directory_id: bytes | None
    written: bool
    voters: tuple[int, ...] = ()


def apply_plan(plan: FormatPlan) -> list[FormatResult]:
    """Formats every directory of the plan. Raises Failure, then without touching any."""
    _check(plan)
    level = level_of_release(plan.release)
    features = {METADATA_VERSION: level, **release_levels(level), **plan.features}
    credentials = first_credentials(plan.scram, features[METADATA_VERSION])
    bootstrap = bootstrap_checkpoint(features, _now_ms(), credentials)
    found = [_identity_to_keep(plan, directory) for directory in plan.directories]
    results = []
    for number, (directory, present, directory_id) in enumerate(
        zip(plan.directories, found, _directory_ids(plan), strict=True)
    ):
        if present is not None:
            results.append(
                FormatResult(directory=directory, directory_id=present.directory_id, written=False)
            )
            continue
        voters = plan.voters if number == plan.metadata_index else ()
        identity = MetaProperties(cluster_id=plan.cluster_id, node_id=plan.node_id, directory_id=directory_id)
        write_formatted(PosixDisk(), directory, identity, bootstrap, voters, timestamp_ms=_now_ms())
        ids = tuple(voter.voter_id for voter in voters)
        results.append(FormatResult(directory=directory, directory_id=directory_id, written=True, voters=ids))
    return results


def _directory_ids(plan: FormatPlan) -> list[bytes]:
    rng = random.SystemRandom()
    given = [uuid_from_text(text) for text in plan.directory_ids or ()]
    ids = given or [random_uuid(rng) for _ in plan.directories]
    for voter in plan.voters:
        if voter.voter_id == plan.node_id:
            ids[plan.metadata_index] = voter.voter_directory_id
    return ids


def _check(plan: FormatPlan) -> None:
    """Refuses what can be refused without reading a disk."""
    if not plan.directories:
        raise Failure("no directory to format; give --directory, or log.dirs in the configuration")
    if len({Path(one).absolute() for one in plan.directories}) != len(plan.directories):
        raise Failure("a directory is listed twice; list each one once")
    try:
        problem = cluster_id_problem(plan.cluster_id)
        if problem is not None:
            raise ValueError(problem)
        for text in plan.directory_ids or ():
            if is_reserved_directory(uuid_from_text(text)):
                raise ValueError(f"{text} is reserved")
        level = level_of_release(plan.release)
    except ValueError as error:
        raise Failure(
            f"{error}; make an id with: metaquorum storage random-uuid" if "id" in str(error) else str(error)
        ) from error
    for name, wanted in plan.features.items():
        needed = needed_metadata_version(name, wanted)
        if level < needed:
            raise Failure(
                f"--feature {name}={wanted} needs metadata.version {metadata_version_name(needed)};"
                f" give --release-version {metadata_version_name(needed)} or a later one"
            )
    if plan.node_id < 0:
        raise Failure(f"node id {plan.node_id} is negative; give 0 or more")


def _identity_to_keep(plan: FormatPlan, directory: str) -> MetaProperties | None:
    """The identity of a directory that is already formatted and may stay so; None: it may be written."""
    disk = PosixDisk()
    if not disk.exists(directory):
        return None
    if not disk.is_directory(directory):
        raise Failure(f"{directory} is a file; give a directory")
    if disk.exists(join(directory, META_PROPERTIES)):
        present = load_meta_properties(disk, directory)
        if present.cluster_id != plan.cluster_id:
            raise Failure(
                f"{directory} belongs to cluster {present.cluster_id}, not {plan.cluster_id}; give another "
                "directory, or empty this one if it is no longer needed"
            )
        if present.node_id != plan.node_id:
            raise Failure(
                f"{directory} belongs to node {present.node_id}, not {plan.node_id}; give another directory"
            )
        if not plan.ignore_formatted:
            raise Failure(f"{directory} is already formatted; use --ignore-formatted to leave it unchanged")
        return present
    others = [
        name
        for name in disk.list_directory(directory)
        if name not in _HARMLESS and not _is_unfinished_log(disk, directory, name)
    ]
    if others:
        raise Failure(
            f"{directory} has no {META_PROPERTIES} but is not empty (it contains {others[0]}); move that "
            "away or give another directory"
        )
    return None


def _is_unfinished_log(disk: PosixDisk, directory: str, name: str) -> bool:
    """Whether an interrupted format left it: a log directory with only the first checkpoint in it."""
    path = join(directory, name)
    if name != METADATA_DIRECTORY or not disk.is_directory(path):
        return False
    first = snapshot_name(BOOTSTRAP_SNAPSHOT)
    return all(found.startswith(first) for found in disk.list_directory(path))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


OPTION = "--add-scram"
_FORM = "write SCRAM-SHA-256=[name=NAME,password=PASSWORD]"
_NAME, _SALT, _ITERATIONS, _PASSWORD, _SALTED = _KEYS = (
    *("name", "salt", "iterations", "password"),
    "saltedpassword",
)
_MECHANISMS = {each.title: each for each in Mechanism}


def first_credentials(texts: Sequence[str], level: int) -> tuple[UserScramCredentialRecord, ...]:
    """The records of all `--add-scram`, for a cluster at metadata.version `level`. Raises Failure."""
    if texts:
        try:
            record_version_for(UserScramCredentialRecord, level)
        except UnsupportedVersionError as error:
            raise Failure(
                f"{OPTION} needs metadata.version 3.5-IV2 or later, not {metadata_version_name(level)};"
                " give another --release-version"
            ) from error
    records = tuple(_record(text) for text in texts)
    named = [(record.name, record.mechanism) for record in records]
    twice = next((each for each in named if named.count(each) > 1), None)
    if twice is not None:
        raise Failure(f"{OPTION} gives {Mechanism(twice[1]).title} of user {twice[0]!r} twice")
    return records


def _record(text: str) -> UserScramCredentialRecord:
    title, equals, rest = text.strip().partition("=")
    if not equals:
        raise Failure(f"{OPTION} has no '='; {_FORM}")
    mechanism = _MECHANISMS.get(title)
    if mechanism is None:
        raise Failure(f"{OPTION} does not begin with {' or '.join(_MECHANISMS)} and '='; {_FORM}")
    if not (rest.startswith("[") and rest.endswith("]") and len(rest) > 1):
        raise Failure(f"{OPTION} {title} has no [ and ] around its values; {_FORM}")
    values = _values(title, rest[1:-1])
    iterations = _number(title, values)
    salt = _decoded(title, values, _SALT) if _SALT in values else secrets.token_bytes(SALT_BYTES)
    if _SALTED in values:
        salted = _decoded(title, values, _SALTED)
    else:
        salted = salted_password(mechanism, values[_PASSWORD], salt, iterations)
    return credential_record(values[_NAME], mechanism, salted, salt, iterations)


def _values(title: str, text: str) -> dict[str, str]:
    """The values by key, with all required keys."""
    values: dict[str, str] = {}
    for number, part in enumerate(text.split(","), start=1):
        key, equals, value = part.partition("=")
        if not equals or key not in _KEYS:
            raise Failure(
                f"{OPTION} {title}: part {number} is not KEY=VALUE with a key of {', '.join(_KEYS)} (values"
                " have no commas)"
            )
        if key in values:
            raise Failure(f"{OPTION} {title}: {key} is given twice")
        if len(value) > 1 and value.startswith('"') and value.endswith('"'):
            value = value[1:-1]
        if not value:
            raise Failure(f"{OPTION} {title}: {key} is empty")
        values[key] = value
    if _NAME not in values:
        raise Failure(f"{OPTION} {title}: there is no {_NAME}")
    if (_PASSWORD in values) == (_SALTED in values):
        raise Failure(f"{OPTION} {title}: give one of {_PASSWORD} and {_SALTED}")
    if _SALTED in values and _SALT not in values:
        raise Failure(f"{OPTION} {title}: {_SALTED} needs the {_SALT} that it was derived with")
    return values


def _number(title: str, values: dict[str, str]) -> int:
    text = values.get(_ITERATIONS, str(DEFAULT_ITERATIONS))
    if not (text.isascii() and text.isdigit()):
        raise Failure(f"{OPTION} {title}: {_ITERATIONS} is not a number")
    if len(text) > len(str(MAX_ITERATIONS)) or not MIN_ITERATIONS <= int(text) <= MAX_ITERATIONS:
        raise Failure(f"{OPTION} {title}: {_ITERATIONS} is not from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return int(text)


def _decoded(title: str, values: dict[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(values[key], validate=True)
    except (ValueError, binascii.Error):
        raise Failure(f"{OPTION} {title}: {key} is not base64") from None
