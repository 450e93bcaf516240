"""Log directories that Kafka 3.7 brokers left, copied so that a store may open and change them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from metaquorum.broker.replica.disk_work import FoundDirectory, FoundReplica, PartitionRead, ReadPartition
from metaquorum.broker.replica.store.parts import ExpectedIdentity, StoreOptions
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import load_meta_properties
from tests.conftest import shared_data_path

LOGS = "kafka-3.7-wire/logs"


def broker_directories() -> list[str]:
    """Every log directory of a broker that was recorded; none where the recorded data is absent."""
    root = shared_data_path()
    return (
        []
        if root is None
        else sorted(str(one.relative_to(root)) for one in (root / LOGS).glob("broker-*/d?"))
    )


def kafka_directory(tmp_path: Path, name: str) -> Path:
    """A copy that may be written to, without the dumps beside the files."""
    root = shared_data_path()
    assert root is not None
    copy = tmp_path / "d"
    shutil.copytree(
        root / name, copy, ignore=shutil.ignore_patterns("*.dump.txt"), copy_function=shutil.copyfile
    )
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return copy


def opened(
    path: Path, warnings: list[str], options: StoreOptions | None = None
) -> tuple[DirectoryStore, FoundDirectory]:
    """The directory's store."""
    disk = PosixDisk()
    whose = load_meta_properties(disk, str(path))
    assert whose.cluster_id is not None and whose.node_id is not None
    expected = ExpectedIdentity(cluster_id=whose.cluster_id, node_id=whose.node_id)
    rng = random.Random(1)
    store, found = DirectoryStore.open(disk, str(path), expected, warnings.append, rng=rng, options=options)
    assert store is not None, found.problem
    return store, found


def every_record(store: DirectoryStore, replica: FoundReplica, directory: Path) -> None:
    """Reads one batch at a time, from every offset, and compares with the segments' own bytes."""
    folder = directory / f"{replica.topic}-{replica.key[1]}"
    batches = [one for path in sorted(folder.glob("*.log")) for one in iter_batches(path.read_bytes())]
    assert (batches[-1].header.next_offset if batches else replica.log.end_offset) == replica.log.end_offset
    for batch in batches:
        for offset in range(
            max(batch.header.base_offset, replica.log.start_offset), batch.header.next_offset
        ):
            (event,) = store.execute(
                ReadPartition(
                    directory_id=store.directory_id,
                    key=replica.key,
                    incarnation=replica.incarnation,
                    token=1,
                    from_offset=offset,
                    to_offset=replica.log.end_offset,
                    max_bytes=1,
                )
            )
            assert isinstance(event, PartitionRead)
            assert (event.problem, event.data) == (None, batch.data), f"{folder.name}, offset {offset}"
