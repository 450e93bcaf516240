"""The folder of tables: files that never change, and one small manifest per version that names them.

OUT/_data/NAME/cluster=.../date=.../*.parquet   files of every version
OUT/_state/NAME                 what each cluster needs to continue
OUT/_versions/N-RUN.json        the manifest of a version: writing it publishes the version
OUT/_runs/RUN                   a run that is writing, or was killed

Nothing is renamed, linked, locked or overwritten, so any object store works. Names contain the run's id, so
two runs never write one object. Readers take the newest complete manifest. If two runs publish the same
version, the earlier manifest wins: the later run sees it after `settle_seconds`, removes its own and fails. A
stale listing shows readers an older version, never a part of one. Folders begin with "_": a reader of plain
Parquet folders finds nothing, instead of rows of several versions.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from metaquorum.pipeline.logs.damage import DamageRow
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.platforms import process_runs
from metaquorum.storage.errors import FileMissingError, StorageError

FORMAT = 9
READ_FROM = 5
"""The oldest format whose tables can be read. It lacks tables and columns that were added later."""
KEPT_VERSIONS = 2
"""The number of versions to keep, so that a reader of the previous one can finish."""
DATA, STATE, VERSIONS, RUNS = "_data", "_state", "_versions", "_runs"
ABANDONED_AFTER_S = 24 * 3600
"""Unpublished objects of a run on another machine are removed after this time."""
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 0x20)}
_VERSION = re.compile(rf"{VERSIONS}/(\d{{12}})-([0-9a-f]+)\.json")


FileRow = tuple[int | None, str, int, int, int, bool, str | None]
"""A row of the table `files`."""


LogLook = tuple[int, int, int]
"""End offset of a log, its bytes, and the end of its newest snapshot."""


HistoryLook = tuple[int, int, int]
"""First offset and end of a part of a history without holes, and the end of its first snapshot (-1: none,
or none is needed)."""


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file. `path` is relative to the folder of tables. `final` files stay; the others are replaced
    by the next run for their cluster."""

    table: str
    cluster: str
    date: str
    path: str
    rows: int
    final: bool


class ReportedDamage(msgspec.Struct, frozen=True):
    """A row of `damage` about a log that was not read. `log`: its path."""

    log: str
    node_id: int | None
    row: DamageRow


class ClusterEntry(msgspec.Struct, kw_only=True):
    """What is known of a cluster: where its replay continues (0: at the start) and the epoch before that, the
    same for its records, the log's end when it was read, the name of its state file, and its logs."""

    resume_offset: int = 0
    resume_epoch: int = -1
    records_offset: int = 0
    records_epoch: int = -1
    end_offset: int = 0
    last_epoch: int = -1
    state: str | None = None
    logs: dict[str, LogLook] = {}
    shared_id: str = ""
    """The cluster id in its logs. Clusters that share an id have other names."""
    covered: list[tuple[int, int]] = []
    """Offsets (first, after the last) whose records are in the tables."""
    retained: str | None = None
    """The folder with a copy of the records that the newest run read, and of some before them."""
    stored: list[str] | None = None
    """The folders with copies of all records before those. None: an earlier release kept no others."""
    runs: list[HistoryLook] = []
    """The history between its holes."""
    learned: list[int] = []
    """End offsets of the snapshots that gave a state."""
    files: list[tuple[int, FileRow]] = []
    """Rows of the table `files` with their day. Rows of deleted files stay."""
    damage: list[ReportedDamage] = []
    failure: list[str] = []
    """The files with the row of damage of a run that could not read the cluster's logs."""


class Manifest(msgspec.Struct, kw_only=True):
    """One version of the tables. `base`: the version that it was made from."""

    format: int = FORMAT
    version: int = 0
    base: int = 0
    run: str = ""
    files: list[WrittenFile] = []
    clusters: dict[str, ClusterEntry] = {}


class _Format(msgspec.Struct):
    format: int = 0


class IngestRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that writes. Its id is in the name of everything that it writes."""

    id: str
    version: int
    base: int
    host: str
    process: int
    began: float


class LayoutError(Exception):
    """The folder of the tables cannot be used. The text says what to do."""


class OtherFilesError(LayoutError):
    """The folder holds something else. `what` says what, without what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; give --out a new or empty directory")
        self.what = what


def escape(value: str) -> str:
    """A partition value as Hive and Spark write it in a folder's name."""
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in value)


def load_manifest(out: Folder | str | Path, *, oldest: int = FORMAT) -> Manifest:
    """The newest version; an empty one for a new folder. Raises LayoutError for any other folder, and for
    tables with a format before `oldest`."""
    folder = out if isinstance(out, Folder) else Folder(str(out))
    listed = _listed(folder)
    for version in sorted(listed, reverse=True):
        for name in listed[version]:
            manifest = _read(folder, name, oldest)
            if manifest is not None:
                return manifest
    strange = [name for name in folder.children() if name not in (DATA, STATE, VERSIONS, RUNS)]
    if strange:
        what = "the tables of an older release" if "versions" in strange else f"{strange[0]} and no tables"
        raise OtherFilesError(f"{folder.root} holds {what}")
    if listed:
        raise LayoutError(
            f"{folder.place(listed[max(listed)][0])} cannot be read, and no older version is there; "
            "ingest again into a new directory"
        )
    return Manifest()


def _listed(folder: Folder) -> dict[int, list[str]]:
    """Manifests by version; those of one version in the order in which they count."""
    files: dict[int, list[tuple[int, str]]] = {}
    for name, changed_ns in folder.names(VERSIONS):
        match = _VERSION.fullmatch(name)
        if match is not None:
            files.setdefault(int(match[1]), []).append((changed_ns, name))
    return {version: [name for _, name in sorted(names)] for version, names in files.items()}


def _read(folder: Folder, name: str, oldest: int = FORMAT) -> Manifest | None:
    """A manifest; None if it is incomplete or gone. Raises LayoutError for another release's."""
    try:
        data = folder.get(name)
        if oldest <= msgspec.json.decode(data, type=_Format).format <= FORMAT:
            return msgspec.json.decode(data, type=Manifest)
        layout = msgspec.json.decode(data, type=_Format).format
    except (FileMissingError, msgspec.DecodeError):
        return None
    if layout > FORMAT:
        advice = "they were written by a newer release: upgrade this one"
    else:
        advice = "ingest again into a new directory"
    raise LayoutError(f"{folder.root} has format {layout}, and this release writes {FORMAT}; {advice}")


def begin(folder: Folder, base: Manifest) -> IngestRun:
    """A run for the version after all listed ones. Removes what killed runs left."""
    version = max((base.version, *_listed(folder))) + 1
    made = IngestRun(
        id=secrets.token_hex(8),
        version=version,
        base=base.version,
        host=socket.gethostname(),
        process=os.getpid(),
        began=time.time(),
    )
    for name, _ in folder.names(RUNS):
        _bury(folder, name)
    folder.put(f"{RUNS}/{made.id}", msgspec.json.encode(made))
    return made


def _bury(folder: Folder, name: str) -> None:
    """Removes what an earlier run left, unless it still writes."""
    try:
        run = msgspec.json.decode(folder.get(name), type=IngestRun)
    except (FileMissingError, msgspec.DecodeError):
        return
    alive = process_runs(run.process) if run.host == socket.gethostname() else None
    if alive is False or (alive is None and time.time() - run.began > ABANDONED_AFTER_S):
        abandon(folder, run)


def publish(folder: Folder, run: IngestRun, manifest: Manifest) -> None:
    """Makes the manifest the newest version. Raises LayoutError if another run was earlier; then
    readers see nothing of this one."""
    rival = load_manifest(folder)
    name = f"{VERSIONS}/{run.version:012d}-{run.id}.json"
    if rival.version == run.base:
        manifest = msgspec.structs.replace(manifest, version=run.version, base=run.base, run=run.id)
        folder.put(name, msgspec.json.encode(manifest))
        time.sleep(folder.settle_seconds)
        rival = _winner(folder, run.version) or manifest
    if rival.run != run.id:
        folder.remove(name)
        raise LayoutError(
            f"another run published version {rival.version} of {folder.root} while this one ran: this run "
            "changed nothing; run it again"
        )
    folder.remove(f"{RUNS}/{run.id}")
    _forget_old(folder, manifest)


def _winner(folder: Folder, version: int) -> Manifest | None:
    found = (_read(folder, name) for name in _listed(folder).get(version, []))
    return next((manifest for manifest in found if manifest is not None), None)


def _objects(manifest: Manifest) -> set[str]:
    """Objects and state folders that a version needs."""
    states = {
        f"{STATE}/{name}"
        for entry in manifest.clusters.values()
        for name in (entry.state, entry.retained, *(entry.stored or ()))
        if name is not None
    }
    return {file.path for file in manifest.files} | states


def _forget_old(folder: Folder, newest: Manifest) -> None:
    """Removes versions before the last KEPT_VERSIONS, and what only they need."""
    versions = _listed(folder)
    kept_versions = sorted(versions, reverse=True)[:KEPT_VERSIONS]
    old = [version for version in versions if version not in kept_versions]
    kept = _objects(newest)
    for version in kept_versions:
        for name in versions[version]:
            manifest = _read(folder, name)
            kept |= _objects(manifest) if manifest is not None else set()
    for version in old:
        for name in versions[version]:
            manifest = _read(folder, name)
            _remove(folder, _objects(manifest) - kept if manifest is not None else ())
            folder.remove(name)
    if old:
        folder.sweep()


def _remove(folder: Folder, names: Iterable[str]) -> None:
    for name in names:
        if name.endswith(RETAINED_SUFFIX):
            folder.remove_folder(name)
        else:
            folder.remove(name)
            if name.endswith(STATE_SUFFIX):
                folder.remove(name + NOTES_SUFFIX)


RETAINED_SUFFIX, STATE_SUFFIX, NOTES_SUFFIX = ".retained", ".state", ".notes"
"""Suffixes of a folder of retained records, of a state, and of the damage noted before it,
which is reported at the end."""


def abandon(folder: Folder, run: IngestRun) -> None:
    """Removes what a run wrote, unless it was published."""
    try:
        manifests = [_read(folder, name) for names in _listed(folder).values() for name in names]
        needed: set[str] = set().union(
            *(_objects(manifest) for manifest in manifests if manifest is not None)
        )
        for top in (DATA, STATE):
            for name, _ in folder.names(top, deep=True):
                inside = "/".join(name.split("/")[:2])
                if run.id in name and not {name, inside, name.removesuffix(NOTES_SUFFIX)} & needed:
                    _remove(folder, [inside if inside.endswith(RETAINED_SUFFIX) else name])
        folder.remove(f"{RUNS}/{run.id}")
        folder.sweep()
    except StorageError:
        return  # the next run tries again
