"""`metaquorum log archive`, and the log tools over what it writes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import metaquorum
from metaquorum.cli.log import archive as log_archive
from metaquorum.cli.main import main
from metaquorum.storage.archive import HEAD
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.cli.running import run_log as run
from tests.unit.metadata.made_logs import STORY, add_snapshot, all_files, make_node

NODES = ("controller-3000", "controller-3001", "controller-3002")


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes; one is behind, one has other segments and half a batch at its end."""
    home = tmp_path_factory.mktemp("made") / "quorum"
    for at, name in enumerate(NODES):
        story = STORY[:9] if at == 0 else STORY
        node = make_node(
            PosixDisk(), story, home=str(home / name), node_id=3000 + at, per_segment=4 if at == 1 else 100
        )
        if at:
            add_snapshot(node, 11)
    last = home / NODES[2] / "__cluster_metadata-0" / f"{0:020}.log"
    last.write_bytes(last.read_bytes() + last.read_bytes()[:70])
    return home


@pytest.fixture(scope="module")
def packed(quorum: Path) -> Path:
    archive = quorum.parent / "q.mqa"
    result = run("archive", quorum, "--to", archive)
    assert result.exit_code == 0, result.output
    return archive


COMMANDS: list[tuple[object, ...]] = [
    ("dump", ""),
    ("dump", "", "--json", "--entity", "topic/orders", "--from-offset", 11),
    ("state", "", "topic/orders", "--json"),
    ("state", "", "--at", 10, "--json"),
    ("state", "", "--at", "2026-11-18T16:26:45Z"),
    ("diff", "", 5, 15),
    ("history", "", "topic/orders/1"),
    ("why", "", "topic/orders/1"),
    ("bisect", "", "--check", "all-led"),
    ("timeline", ""),
    ("summary", ""),
    ("check", "", "--json"),
    ("check", f"/{NODES[1]}"),
    ("dump", f"/{NODES[1]}/__cluster_metadata-0/{4:020}.log"),
    ("dump", f"/{NODES[1]}/meta.properties"),
    ("dump", f"/{NODES[1]}/__cluster_metadata-0/quorum-state", "--json"),
    ("state", f"/{NODES[2]}/__cluster_metadata-0/{11:020}-{1:010}.checkpoint"),
    ("salvage", ""),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(str, command)))
def test_every_tool_says_of_an_archive_what_it_says_of_the_directory(
    quorum: Path, packed: Path, command: tuple[object, ...]
) -> None:
    name, below, *more = command
    there, here = run(name, f"{quorum}{below}", *more), run(name, f"{packed}{below}", *more)
    assert there.stdout
    assert (here.exit_code, here.stdout.replace(str(packed), str(quorum))) == (there.exit_code, there.stdout)
    assert here.stderr.replace(str(packed), str(quorum)) == there.stderr


@pytest.mark.shared_data
def test_indexes_in_an_archive_are_compared_with_their_segment(shared_data: Path, tmp_path: Path) -> None:
    node = shared_data / "kafka-3.7" / "controller-3000"
    assert run("archive", node, "--to", tmp_path / "a.mqa").exit_code == 0
    for suffix in ("index", "timeindex"):
        name = f"__cluster_metadata-0/{1850:020}.{suffix}"
        there, here = run("dump", node / name), run("dump", tmp_path / "a.mqa" / "controller-3000" / name)
        assert there.exit_code == here.exit_code == 0
        assert there.stdout.count("\n") > 3
        assert here.stdout.replace(f"{tmp_path}/a.mqa", str(node.parent)) == there.stdout


def test_the_shell_and_the_library_open_an_archive(quorum: Path, packed: Path) -> None:
    for path in (quorum, packed):
        result = CliRunner().invoke(main, ["log", "shell", str(path)], input="at 12\ncat topic/orders\n")
        assert result.exit_code == 0, result.output
    there = metaquorum.open_log(quorum / NODES[1])
    here = metaquorum.open_log(packed / NODES[1])
    assert (here.end_offset, here.identity, here.snapshots()) == (15, there.identity, there.snapshots())


def test_extraction_gives_the_directories_byte_for_byte(quorum: Path, packed: Path, tmp_path: Path) -> None:
    before = all_files(quorum)
    result = run("archive", packed, "--extract", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert all_files(tmp_path / "out") == before == all_files(quorum)
    orphan = run("archive", packed, "--extract", tmp_path / "none" / "out")
    assert "none is not a directory; create it first" in one_line(orphan)
    again = run("archive", packed, "--extract", tmp_path / "out")
    assert again.exit_code == 1
    assert "already exists and is not empty; give a new directory" in again.stderr


def test_an_archive_of_an_archive_and_a_dry_run_are_the_same(packed: Path, tmp_path: Path) -> None:
    dry = run("archive", packed, "--to", tmp_path / "dry.mqa", "--dry-run", "--json")
    assert os.listdir(tmp_path) == []
    (tmp_path / "into").mkdir()
    made = run("archive", packed, "--to", tmp_path / "into", "--json")
    told, report = json.loads(dry.stdout), json.loads(made.stdout)
    assert report.pop("target") == str(tmp_path / "into" / f"3Db5QLSqSZieL3rJBUUegA-{15:020}.mqa")
    assert told.pop("target") is None
    assert told == report
    (archive,) = (tmp_path / "into").iterdir()
    assert archive.read_bytes() == packed.read_bytes()
    log = report["logs"][1]
    assert (log["path"], log["startOffset"], log["endOffset"], log["segments"]) == (
        "controller-3001/__cluster_metadata-0",
        0,
        15,
        3,
    )
    assert (log["lastTime"] - log["firstTime"], log["snapshots"]) == (10_000, [{"offset": 11, "epoch": 1}])
    assert report["archiveBytes"] == packed.stat().st_size
    assert report["uniqueBytes"] < report["bytes"] / 2


def one_line(result: Result) -> str:
    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize("seed", range(20))
def test_no_damage_goes_unseen(packed: Path, tmp_path: Path, seed: int) -> None:
    """Cut off anywhere, or one bit flipped anywhere: one line, and no traceback."""
    rng = random.Random(seed)
    whole = packed.read_bytes()
    hurt = tmp_path / "hurt.mqa"
    at = rng.choice((rng.randrange(len(whole)), len(whole) - rng.randint(1, 40), rng.randint(0, 12)))
    if seed % 2:
        hurt.write_bytes(whole[:at])
    else:
        hurt.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randint(0, 7)]) + whole[at + 1 :])
    assert "hurt.mqa" in one_line(run("archive", "--verify", hurt))
    assert "hurt.mqa" in one_line(run("timeline", hurt))
    assert "hurt.mqa" in one_line(run("archive", hurt, "--extract", tmp_path / "out"))
    assert sorted(os.listdir(tmp_path)) == ["hurt.mqa"]


def test_a_newer_format_is_refused_by_its_number(packed: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.mqa"
    newer.write_bytes(HEAD.pack(b"MQARCHIV", 7) + packed.read_bytes()[HEAD.size :])
    assert "is an archive of format 7, and this release reads up to 1; upgrade" in one_line(
        run("summary", newer)
    )


def test_verify_says_which_archives_are_whole(packed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.mqa"
    other.write_bytes(b"something else")
    result = run("archive", "--verify", packed, other, "--json")
    assert result.exit_code == 1
    good, bad = map(json.loads, result.stdout.splitlines())
    assert good == {"archive": str(packed), "problem": None}
    assert "is not an archive of `metaquorum log archive`" in bad["problem"]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("Q",), "give one of --to"),
        (("Q", "--to", "T/a.tar"), "must end in .mqa"),
        (("Q", "--to", "T/none/a.mqa"), "T/none is not a directory"),
        (("Q", "--to", "Q/controller-3000/a.mqa"), "is inside"),
        (("Q", "--to", "A"), "already exists"),
        (("T", "--to", "T/a.mqa"), "holds no"),
        (("A", "--verify", "--extract", "T/x"), "give one of --to"),
        (("T/none.mqa", "--verify"), "does not exist"),
        ((f"Q/{NODES[1]}/__cluster_metadata-0/{0:020}.log", "--to", "T/a.mqa"), "is a single file"),
    ],
)
def test_a_wrong_call_is_one_line_and_changes_nothing(
    quorum: Path, packed: Path, tmp_path: Path, arguments: tuple[str, ...], wrong: str
) -> None:
    before = all_files(quorum.parent)

    def placed(text: str) -> str:
        named = {"Q": quorum, "A": packed, "T": tmp_path}
        head, slash, rest = text.partition("/")
        return f"{named[head]}{slash}{rest}" if head in named else text

    result = run("archive", *map(placed, arguments))
    assert result.exit_code in (1, 2)
    assert wrong.replace("T/", f"{tmp_path}/") in result.stderr
    assert "Traceback" not in result.output
    assert all_files(quorum.parent) == before
    assert os.listdir(tmp_path) == []


def test_an_archive_is_not_followed(packed: Path) -> None:
    result = run("dump", packed, "--follow")
    assert result.exit_code == 2
    assert "an archive does not grow" in result.stderr


def test_what_a_killed_run_left_goes_with_the_next_one(quorum: Path, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    gone, alive = ended.pid, os.getppid()
    for writer in (gone, alive):
        (tmp_path / f"a.mqa.{writer}.new").write_bytes(b"half")
    assert run("archive", quorum, "--to", tmp_path / "a.mqa").exit_code == 0
    assert sorted(os.listdir(tmp_path)) == ["a.mqa", f"a.mqa.{alive}.new"]


@pytest.mark.parametrize("call", [("--dry-run",), ("--to", "a.mqa")], ids=" ".join)
@pytest.mark.parametrize("deleted", ["everything", "one node's log", "a segment"])
def test_what_is_removed_meanwhile_is_named_and_a_log_of_which_nothing_is_left_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[str, ...], deleted: str
) -> None:
    """A node deletes old segments while it runs; someone may delete its directory."""
    home = tmp_path / "quorum"
    for at in (0, 1):
        make_node(PosixDisk(), home=str(home / NODES[at]), node_id=3000 + at, per_segment=4)
    first = min((home / NODES[0]).rglob("*.log"))
    chosen = {"everything": home, "one node's log": home / NODES[0]}
    own = log_archive.require_one_quorum

    def then_delete(*given: Any) -> None:
        own(*given)
        sources = list(log_archive._sources(given[0]))
        monkeypatch.setattr(log_archive, "_sources", lambda logs: sources)
        for path in [first] if deleted == "a segment" else chosen[deleted].rglob("*.log"):
            path.unlink()

    monkeypatch.setattr(log_archive, "require_one_quorum", then_delete)
    monkeypatch.chdir(tmp_path)
    result = run("archive", home, *call)
    if deleted == "a segment":
        assert result.exit_code == 0 and f"{first} was removed in the meantime: left out" in result.stderr
        return
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"metaquorum: every segment and snapshot in {first.parent} was removed while it was read; check that"
        " it is the directory of a node that runs, and archive it again\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["quorum"]
