"""The log directories of a simulated broker host, each on its own disk, which outlive the host's processes.

What is done in a directory while a process runs, and how long that takes, is in `data_workers`.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from metaquorum.storage.batches.format import walk_batches
from metaquorum.storage.disk.interface import join, name_of, read_file
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.log.recovery import FILE_NAME as POINT_FILE
from metaquorum.storage.log.segment import parse_segment_name
from metaquorum.storage.uuids import UUID_BYTES
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.sim.processes import CLUSTER_ID

BATCH_BODY_AT = 70
MIN_BATCHES_TO_ROT = 3


class Rotten(NamedTuple):
    """A segment before and after."""

    file: str
    good: bytes
    bad: bytes


class DataDirectory:
    """One log directory. `dead`: every operation fails. `hung`: no operation returns."""

    def __init__(self, path: str, broker_id: int, number: int, rng: random.Random) -> None:
        self.path = path
        self._broker_id = broker_id
        self._number = number
        self._rng = rng
        self._made = 0
        self.dead = False
        self.hung = False
        self.rotten: dict[str, Rotten] = {}
        self.disk = FaultyDisk(rng)
        self.directory_id = b""
        self.replace()

    def replace(self) -> None:
        """Replaces the disk with an empty, formatted one, which has an id of its own."""
        self._made += 1
        self.dead = self.hung = False
        self.rotten.clear()
        self.disk = FaultyDisk(self._rng)
        number = self._broker_id << 16 | self._number << 8 | self._made
        self.directory_id = bytes([9] * (UUID_BYTES - 8)) + number.to_bytes(8, "big")
        self.disk.make_directory(self.path)
        self.disk.sync_directory("/")
        identity = MetaProperties(
            cluster_id=CLUSTER_ID, node_id=self._broker_id, directory_id=self.directory_id
        )
        store_meta_properties(self.disk, self.path, identity)

    def rot(self, name: str) -> bool:
        """Damages the first batch of a replica's log, which intact ones follow, and removes the recovery
        point that would keep a start from verifying it. False: there are too few batches."""
        place = join(self.path, name)
        segment = join(place, min(each for each in self.disk.list_directory(place) if each.endswith(".log")))
        data = read_file(self.disk, segment)
        walk = walk_batches(data, expected_offset=parse_segment_name(name_of(segment)) or 0, min_epoch=0)
        if len(walk.hops) < MIN_BATCHES_TO_ROT:
            return False
        bad = bytearray(data)
        bad[BATCH_BODY_AT] ^= 0x55
        point = join(place, POINT_FILE)
        self.rotten[name] = Rotten(segment, data, bytes(bad))
        self._write(segment, bytes(bad))
        if self.disk.exists(point):
            self.disk.remove(point)
            self.disk.sync_directory(place)
        return True

    def restore(self) -> int:
        """Undoes the damage of files that still have it; call it only while no process uses the directory."""
        count = 0
        for rotten in self.rotten.values():
            if self.disk.exists(rotten.file) and read_file(self.disk, rotten.file) == rotten.bad:
                self._write(rotten.file, rotten.good)
                count += 1
        self.rotten.clear()
        return count

    def _write(self, path: str, data: bytes) -> None:
        file = self.disk.open_append(path)
        file.truncate(0)
        file.append(data)
        file.sync()
        file.close()

    def die(self) -> None:
        """From now on every operation fails, in later processes too."""
        self.dead = True
        self.disk.inject("/")

    def ended(self, *, power_loss: bool) -> None:
        """The process that used it has ended."""
        self.disk = self.disk.crash() if power_loss else self.disk.kill()
        if self.dead:
            self.disk.inject("/")

    def repair(self) -> None:
        """The directory works again, with the data that it had; call it only while no process uses it."""
        self.dead = self.hung = False
        self.disk.heal()


class DataDirectories:
    """The directories of one host, in the order in which they are configured."""

    def __init__(self, broker_id: int, count: int, rng: random.Random) -> None:
        self.all = [
            DataDirectory(f"/log{number}", broker_id, number, random.Random(rng.getrandbits(64)))
            for number in range(count)
        ]

    def good(self) -> list[DataDirectory]:
        return [each for each in self.all if not each.dead and not each.hung]

    def bad(self) -> list[DataDirectory]:
        return [each for each in self.all if each.dead or each.hung]

    def ids(self) -> tuple[bytes, ...]:
        return tuple(each.directory_id for each in self.all)

    def by_id(self, directory_id: bytes) -> DataDirectory:
        return next(each for each in self.all if each.directory_id == directory_id)

    def ended(self, *, power_loss: bool) -> None:
        for each in self.all:
            each.ended(power_loss=power_loss)
