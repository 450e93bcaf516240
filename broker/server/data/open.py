"""A broker's log directories when its process starts: inspected, then opened, each on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from metaquorum.broker.replica.disk_work import FoundDirectory
from metaquorum.broker.replica.store.parts import ExpectedIdentity, StoreOptions
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.broker.server.data.watched_disk import DiskWatch, Faults, HangClock, WatchedDisk
from metaquorum.config.node import NodeConfig
from metaquorum.errors import StartError
from metaquorum.lines import one_line
from metaquorum.node.machine import OWN_PROCESS
from metaquorum.node.replica import check_identity
from metaquorum.storage.disk.file_pool import OpenFiles
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.errors import CorruptFileError, DiskError, FileMissingError, LogDirectoryLockedError
from metaquorum.storage.files.meta_properties import FILE_NAME, MetaProperties, load_meta_properties
from metaquorum.storage.uuids import uuid_to_text

LOOK_S = 0.1
LOOK_MAX_S = 2 * LOOK_S
KEY_SHARE = 0.9
"""The share of the cleaner's memory for keys: Kafka's log.cleaner.io.buffer.load.factor."""
PROGRESS_S = 2.0
NOT_MOUNTED = "it has no meta.properties: mount its disk, or format it with metaquorum storage format"

T = TypeVar("T")

ObserveIn = Callable[[str, str, float], None]
"""`watched_disk.Observe` of every directory, by its path."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ConfiguredDirectory:
    """A configured directory after inspection. `problem` None: its owner is known."""

    path: str
    disk: Disk
    watch: DiskWatch
    clock: HangClock
    key: Hashable = None
    identity: MetaProperties | None = None
    problem: str | None = None


class LogDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A configured directory after opening. `store` None: it is bad."""

    at_opening: FoundDirectory
    store: DirectoryStore | None
    disk: Disk
    watch: DiskWatch


class OpenData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found, in the order of `log.dirs`, and the faults that tests inject."""

    directories: Sequence[LogDirectory]
    faults: Faults | None

    @property
    def found(self) -> list[FoundDirectory]:
        return [directory.at_opening for directory in self.directories]

    @property
    def good_ids(self) -> tuple[bytes, ...]:
        return tuple(
            directory.store.directory_id for directory in self.directories if directory.store is not None
        )

    @property
    def good_paths(self) -> list[str]:
        return [directory.at_opening.path for directory in self.directories if directory.store is not None]


# ---- owners --------------------------------------------------------------------------------------


async def look_at_directories(
    config: NodeConfig,
    own: MetaProperties,
    *,
    faults: Faults | None,
    observe: ObserveIn | None,
    disk: Disk = OWN_PROCESS.disk,
) -> list[ConfiguredDirectory]:
    """Every one of `log.dirs`, in order; only reads. `own`: the identity of the metadata directory.

    Raises StartError if the broker must not start: a directory belongs to another broker or cluster, is named
    twice, or is a copy.
    """
    places = [_place(config, str(path), faults, observe, disk) for path in config.log_dirs]
    await asyncio.gather(*(_look(place) for place in places))
    holders: dict[bytes, str] = {own.directory_id or b"": str(config.metadata_log_dir)}
    reached: dict[Hashable, str] = {}
    for directory in places:
        if (
            directory.key is not None
            and (other := reached.setdefault(directory.key, directory.path)) != directory.path
        ):
            raise StartError(
                f"log.dirs names one directory twice: {other} and {directory.path} are the same; remove one"
            )
        if directory.identity is None:
            continue
        check_identity(config, own, directory.path, directory.identity)
        directory_id = directory.identity.directory_id or b""
        other = holders.setdefault(directory_id, directory.path)
        if other != directory.path:
            raise StartError(
                f"{other} and {directory.path} have the same directory.id {uuid_to_text(directory_id)}: one"
                " is a copy; empty the copy and reformat it with metaquorum storage format"
            )
    return places


def _place(
    config: NodeConfig, path: str, faults: Faults | None, observe: ObserveIn | None, disk: Disk
) -> ConfiguredDirectory:
    watch = DiskWatch(None if observe is None else partial(observe, path), faults)
    timeout_s = config.number("log.dir.hang.timeout.ms") / 1000
    return ConfiguredDirectory(
        path=path,
        disk=WatchedDisk(disk, watch),
        watch=watch,
        clock=HangClock(watch, timeout_s=timeout_s, look_max_s=LOOK_MAX_S),
    )


async def _look(directory: ConfiguredDirectory) -> None:
    def identity() -> MetaProperties:
        directory.key = directory.disk.directory_key(directory.path)
        if not directory.disk.exists(join(directory.path, FILE_NAME)):
            raise DiskError(directory.path, "reading its identity", NOT_MOUNTED)
        return load_meta_properties(directory.disk, directory.path)

    try:
        directory.identity = await _on_thread(directory, identity)
    except (DiskError, FileMissingError, CorruptFileError) as error:
        directory.problem = one_line(error)


# ---- contents ------------------------------------------------------------------------------------


async def open_directories(
    config: NodeConfig,
    own: MetaProperties,
    places: Sequence[ConfiguredDirectory],
    open_files: OpenFiles | None = None,
    new_rng: Callable[[], random.Random] = OWN_PROCESS.new_rng,
) -> list[LogDirectory]:
    """Opens all directories that can be opened, concurrently. The metadata directory is already open (and
    locked). `open_files`: the bound of their segment files, if there is one.

    Raises StartError for a directory that another process has.
    """
    expected = ExpectedIdentity(cluster_id=own.cluster_id or "", node_id=config.node_id)
    threads = max(1, config.number("log.cleaner.threads"))
    options = StoreOptions(
        max_open_files=StoreOptions().max_open_files if open_files is None else open_files.limit,
        open_files=open_files,
        producer_id_expiration_ms=config.number("producer.id.expiration.ms"),
        cleaner_key_bytes=int(KEY_SHARE * config.number("log.cleaner.dedupe.buffer.size")) // threads,
    )
    opened = await asyncio.gather(*(_open(config, expected, options, place, new_rng()) for place in places))
    for directory in opened:
        if directory.at_opening.problem is not None:
            text = "log directory %s is offline, and so are its replicas: %s"
            _log.error(text, directory.at_opening.path, directory.at_opening.problem)
    return opened


async def _open(
    config: NodeConfig,
    expected: ExpectedIdentity,
    options: StoreOptions,
    directory: ConfiguredDirectory,
    rng: random.Random,
) -> LogDirectory:
    def work() -> tuple[DirectoryStore | None, FoundDirectory]:
        return DirectoryStore.open(
            directory.disk,
            directory.path,
            expected,
            _log.warning,
            rng=rng,
            options=options,
            locked=directory.path == str(config.metadata_log_dir),
            progress=_Progress(directory.path),
        )

    store: DirectoryStore | None = None
    opened = FoundDirectory(path=directory.path, directory_id=None, problem=directory.problem)
    if directory.problem is None:
        try:
            store, opened = await _on_thread(directory, work)
        except (LogDirectoryLockedError, CorruptFileError) as error:
            raise StartError(str(error)) from error
        except (DiskError, FileMissingError) as error:
            problem = one_line(error)
            known = None if directory.identity is None else directory.identity.directory_id
            opened = FoundDirectory(path=directory.path, directory_id=known, problem=problem)
    return LogDirectory(at_opening=opened, store=store, disk=directory.disk, watch=directory.watch)


class _Progress:
    """A line now and then, for directories that take long."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._logged_s = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= PROGRESS_S:
            self._logged_s = now_s
            _log.info("opening %s: %d of %d replicas", self._path, done, of)


async def _on_thread(directory: ConfiguredDirectory, work: Callable[[], T]) -> T:
    """Returns or raises what `work` does. A thread that hangs in a call to the disk is left behind:
    DiskError."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def report(outcome: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process stopped waiting before
            loop.call_soon_threadsafe(lambda: None if ended.done() else outcome())

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            report(partial(ended.set_exception, error))
        else:
            report(partial(ended.set_result, result))

    threading.Thread(target=run, name=f"open {directory.path}", daemon=True).start()
    while not ended.done():
        await asyncio.wait([ended], timeout=LOOK_S)
        problem = None if ended.done() else directory.clock.look(loop.time())
        if problem is not None:
            ended.cancel()
            raise DiskError(directory.path, "opening it", problem)
    return ended.result()
