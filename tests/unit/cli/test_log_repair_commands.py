"""`log repair` and `log salvage` at the terminal: what they print, refuse, and leave alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metaquorum.cli.errors import EXIT_REMAINS, EXIT_UNKNOWN_RECORDS
from metaquorum.config.addresses import parse_voters
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles
from metaquorum.metadata.records import types as r
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.storage.uuids import uuid_to_text
from tests.unit.cli.running import run_log as run
from tests.unit.metadata.made_logs import (
    CLUSTER,
    START_MS,
    STORY,
    all_files,
    flip,
    image_of,
    make_node,
    strict,
)


def node(tmp_path: Path, name: str = "node", **more: object) -> NodeFiles:
    return make_node(PosixDisk(), STORY, home=str(tmp_path / name), **more)  # type: ignore[arg-type]


# --- repair


def test_a_repair_shows_what_changes_and_the_state_diff(tmp_path: Path) -> None:
    node(tmp_path)
    kept = all_files(tmp_path / "node")
    result = run("repair", tmp_path / "node", "--drop", "12", "--to", tmp_path / "new")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "changes: 1",
        "  dropped             12  REMOVE_TOPIC_RECORD (named)",
        "state at the end, old to new: 3 entities differ",
    ]
    assert lines[3].startswith("  + topic/payments  topicId=")
    assert f"wrote {tmp_path}/new: offsets 0 to 14, epoch 2, 0 snapshots" in lines
    assert all_files(tmp_path / "node") == kept
    assert len(image_of(open_log(PosixDisk(), str(tmp_path / "new"))).topics) == 2


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    node(tmp_path)
    for more in ((), ("--to", tmp_path / "new")):
        result = run("repair", tmp_path / "node", "--drop", "12", "--dry-run", *more)
        assert result.exit_code == 0
        assert result.stdout.splitlines()[-1].endswith("nothing was written")
    assert [path.name for path in tmp_path.iterdir()] == ["node"]


def test_what_still_cannot_be_applied_is_named_and_is_an_exit_code(tmp_path: Path) -> None:
    poison = (2, [r.FenceBrokerRecord(77, 5)])
    make_node(PosixDisk(), [*STORY, poison], home=str(tmp_path / "node"))
    result = run("repair", tmp_path / "node", "--end-at", "16", "--drop", "14", "--to", tmp_path / "new")
    assert result.exit_code == EXIT_REMAINS == 13
    assert "offset 15" in result.stderr and "--drop 15, or --drop-failing" in result.stderr
    result = run("repair", tmp_path / "node", "--drop-failing", "--to", tmp_path / "whole")
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("more", [(), ("--drop-failing",)])
def test_records_of_a_newer_release_stay_and_have_the_exit_code_of_every_tool(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    make_node(PosixDisk(), [*STORY, (2, [r.NoOpRecord()])], home=str(tmp_path / "node"))
    log = tmp_path / "node" / "__cluster_metadata-0" / f"{0:020d}.log"
    newer = encode_batch(
        base_offset=16, leader_epoch=2, timestamp_ms=START_MS + 20_000, values=[bytes((1, 99, 0, 7))]
    )
    log.write_bytes(log.read_bytes() + newer)
    result = run("repair", tmp_path / "node", "--drop", "14", *more, "--to", tmp_path / "new")
    assert result.exit_code == EXIT_UNKNOWN_RECORDS == 3
    assert result.stderr.count("it is kept, for a newer release to read") == 1
    assert (tmp_path / "new" / "__cluster_metadata-0" / f"{0:020d}.log").read_bytes().endswith(newer)
    result = run("repair", tmp_path / "node", "--drop", "14", *more, "--dry-run", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["remaining"], len(report["newer"])) == (3, [], 1)


def test_a_repair_as_json(tmp_path: Path) -> None:
    found = node(tmp_path)
    flip(found, 12)
    result = run("repair", tmp_path / "node", "--past-corruption", "--to", tmp_path / "new", "--json")
    report = json.loads(result.stdout)
    assert (report["startOffset"], report["endOffset"], report["leaderEpoch"]) == (0, 15, 2)
    (change,) = report["changes"]
    assert (change["kind"], change["offset"], change["endOffset"]) == ("filled", 12, 13)
    assert report["state"] == []
    assert report["remaining"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("--to", "{new}"), 2, "give a repair"),
        (("--drop", "12"), 2, "give --to DIRECTORY"),
        (("--drop", "12", "--to", "{node}"), 1, "must not change"),
        (("--drop", "12", "--to", "{node}/__cluster_metadata-0/new"), 1, "must not change"),
        (("--drop", "12", "--to", "{full}"), 1, "exists and is not empty"),
        (("--drop", "99", "--to", "{new}"), 1, "there is no record at offset 99"),
        (("--drop", "7", "--to", "{new}"), 1, "--drop-failing"),
        (("--drop-failing", "--to", "{new}"), 1, "nothing would change"),
        (("--end-at", "0", "--to", "{new}"), 1, "nothing would remain"),
        (("--drop", "x", "--to", "{new}"), 2, "not a valid integer"),
    ],
)
def test_what_cannot_be_repaired_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, part: str
) -> None:
    node(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    kept = all_files(tmp_path)
    places = {"new": tmp_path / "new", "node": tmp_path / "node", "full": tmp_path / "full"}
    result = run("repair", tmp_path / "node", *(one.format(**places) for one in arguments))
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert part in line
    assert all_files(tmp_path) == kept


def test_a_single_file_and_a_path_with_no_log_are_refused(tmp_path: Path) -> None:
    found = node(tmp_path)
    (segment,) = Path(found.log.directory).glob("*.log")
    single = run("repair", segment, "--drop", "12", "--dry-run")
    assert "is a single file; give the node's directory" in single.stderr
    assert run("repair", tmp_path / "nowhere", "--drop", "1", "--dry-run").exit_code == 1


# --- salvage


def test_survivors_are_ranked_and_nothing_is_written(tmp_path: Path) -> None:
    node(tmp_path, "a", node_id=3000)
    make_node(PosixDisk(), STORY[:-2], home=str(tmp_path / "b"), node_id=7)
    kept = all_files(tmp_path)
    result = run("salvage", tmp_path / "b", tmp_path / "a")
    assert result.exit_code == 0, result.stderr
    head, first, second, *rest = result.stdout.splitlines()
    assert head.split() == ["RANK", "NODE", "ROLE", "EPOCH", "END", "NEWEST", "RECORD", "DIRECTORY"]
    assert first.split(maxsplit=6) == [
        *("1", "3000", "voter", "2", "15", "2026-11-18T11:06:50.000Z", f"{tmp_path}/a")
    ]
    assert second.split()[:5] == ["2", "7", "observer", "2", "13"]
    assert "voters 3001, 3002 are gone" in rest[1]
    assert all_files(tmp_path) == kept


def test_new_directories_and_the_line_for_the_configuration(tmp_path: Path) -> None:
    found = node(tmp_path, "a")
    voters = "1@10.0.0.1:9093,2@[::1]:9094"
    result = run("salvage", tmp_path / "a", "--voters", voters, "--to", tmp_path / "new")
    assert result.exit_code == 0, result.stderr
    (line,) = (one for one in result.stdout.splitlines() if "controller.quorum.voters=" in one)
    parsed = parse_voters(tuple(line.partition("=")[2].split(",")))
    assert [(one.node_id, one.host, one.port) for one in parsed] == [(1, "10.0.0.1", 9093), (2, "::1", 9094)]
    for voter in parsed:
        home = tmp_path / "new" / f"controller-{voter.node_id}"
        identity = load_meta_properties(PosixDisk(), str(home))
        assert (identity.cluster_id, identity.node_id) == (CLUSTER, voter.node_id)
        assert identity.directory_id == voter.directory_id
        assert strict(open_log(PosixDisk(), str(home)))[-1].data == strict(found.log)[-1].data
    assert len({one.directory_id for one in parsed}) == 2


def test_a_directory_id_that_is_given_is_taken(tmp_path: Path) -> None:
    node(tmp_path, "a")
    own = uuid_to_text(b"given-directory!")
    result = run("salvage", tmp_path / "a", "--voters", f"1@h:9093:{own}", "--to", tmp_path / "n", "--json")
    assert json.loads(result.stdout)["controllerQuorumVoters"] == f"1@h:9093:{own}"


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("--voters", "1@h:1"), 2, "give both --voters"),
        (("--to", "{new}"), 2, "give both --voters"),
        (("--voters", "1@h", "--to", "{new}"), 1, "--voters has '1@h'"),
        (("--voters", "1@h:1,1@h:2", "--to", "{new}"), 1, "node 1 twice"),
        (("--voters", "1@h:1", "--to", "{node}/new"), 1, "must not change"),
        (("--voters", "1@h:1", "--to", "{new}", "--cluster-id", "x"), 1, "leave out --cluster-id"),
        (("--voters", "1@h:1", "--to", "{full}"), 1, "exists and is not empty"),
    ],
)
def test_what_cannot_be_salvaged_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, part: str
) -> None:
    node(tmp_path)
    (tmp_path / "full" / "controller-1").mkdir(parents=True)
    (tmp_path / "full" / "controller-1" / "file").touch()
    places = {"new": tmp_path / "new", "node": tmp_path / "node", "full": tmp_path / "full"}
    result = run("salvage", tmp_path / "node", *(one.format(**places) for one in arguments))
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert part in line


def test_a_log_without_identity_needs_the_cluster_id(tmp_path: Path) -> None:
    node(tmp_path)
    (tmp_path / "node" / "meta.properties").unlink()
    options = ("--voters", "1@h:1", "--to", tmp_path / "new")
    refused = run("salvage", tmp_path / "node", *options)
    assert "give --cluster-id" in refused.stderr
    assert run("salvage", tmp_path / "node", *options, "--cluster-id", CLUSTER).exit_code == 0


# --- what is no metadata log, and an identity that is damaged


def test_every_tool_but_dump_refuses_a_log_of_user_records_in_one_line(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    batches = [
        encode_batch(base_offset=at, leader_epoch=1, timestamp_ms=START_MS, values=[b"hello"])
        for at in range(9)
    ]
    (directory / f"{0:020}.log").write_bytes(b"".join(batches))
    for command in (
        ("state", directory),
        ("diff", directory, "1", "2"),
        ("history", directory),
        ("timeline", directory),
        ("why", directory, "broker/1"),
        ("bisect", directory, "--check", "all-led"),
        ("check", directory),
        ("shell", directory, "-c", "ls"),
        ("salvage", directory),
        ("repair", directory, "--drop-failing", "--dry-run"),
    ):
        result = run(*command)
        assert (result.exit_code, result.stdout) == (1, ""), command
        assert result.stderr.startswith(f"metaquorum: {directory}: is the log of a topic partition"), command
        assert result.stderr.count("\n") == 1, command


def spoil_identity(home: Path) -> None:
    path = home / "meta.properties"
    lines = [
        line if not line.startswith("cluster.id=") else "cluster.id=" for line in path.read_text().split("\n")
    ]
    path.write_text("\n".join(lines))


def test_salvage_takes_the_cluster_id_that_a_directory_lost(tmp_path: Path) -> None:
    node(tmp_path)
    spoil_identity(tmp_path / "node")
    looked = run("salvage", tmp_path / "node")
    assert looked.exit_code == 0, looked.stderr
    assert looked.stdout.splitlines()[1].split()[:2] == ["1", "3000"]
    assert "meta.properties has no cluster.id line; its log is used nevertheless" in looked.stderr
    voters = ("--voters", "1@h:1", "--to", tmp_path / "new")
    assert "give --cluster-id" in run("salvage", tmp_path / "node", *voters).stderr
    made = run("salvage", tmp_path / "node", *voters, "--cluster-id", CLUSTER)
    assert made.exit_code == 0, made.stderr
    assert load_meta_properties(PosixDisk(), str(tmp_path / "new" / "controller-1")).cluster_id == CLUSTER


def test_repair_takes_the_cluster_id_that_the_directory_lost(tmp_path: Path) -> None:
    node(tmp_path)
    spoil_identity(tmp_path / "node")
    dropping = ("repair", tmp_path / "node", "--drop", "12")
    assert run(*dropping, "--dry-run").exit_code == 0
    refused = run(*dropping, "--to", tmp_path / "new")
    assert refused.exit_code == 1
    assert "has no cluster.id line, and the new directory needs one: give --cluster-id" in refused.stderr
    made = run(*dropping, "--to", tmp_path / "new", "--cluster-id", CLUSTER)
    assert made.exit_code == 0, made.stderr
    identity = load_meta_properties(PosixDisk(), str(tmp_path / "new"))
    assert (identity.cluster_id, identity.node_id) == (CLUSTER, 3000)


def test_repair_refuses_the_id_of_another_cluster(tmp_path: Path) -> None:
    node(tmp_path)
    result = run("repair", tmp_path / "node", "--drop", "12", "--dry-run", "--cluster-id", "other")
    assert f"belongs to cluster {CLUSTER}, not other" in result.stderr
    assert result.exit_code == 1
