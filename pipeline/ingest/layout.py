"""The folder of tables: versions, the names that lead to the current one, and the manifest of each.

OUT/NAME                    a link to current/NAME: what readers open
OUT/current                 a link to the current version; replacing it is what publishes
OUT/versions/N/NAME/cluster=.../date=.../*.parquet    files; versions share them by hard links
OUT/versions/N/_state/      manifest.json, and what is kept of each cluster to continue from
OUT/versions/.staging-N/    what a run is writing

Owns these names and the step from staging to published. Knows no Spark.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from metaquorum.pipeline.logs.damage import DamageRow
from metaquorum.pipeline.tables import TABLES

FORMAT = 4
KEPT_VERSIONS = 2
"""The number of versions that are kept, so that a reader that opened the one before can finish."""
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 0x20)}


FileRow = tuple[int | None, str, int, int, int, bool, str | None]
"""A row of the table `files`."""


LogLook = tuple[int, int, int]
"""What a log looked like: end offset, bytes, end of the newest snapshot."""


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file; `path` is relative to the version's folder. `final` files stay for good, the others are
    replaced by the next run over their cluster."""

    table: str
    cluster: str
    date: str
    path: str
    rows: int
    final: bool


class ToldDamage(msgspec.Struct, frozen=True):
    """A row of `damage` about a log that was not read: `log` is its path."""

    log: str
    node_id: int | None
    row: DamageRow


class ClusterEntry(msgspec.Struct, kw_only=True):
    """What is known of a cluster: where its replay goes on (0: at the beginning) and the epoch before that,
    the same for its records, the log's end when it was read, the name of its state file, and what its logs
    looked like."""

    resume_offset: int = 0
    resume_epoch: int = -1
    records_offset: int = 0
    records_epoch: int = -1
    end_offset: int = 0
    last_epoch: int = -1
    state: str | None = None
    logs: dict[str, LogLook] = {}
    shared_id: str = ""
    """The cluster id that its logs have; its name is another where clusters share one."""
    covered: list[tuple[int, int]] = []
    """Offsets (first, after the last) whose records are in the tables."""
    retained: str | None = None
    """The folder with a copy of the records that the next run tells again."""
    files: list[tuple[int, FileRow]] = []
    """Rows of the table `files` with their day: those of files that are deleted stay."""
    damage: list[ToldDamage] = []


class Manifest(msgspec.Struct, kw_only=True):
    """One version of the tables."""

    format: int = FORMAT
    version: int = 0
    files: list[WrittenFile] = []
    clusters: dict[str, ClusterEntry] = {}


class LayoutError(Exception):
    """The output folder cannot be used; the text says what to do."""


def escape(value: str) -> str:
    """A partition value as Hive and Spark write it in a folder's name."""
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in value)


def load_manifest(out: Path) -> Manifest:
    """The current version; an empty one for a new folder. Raises LayoutError for any other folder."""
    link = out / "current"
    file = link / "_state" / "manifest.json"
    if not link.is_symlink():
        strange = sorted(at.name for at in out.iterdir() if at.name != "versions") if out.is_dir() else []
        if strange:
            raise LayoutError(
                f"{out} holds {strange[0]} and no pipeline tables; give --out a new or empty directory"
            )
        return Manifest()
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise LayoutError(
            f"{file} cannot be read ({error}); give --out a new directory and ingest again"
        ) from error
    if manifest.format != FORMAT:
        raise LayoutError(
            f"{out} has format {manifest.format}, and this release writes {FORMAT}; give --out a new "
            "directory"
        )
    return manifest


def begin(out: Path, version: int) -> Path:
    """An empty staging folder for a version; what killed runs left is removed."""
    versions = out / "versions"
    versions.mkdir(parents=True, exist_ok=True)
    current = (out / "current").resolve().name if (out / "current").is_symlink() else None
    for found in versions.iterdir():
        unpublished = found.name.isdigit() and found.name != current and int(found.name) >= version
        if unpublished or found.name.startswith(".staging-"):
            shutil.rmtree(found)
    staging = versions / f".staging-{version}"
    (staging / "_state").mkdir(parents=True)
    return staging


def publish(out: Path, staging: Path, manifest: Manifest, kept: list[WrittenFile]) -> Path:
    """Makes the staged files and the `kept` ones of the current version the new current version."""
    before = (out / "current").resolve() if (out / "current").is_symlink() else None
    for file in kept:
        if before is None:
            raise LayoutError(f"{out} has no version to keep {file.path} of")
        target = staging / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(before / file.path, target)
    for name in TABLES:
        (staging / name).mkdir(exist_ok=True)
    (staging / "_state" / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    final = staging.parent / str(manifest.version)
    staging.rename(final)
    _point(out / "current", Path("versions") / final.name)
    for name in TABLES:
        if not (out / name).is_symlink():
            _point(out / name, Path("current") / name)
    _forget_old(out, manifest.version)
    return final


def _point(link: Path, target: Path) -> None:
    """Makes `link` lead to `target` in one step."""
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def _forget_old(out: Path, current: int) -> None:
    for found in (out / "versions").iterdir():
        if found.name.isdigit() and int(found.name) <= current - KEPT_VERSIONS:
            shutil.rmtree(found)


def abandon(staging: Path) -> None:
    """Removes what a failed run wrote."""
    shutil.rmtree(staging, ignore_errors=True)
