"""Mistakes of the cleaner, and in the handling of records that a leader opens."""

from __future__ import annotations

from tests.planted.bug import Bug

CLEANER = "tests/properties/test_cleaner.py"
RULES = "tests/unit/storage/test_cleaner_rules.py"
DIRECTORY = "tests/unit/broker/test_directory_cleaner.py"
OPENED = "tests/unit/broker/test_replica_opened.py"
CODECS = "tests/unit/storage/test_batches.py"

CLEANER_BUGS = (
    Bug(
        name="aborted-records-hide-committed-ones",
        breaks="the last committed value of every key is never lost",
        source="KIP-98",
        file="storage/cleaner/cleaning.py",
        old="if not dropped and not header.is_control and not",
        new="if not header.is_control and not",
        caught_by=(CLEANER,),
    ),
    Bug(
        name="tombstones-go-at-once",
        breaks="a tombstone stays for delete.retention.ms after it was first cleaned",
        source="KIP-534",
        file="storage/cleaner/retained.py",
        old="is_old = horizon is not None and horizon <= self.now_ms",
        new="is_old = horizon is None or horizon <= self.now_ms",
        caught_by=(RULES,),
    ),
    Bug(
        name="the-last-batch-of-a-producer-goes",
        breaks="an active producer's last batch stays, if empty, for its sequence numbers",
        source="KIP-98",
        file="storage/cleaner/retained.py",
        old="is_last = header.last_offset == last.data_offset",
        new="is_last = False",
        caught_by=(RULES,),
    ),
    Bug(
        name="marker-goes-before-its-records",
        breaks="the marker of a transaction stays while any of its batches does",
        source="KIP-98",
        file="storage/cleaner/retained.py",
        old="return not found",
        new="return True",
        caught_by=(RULES,),
    ),
    Bug(
        name="old-segments-go-before-the-swap-is-durable",
        breaks="a crash leaves the old segments or the cleaned one",
        source="Kafka's LocalLog.replaceSegments",
        file="storage/cleaner/cleaning.py",
        old="    _rename(log, base, CLEANED_SUFFIX, SWAP_SUFFIX)\n    disk.sync_directory(log.directory)\n",
        new="    _rename(log, base, CLEANED_SUFFIX, SWAP_SUFFIX)\n",
        caught_by=(CLEANER,),
    ),
    Bug(
        name="cleaned-segment-not-synced",
        breaks="a cleaned segment is durable before those that it replaces are removed",
        source="Kafka's LocalLog.replaceSegments",
        file="storage/partition/swap.py",
        old="            staged.sync()\n",
        new="            pass\n",
        caught_by=(CLEANER,),
    ),
    Bug(
        name="what-is-clean-is-not-lowered-by-a-cut",
        breaks="cleaner-offset-checkpoint is never above what is clean",
        source="Kafka's LogCleanerManager.maybeTruncateCheckpoint",
        file="broker/replica/store/store.py",
        old="        self.cleaner.lower(replica, work.end_offset)\n",
        new="",
        caught_by=(DIRECTORY,),
    ),
    Bug(
        name="segments-above-the-recovery-point-are-cleaned",
        breaks="the segment that the recovery point names is there when the log is opened",
        source="docs/partition-storage.md",
        file="storage/cleaner/cleaning.py",
        old="if segment.sealed_end is None or segment.base_offset >= log.recovery_point.segment:",
        new="if segment.sealed_end is None:",
        caught_by=(DIRECTORY,),
    ),
    Bug(
        name="records-are-not-counted",
        breaks="a batch holds as many records as its header says",
        source="Kafka's LogValidator",
        file="storage/batches/places.py",
        old="    if record_start != len(payload):\n",
        new="    if record_start > len(payload):\n",
        caught_by=(OPENED,),
    ),
    Bug(
        name="snappy-blocks-without-a-common-bound",
        breaks="a batch is never unpacked beyond the bound",
        source="docs/divergence.md",
        file="storage/batches/codecs.py",
        old="        limit -= len(found)\n",
        new="",
        caught_by=(CODECS,),
    ),
    Bug(
        name="swapped-in-beside-what-it-replaces",
        breaks="a cleaned segment gets its name once what it replaces is durably gone",
        source="Kafka's LogLoader",
        file="storage/partition/swap.py",
        old="        disk.remove(join(directory, name))\n    disk.sync_directory(directory)\n",
        new="        disk.remove(join(directory, name))\n",
        caught_by=("tests/unit/storage/test_swaps.py",),
    ),
    Bug(
        name="an-open-transaction-is-cleaned",
        breaks="nothing at or above the last stable offset is compacted",
        source="Kafka's LogCleanerManager.cleanableOffsets",
        file="broker/replica/manager.py",
        old="            below_offset=partition.last_stable_offset,\n",
        new="            below_offset=partition.high_watermark,\n",
        caught_by=("tests/unit/broker/test_what_is_forgotten.py",),
    ),
)
