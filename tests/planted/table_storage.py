"""Mistakes in the storage: syncs, renames, recovery, truncation."""

from __future__ import annotations

from tests.planted.bug import Bug

UNIT = "tests/unit/storage"
CRASH = "tests/properties/test_storage_crash.py"
SIM = "sim 0..40"

STORAGE_BUGS = (
    Bug(
        name="log-not-synced",
        breaks="what a sync has reported is on the disk",
        source="DESIGN: crash safety of the log",
        file="storage/log/log.py",
        old="ticket.segment.file.sync()",
        new="pass",
        caught_by=(CRASH, SIM),
    ),
    Bug(
        name="full-segment-not-synced-at-a-roll",
        breaks="a segment is durable before the next one gets its first byte",
        source="DESIGN: crash safety of the log",
        file="storage/log/log.py",
        old="self._segments[-1].file.sync()",
        new="pass",
        caught_by=(CRASH,),
    ),
    Bug(
        name="sync-of-a-log-that-was-cut-counts",
        breaks="a sync that began before a cut says nothing about the log after it",
        source="DESIGN: crash safety of the log",
        file="storage/log/log.py",
        old="if ticket.generation == self.generation:",
        new="if ticket.generation <= self.generation:",
        caught_by=(UNIT,),
    ),
    Bug(
        name="truncation-not-synced",
        breaks="a truncation is durable when it returns",
        source="DESIGN: crash safety of the log",
        file="storage/log/log.py",
        old="keep.cut(position)\n        keep.file.sync()",
        new="keep.cut(position)",
        caught_by=(CRASH,),
    ),
    Bug(
        name="recovery-point-not-lowered-before-a-cut",
        breaks="the recovery point is never above the log's end",
        source="DESIGN: recovery point",
        file="storage/log/log.py",
        old="if self._point.offset > end:",
        new="if self._point.offset < 0:",
        caught_by=(CRASH,),
    ),
    Bug(
        name="epoch-table-not-cut-with-the-log",
        breaks="the epoch table names only epochs that the log holds",
        source="KIP-101",
        file="storage/log/log.py",
        old="epochs = self.epochs.truncate_to(end)",
        new="epochs = self.epochs",
        caught_by=(UNIT,),
    ),
    Bug(
        name="epoch-table-keeps-an-epoch-that-was-cut",
        breaks="an epoch that begins at the new end of the log goes with a truncation",
        source="KIP-101",
        file="storage/log/epochs.py",
        old="tuple(entry for entry in self.entries if entry[1] < end_offset)",
        new="tuple(entry for entry in self.entries if entry[1] <= end_offset)",
        caught_by=(UNIT,),
    ),
    Bug(
        name="torn-tail-not-cut",
        breaks="a torn tail is cut at the last whole batch",
        source="DESIGN: recovery",
        file="storage/log/open.py",
        old="torn.segment.cut(torn.position)",
        new="pass",
        caught_by=(UNIT, CRASH, SIM),
    ),
    Bug(
        name="damage-below-the-recovery-point-cut-silently",
        breaks="damage below the recovery point is corruption, never a torn tail",
        source="DESIGN: recovery point",
        file="storage/log/open.py",
        old="if size < point.position:",
        new="if size < 0:",
        caught_by=(UNIT,),
    ),
    Bug(
        name="damage-before-a-valid-batch-cut-silently",
        breaks="damage that a valid batch follows is corruption, never a torn tail",
        source="DESIGN: recovery",
        file="storage/log/open.py",
        old="found = find_valid_batch(segment.file, position, max(end_offset, segment.base_offset))",
        new="found = None",
        caught_by=(UNIT,),
    ),
    Bug(
        name="file-renamed-before-its-bytes-are-synced",
        breaks="a file gets its final name only when its bytes are durable (the vote above all)",
        source="DESIGN: quorum state in one atomic durable write",
        file="storage/disk/interface.py",
        old="file.append(data)\n        file.sync()",
        new="file.append(data)",
        caught_by=(UNIT, SIM),
    ),
    Bug(
        name="directory-not-synced-after-a-rename",
        breaks="a rename is durable when the write returns (a vote that is answered is kept)",
        source="DESIGN: quorum state in one atomic durable write",
        file="storage/disk/interface.py",
        old="disk.sync_directory(parent_of(path))",
        new="pass",
        caught_by=(UNIT, SIM),
    ),
    Bug(
        name="snapshot-renamed-before-its-bytes-are-synced",
        breaks="a snapshot that has its final name is whole",
        source="KIP-630",
        file="storage/files/snapshots.py",
        old="file.sync()\n        file.close()\n        self._file = None\n        path =",
        new="file.close()\n        self._file = None\n        path =",
        caught_by=(CRASH, SIM),
    ),
)
