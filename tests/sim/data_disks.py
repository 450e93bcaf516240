"""The log directories of a simulated broker host, each on a disk of its own, which outlive its processes.

Owns what a disk holds after a kill, a loss of power, a death or a replacement. What is done in a directory
while a process runs, and how long it takes, is `data_workers`'.
"""

from __future__ import annotations

import random

from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.uuids import UUID_BYTES
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.sim.processes import CLUSTER_ID


class DataDirectory:
    """One log directory. `dead`: every operation fails. `hung`: none ends."""

    def __init__(self, path: str, broker_id: int, number: int, rng: random.Random) -> None:
        self.path = path
        self._broker_id = broker_id
        self._number = number
        self._rng = rng
        self._made = 0
        self.dead = False
        self.hung = False
        self.disk = FaultyDisk(rng)
        self.directory_id = b""
        self.replace()

    def replace(self) -> None:
        """An empty disk takes its place, formatted, with an id of its own."""
        self._made += 1
        self.dead = self.hung = False
        self.disk = FaultyDisk(self._rng)
        number = self._broker_id << 16 | self._number << 8 | self._made
        self.directory_id = bytes([9] * (UUID_BYTES - 8)) + number.to_bytes(8, "big")
        self.disk.make_directory(self.path)
        self.disk.sync_directory("/")
        identity = MetaProperties(
            cluster_id=CLUSTER_ID, node_id=self._broker_id, directory_id=self.directory_id
        )
        store_meta_properties(self.disk, self.path, identity)

    def die(self) -> None:
        """From now on everything fails, in later processes too."""
        self.dead = True
        self.disk.inject("/")

    def ended(self, *, power_loss: bool) -> None:
        """The process that used it is gone."""
        self.disk = self.disk.crash() if power_loss else self.disk.kill()
        if self.dead:
            self.disk.inject("/")

    def repair(self) -> None:
        """What it held is there again; to be done while no process uses it."""
        self.dead = self.hung = False
        self.disk.heal()


class DataDirectories:
    """Those of one host, in the order in which they are configured."""

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
