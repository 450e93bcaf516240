"""`log-dirs` against brokers in memory over real sockets."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaquorum.cli.main import main
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import LogDirDescription, ReplicaDescription
from metaquorum.storage.uuids import random_uuid, uuid_to_text
from tests.unit.cli.data_server import Served, served


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: bytes
    err: str

    @property
    def line(self) -> str:
        """The one line on standard error."""
        assert self.err.startswith("metaquorum: ") and self.err.count("\n") == 1, self.err
        return self.err


Run = Callable[..., Ended]


@pytest.fixture
def brokers() -> Iterator[Served]:
    with served() as cluster:
        yield cluster


@pytest.fixture
def run(
    brokers: Served,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Run:
    def run_it(*args: str, given: bytes = b"") -> Ended:
        (tmp_path / "input").write_bytes(given)
        with open(tmp_path / "input") as stdin, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            capfdbinary.readouterr()
            with pytest.raises(SystemExit) as ended:
                main.main([*args, "--bootstrap", brokers.bootstrap])
        out, err = capfdbinary.readouterr()
        return Ended(int(ended.value.code or 0), out, err.decode())

    return run_it


def directory(path: str, seed: int, *, offline: str | None = None) -> LogDirDescription:
    replica = ReplicaDescription(
        key=(b"t" + b"." * 15, 1),
        topic="t",
        size_bytes=500,
        start_offset=2,
        end_offset=9,
        high_watermark=7,
        lag=0,
        leads=offline is None,
    )
    return LogDirDescription(
        path=path,
        directory_id=random_uuid(random.Random(seed)),
        error=ErrorCode.NONE if offline is None else ErrorCode.KAFKA_STORAGE_ERROR,
        message=offline,
        total_bytes=1000,
        usable_bytes=-1 if offline else 400,
        replicas=(replica,),
    )


def test_log_directories_are_listed_with_their_replicas(brokers: Served, run: Run) -> None:
    brokers.cluster.add_topic("t", 1)
    good, bad = directory("/d/a", 1), directory("/d/b", 2, offline="it gave EIO; replace the disk")
    brokers.services[0].directories = (good, bad)
    ended = run("log-dirs", "describe", "--broker", "0", "--topic", "t")
    rows = [line.split() for line in ended.out.decode().splitlines() if line]
    assert ended.code == 0
    ids = [uuid_to_text(each.directory_id or b"") for each in (good, bad)]
    assert rows[1] == ["0", "/d/a", ids[0], "online", "1", "1", "500", "400", "1000"]
    assert rows[2] == ["0", "/d/b", ids[1], "offline", "1", "0", "-", "-", "1000"]
    assert rows[4] == ["0", "/d/a", "t-1", "leader", "500", "2", "7", "9", "0"]
    assert rows[5][3] == "offline"
    assert ended.err == "broker 0: /d/b is offline: it gave EIO; replace the disk\n"
    found = json.loads(run("log-dirs", "describe", "--json").out)
    assert [each["brokerId"] for each in found] == [0, 1]
    assert found[0]["directories"][1]["online"] is False
    assert found[0]["directories"][0]["replicas"][0]["highWatermark"] == 7


def test_of_a_directory_without_identity_nobody_says_what_it_holds(brokers: Served, run: Run) -> None:
    lost = LogDirDescription(
        path="/d/c",
        directory_id=None,
        error=ErrorCode.KAFKA_STORAGE_ERROR,
        message="no meta.properties",
        total_bytes=-1,
        usable_bytes=-1,
        replicas=(),
    )
    brokers.services[0].directories = (lost,)
    rows = run("log-dirs", "describe", "--broker", "0").out.decode().splitlines()
    assert rows[1].split() == ["0", "/d/c", "-", "offline", "-", "-", "-", "-", "-"]


def test_a_silent_broker_hides_no_other(brokers: Served, run: Run) -> None:
    brokers.services[1].directories = (directory("/d/a", 1),)
    brokers.cluster.silent.add(0)
    ended = run("log-dirs", "describe")
    assert ended.code == 1 and b"/d/a" in ended.out
    assert "broker 0 did not answer" in ended.line


def test_a_directory_is_given_up_only_when_that_is_meant(brokers: Served, run: Run) -> None:
    good = directory("/d/a", 1)
    brokers.services[0].directories = (good, directory("/d/b", 2, offline="gone"))
    path = ("log-dirs", "mark-offline", "--broker", "0", "/d/a")
    asked = run(*path, given=b"n\n")
    assert asked.code == 1 and "Take /d/a of broker 0 offline?" in asked.err
    for refused in (asked, run(*path, given=b"")):
        assert refused.code == 1
        assert refused.err.endswith("metaquorum: nothing was done; use --yes to skip the question\n")
    assert brokers.services[0].marked == []
    assert run(*path, given=b"y\n").out == b"broker 0: /d/a is now offline\n"
    by_id = ("log-dirs", "mark-offline", "--broker", "0", uuid_to_text(good.directory_id or b""), "--yes")
    assert json.loads(run(*by_id, "--json").out)["wasOffline"] is False
    assert b"was already offline" in run(*path[:-1], "/d/b", "--yes").out
    assert [each.path for each in brokers.services[0].marked] == ["/d/a", None, "/d/b"]
