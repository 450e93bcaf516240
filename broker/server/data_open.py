"""Opens a broker's log directories when its process starts, each on its own thread; bad ones are tolerated.

Owns which findings make a directory bad (the broker starts without it) and which mean that the configuration
is wrong (the broker does not start). What lies in a directory is `DirectoryStore`'s.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from broker.replica.events import FoundDirectory
from broker.replica.store import DirectoryStore, ExpectedIdentity, StoreOptions
from broker.server.data_watch import HangClock
from broker.server.watched_disk import DiskWatch, Faults, WatchedDisk
from metadata.errors import InvariantViolation
from runtime.config import NodeConfig, process_rng
from runtime.errors import StartError
from storage.disk import Disk
from storage.errors import CorruptFileError, DiskError, FileMissingError, LogDirectoryLockedError
from storage.meta_properties import MetaProperties
from storage.posix_disk import PosixDisk
from storage.uuids import uuid_to_text

LOOK_S = 0.1
PROGRESS_S = 2.0

ObserveIn = Callable[[str, str, float], None]
"""`watched_disk.Observe` of every directory, by its path."""

_log = logging.getLogger(__name__)

Opened = tuple[DirectoryStore | None, FoundDirectory]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """A configured directory as it was found. `store` None: it is bad."""

    found: FoundDirectory
    store: DirectoryStore | None
    disk: Disk
    watch: DiskWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenData:
    """Everything that was found, in the order of `log.dirs`, and what tests break meanwhile."""

    directories: Sequence[LogDirectory]
    faults: Faults | None

    @property
    def found(self) -> list[FoundDirectory]:
        return [each.found for each in self.directories]

    @property
    def good_ids(self) -> tuple[bytes, ...]:
        return tuple(each.store.directory_id for each in self.directories if each.store is not None)

    @property
    def good_paths(self) -> list[str]:
        return [each.found.path for each in self.directories if each.store is not None]


@dataclass(slots=True)
class _Opening:
    """One directory that is being opened; `ended` is set on the loop."""

    path: str
    disk: Disk
    watch: DiskWatch
    clock: HangClock
    ended: asyncio.Future[Opened]
    given_up: bool = False
    told_s: float = field(default_factory=time.monotonic)

    def progress(self, done: int, of: int) -> None:
        now_s = time.monotonic()
        if now_s - self.told_s >= PROGRESS_S:
            self.told_s = now_s
            _log.info("opening %s: %d of %d replicas", self.path, done, of)


async def open_directories(
    config: NodeConfig, own: MetaProperties, *, faults: Faults | None, observe: ObserveIn | None
) -> list[LogDirectory]:
    """Every one of `log.dirs`, in order. The metadata directory is open (and locked) already.

    Raises StartError where the broker must not start: a directory of another broker or cluster, one that
    another process has, one that is named twice, or a copy."""
    expected = ExpectedIdentity(cluster_id=own.cluster_id or "", node_id=config.node_id)
    options = StoreOptions(producer_id_expiration_ms=config.number("producer.id.expiration.ms"))
    loop = asyncio.get_running_loop()
    openings = [_opening(config, str(path), faults, observe, loop) for path in config.log_dirs]
    claimed = _Claims()
    for opening in openings:
        locked = opening.path == str(config.metadata_log_dir)

        def work(opening: _Opening = opening, locked: bool = locked) -> Opened:
            claimed.claim(opening.path)
            return DirectoryStore.open(
                opening.disk,
                opening.path,
                expected,
                _log.warning,
                rng=process_rng(),
                options=options,
                locked=locked,
                progress=opening.progress,
            )

        threading.Thread(
            target=_run, args=(opening, work, loop), name=f"open {opening.path}", daemon=True
        ).start()
    opened = [
        LogDirectory(found=found, store=store, disk=opening.disk, watch=opening.watch)
        for opening, (store, found) in zip(openings, await _all(openings), strict=True)
    ]
    _check_copies(config, own, [each.found for each in opened])
    for each in opened:
        if each.found.problem is not None:
            _log.error(
                "log directory %s is offline, its replicas are not served: %s",
                each.found.path,
                each.found.problem,
            )
    return opened


def _opening(
    config: NodeConfig,
    path: str,
    faults: Faults | None,
    observe: ObserveIn | None,
    loop: asyncio.AbstractEventLoop,
) -> _Opening:
    watch = DiskWatch(None if observe is None else partial(observe, path), faults)
    timeout_s = config.number("log.dir.hang.timeout.ms") / 1000
    return _Opening(
        path=path,
        disk=WatchedDisk(PosixDisk(), watch),
        watch=watch,
        clock=HangClock(watch, timeout_s=timeout_s, look_max_s=2 * LOOK_S),
        ended=loop.create_future(),
    )


class _Claims:
    """Finds a directory that is reached by two names."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._paths: dict[tuple[int, int], str] = {}

    def claim(self, path: str) -> None:
        """Raises StartError for the second name."""
        try:
            status = os.stat(path)
        except OSError:
            return  # opening it says what is wrong
        with self._mutex:
            other = self._paths.setdefault((status.st_dev, status.st_ino), path)
        if other != path:
            raise StartError(
                f"log.dirs names one directory twice: {other} and {path} are the same; remove one"
            )


def _run(opening: _Opening, work: Callable[[], Opened], loop: asyncio.AbstractEventLoop) -> None:
    """On the directory's own thread."""
    result: Opened | None = None
    failure: BaseException | None = None
    try:
        result = work()
    except (DiskError, FileMissingError) as error:
        result = None, _bad(opening.path, str(error))
    except BaseException as error:
        failure = error

    def told() -> None:
        if opening.given_up or opening.ended.done():
            return
        if result is not None:
            opening.ended.set_result(result)
        else:
            opening.ended.set_exception(failure or InvariantViolation("a directory opened to nothing"))

    try:
        loop.call_soon_threadsafe(told)
    except RuntimeError:
        return  # the process gave up before


def _bad(path: str, problem: str) -> FoundDirectory:
    return FoundDirectory(path=path, directory_id=None, problem=" ".join(problem.split("\n")))


async def _all(openings: Sequence[_Opening]) -> list[Opened]:
    """What came of each; a directory that hangs is bad, and its thread is left behind."""
    loop = asyncio.get_running_loop()
    results: list[Opened] = []
    for opening in openings:
        while not opening.ended.done():
            await asyncio.wait([opening.ended], timeout=LOOK_S)
            problem = None if opening.ended.done() else opening.clock.look(loop.time())
            if problem is not None:
                opening.given_up = True
                opening.ended.set_result((None, _bad(opening.path, problem)))
        try:
            results.append(opening.ended.result())
        except (LogDirectoryLockedError, CorruptFileError) as error:
            raise StartError(str(error)) from error
    return results


def _check_copies(config: NodeConfig, own: MetaProperties, found: Sequence[FoundDirectory]) -> None:
    """Raises StartError when two directories have one id."""
    holders: dict[bytes, str] = {own.directory_id or b"": str(config.metadata_log_dir)}
    for each in found:
        if each.directory_id is None:
            continue
        other = holders.setdefault(each.directory_id, each.path)
        if other != each.path:
            raise StartError(
                f"{other} and {each.path} have the same directory.id {uuid_to_text(each.directory_id)}: one"
                " is a copy; empty the copy and format it anew with metaquorum storage format"
            )
