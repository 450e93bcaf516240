"""The proof of an orderly stop: kept by every directory, taken once, and never by half."""

from __future__ import annotations

import random

import pytest

from metaquorum.storage.disk.interface import join, read_file, write_atomically
from metaquorum.storage.partition.replica_directory import CLEAN_SHUTDOWN_FILE as FILE_NAME
from metaquorum.storage.partition.replica_directory import leave_clean_shutdown, take_clean_shutdown
from metaquorum.testing.faulty_disk import FaultyDisk

DIRECTORIES = ("a", "b")


def disk() -> FaultyDisk:
    made = FaultyDisk(random.Random(1))
    for directory in DIRECTORIES:
        made.make_directory(directory)
    made.sync_directory(".")
    return made


@pytest.mark.parametrize("epoch", [0, 17])
def test_it_is_kafkas_file_and_survives_a_crash(epoch: int) -> None:
    at = disk()
    leave_clean_shutdown(at, DIRECTORIES, epoch)
    assert read_file(at, join("a", FILE_NAME)) == b'{"version":0,"brokerEpoch":%d}' % epoch
    at = at.crash()
    assert take_clean_shutdown(at, DIRECTORIES) == epoch


def test_it_is_taken_once_also_if_the_next_process_crashes() -> None:
    at = disk()
    leave_clean_shutdown(at, DIRECTORIES, 17)
    assert take_clean_shutdown(at, DIRECTORIES) == 17
    at = at.crash()
    assert take_clean_shutdown(at, DIRECTORIES) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"version":1,"brokerEpoch":17}',
        b'{"version":0,"brokerEpoch":-1}',
        b'{"version":0,"brokerEpoch":true}',
        b'{"version":0}',
        b"\xff",
    ],
)
def test_what_cannot_be_read_proves_nothing_and_goes(data: bytes) -> None:
    at = disk()
    leave_clean_shutdown(at, DIRECTORIES, 17)
    write_atomically(at, join("b", FILE_NAME), data)
    assert take_clean_shutdown(at, DIRECTORIES) is None
    assert not at.exists(join("a", FILE_NAME)) and not at.exists(join("b", FILE_NAME))


def test_directories_that_do_not_agree_prove_nothing() -> None:
    at = disk()
    leave_clean_shutdown(at, DIRECTORIES[:1], 17)
    assert take_clean_shutdown(at, DIRECTORIES) is None
    leave_clean_shutdown(at, DIRECTORIES[:1], 17)
    leave_clean_shutdown(at, DIRECTORIES[1:], 18)
    assert take_clean_shutdown(at, DIRECTORIES) is None


def test_a_directory_that_fails_proves_nothing_stops_nobody_and_is_not_believed_later() -> None:
    at = disk()
    leave_clean_shutdown(at, DIRECTORIES, 17)
    at.inject("b")
    assert take_clean_shutdown(at, DIRECTORIES) is None
    at.heal()
    assert at.exists(join("b", FILE_NAME)) and not at.exists(join("a", FILE_NAME))
    assert take_clean_shutdown(at, DIRECTORIES) is None
    leave_clean_shutdown(at, DIRECTORIES[:1], 18)
    assert take_clean_shutdown(at, DIRECTORIES) is None
