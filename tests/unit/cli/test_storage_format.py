"""`metaquorum storage`: what Kafka's `kafka-storage format` writes, refusals that touch nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result

from metaquorum.cli.format_options import read_node_config
from metaquorum.clients.search import parse_bootstrap
from metaquorum.node.formatted import bootstrap_checkpoint
from metaquorum.storage.batches.batch import HEADER_BYTES, iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.storage.uuids import uuid_from_text
from tests.unit.cli.running import run

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "kafka-3.7-upgrade" / "bootstrap.checkpoint"
CLUSTER = "ycvx3IyUTJ2ANvCy7N_YyA"
OTHER_CLUSTER = "EeRffYZ4QIOTb7vyl6pGQw"
DIRECTORY_ID = "OUM-3Whd4AdHUNf9WtN5vw"


def format_one(directory: Path, *more: object) -> Result:
    return run("storage", "format", "-t", CLUSTER, "-d", directory, "--node-id", 3000, *more)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def config(path: Path, directory: Path, voter: str = f"3000@127.0.0.1:9093:{DIRECTORY_ID}") -> Path:
    path.write_text(
        "process.roles=controller\nnode.id=3000\nlisteners=CONTROLLER://127.0.0.1:9093\n"
        f"controller.quorum.voters={voter}\nlog.dirs={directory}\n"
    )
    return path


def test_the_bootstrap_checkpoint_is_kafkas_but_for_the_times() -> None:
    ours = list(iter_batches(bootstrap_checkpoint({"metadata.version": 7}, 1795234139157)))
    kafkas = list(iter_batches(GOLDEN.read_bytes()))
    assert len(ours) == len(kafkas) == 3
    for one, other in zip(ours, kafkas, strict=True):
        timeless = {"base_timestamp_ms": 0, "max_timestamp_ms": 0, "crc": 0}
        assert one.header._replace(**timeless) == other.header._replace(**timeless)  # type: ignore[arg-type]
        assert one.data[HEADER_BYTES:] == other.data[HEADER_BYTES:]


def test_the_first_batch_is_kafkas_to_the_byte() -> None:
    ours = bootstrap_checkpoint({"metadata.version": 7}, 1795234139157)
    assert ours[:83] == GOLDEN.read_bytes()[:83]


def test_a_formatted_directory_has_identity_and_bootstrap_records(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "data"
    result = format_one(directory, "--directory-id", DIRECTORY_ID)
    assert result.exit_code == 0
    assert result.output == f"formatted {directory} at 3.7-IV4, directory id {DIRECTORY_ID}\n"
    assert sorted(contents(directory)) == ["bootstrap.checkpoint", "meta.properties"]
    identity = load_meta_properties(PosixDisk(), str(directory))
    assert (identity.version, identity.cluster_id, identity.node_id) == (1, CLUSTER, 3000)
    assert identity.directory_id == uuid_from_text(DIRECTORY_ID)
    dump = run("log", "dump", "--json", directory / "bootstrap.checkpoint")
    assert [json.loads(line)["type"] for line in dump.stdout.splitlines()] == [
        "SNAPSHOT_HEADER",
        "FEATURE_LEVEL_RECORD",
        "SNAPSHOT_FOOTER",
    ]


def test_features_and_release_are_written_as_levels(tmp_path: Path) -> None:
    result = format_one(tmp_path / "d", "-r", "3.9", "-f", "transaction.version=1", "-f", "group.version=0")
    assert result.exit_code == 0
    dump = run("log", "dump", "--json", "--type", "feature-level", tmp_path / "d" / "bootstrap.checkpoint")
    assert [json.loads(line)["data"] for line in dump.stdout.splitlines()] == [
        {"name": "metadata.version", "featureLevel": 21},
        {"name": "transaction.version", "featureLevel": 1},
    ]


def test_eligible_leaders_need_a_level_that_carries_them(tmp_path: Path) -> None:
    elr = ("--feature", "eligible.leader.replicas.version=1")
    refused = format_one(tmp_path / "a", *elr)
    assert refused.exit_code == 1 and "needs metadata.version 4.0-IV1" in refused.output
    assert not (tmp_path / "a").exists()
    assert format_one(tmp_path / "a", *elr, "--release-version", "4.0").exit_code == 0
    records = [
        record.value
        for batch in iter_batches(contents(tmp_path / "a")["bootstrap.checkpoint"])
        for record in batch.records()
        if not batch.header.is_control
    ]
    assert b"eligible.leader.replicas.version" in records[1] and len(records) == 4


def test_every_directory_gets_an_id_of_its_own(tmp_path: Path) -> None:
    assert format_one(tmp_path / "a", "-d", tmp_path / "b").exit_code == 0
    ids = {load_meta_properties(PosixDisk(), str(tmp_path / name)).directory_id for name in "ab"}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["-t", CLUSTER, "--node-id", 3000], "is already formatted; use --ignore-formatted"),
        (["-t", OTHER_CLUSTER, "--node-id", 3000], f"belongs to cluster {CLUSTER}, not {OTHER_CLUSTER}"),
        (
            ["-t", OTHER_CLUSTER, "--node-id", 3000, "-g"],
            f"belongs to cluster {CLUSTER}, not {OTHER_CLUSTER}",
        ),
        (["-t", CLUSTER, "--node-id", 3001], "belongs to node 3000, not 3001"),
        (["-t", CLUSTER, "--node-id", 3001, "-g"], "belongs to node 3000, not 3001"),
    ],
)
def test_a_formatted_directory_is_refused_and_not_touched(
    tmp_path: Path, options: list[object], part: str
) -> None:
    formatted, fresh = tmp_path / "formatted", tmp_path / "fresh"
    assert format_one(formatted).exit_code == 0
    before = contents(formatted)
    result = run("storage", "format", "-d", fresh, "-d", formatted, *options)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert part in result.stderr
    assert contents(formatted) == before
    assert not fresh.exists(), "one refused directory must keep the others from being written"


def test_ignore_formatted_goes_on_with_the_others(tmp_path: Path) -> None:
    assert format_one(tmp_path / "a").exit_code == 0
    before = contents(tmp_path / "a")
    result = run(
        "storage",
        "format",
        "-t",
        CLUSTER,
        "--node-id",
        3000,
        "-d",
        tmp_path / "a",
        "-d",
        tmp_path / "b",
        "-g",
    )
    assert result.exit_code == 0
    assert contents(tmp_path / "a") == before
    assert sorted(contents(tmp_path / "b")) == ["bootstrap.checkpoint", "meta.properties"]


@pytest.mark.parametrize(
    ("options", "exit_code", "part"),
    [
        (["-t", "", "--node-id", 1], 2, "the text is empty"),
        (["-t", " blank", "--node-id", 1], 1, "' blank' is not a cluster id"),
        (["-t", "two\nlines", "--node-id", 1], 1, "is not a cluster id"),
        (["-t", "AAAAAAAAAAAAAAAAAAAAAA", "--node-id", 1], 1, "reserved"),
        (["-t", CLUSTER], 2, "give --config FILE, or --directory with --node-id"),
        (["-t", CLUSTER, "--node-id", -1], 2, "-1 is not in the range"),
        (["-t", CLUSTER, "--node-id", 1, "-r", "2.8"], 1, "'2.8' is not a release"),
        (["-t", CLUSTER, "--node-id", 1, "-r", "3.0-IV1"], 1, "'3.0-IV1' is not a release"),
        (["-t", CLUSTER, "--node-id", 1, "-f", "x"], 2, "'x' is not NAME=LEVEL"),
        (["-t", CLUSTER, "--node-id", 1, "-f", "kraft.version=1"], 1, "kraft.version=1 needs a voter set"),
        (["-t", CLUSTER, "--node-id", 1, "-f", "group.versio=1"], 1, "there is no such feature"),
        (["-t", CLUSTER, "--node-id", 1, "-f", "transaction.version=77"], 1, "supports levels 0 to 2"),
        (["-t", CLUSTER, "--node-id", 1, "--directory-id", "AAAAAAAAAAAAAAAAAAAAAQ"], 1, "reserved"),
        (["--node-id", 1], 2, "Missing option '--cluster-id'"),
    ],
)
def test_wrong_options_write_nothing(
    tmp_path: Path, options: list[object], exit_code: int, part: str
) -> None:
    result = run("storage", "format", "-d", tmp_path / "d", *options)
    assert result.exit_code == exit_code
    assert part in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "d").exists()


def test_a_foreign_directory_is_refused_and_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = format_one(tmp_path)
    assert result.exit_code == 1
    assert "is not empty (it contains notes.txt)" in result.stderr
    assert contents(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"", "has no version line"),
        (b"version=7\ncluster.id=x\nnode.id=1\n", "has version 7"),
        (b"version=1\nnode.id=1\n", "has no cluster.id line"),
        (b"version=1\ncluster.id=x\nnode.id=one\n", "has node.id=one"),
        (b"\x00\xff\x00\xfe", "has no version line"),
    ],
)
def test_an_unreadable_identity_is_refused_and_not_touched(tmp_path: Path, text: bytes, part: str) -> None:
    (tmp_path / "meta.properties").write_bytes(text)
    result = format_one(tmp_path, "-g")
    assert result.exit_code == 1
    assert part in result.stderr
    assert result.stderr.count("\n") == 1
    assert contents(tmp_path) == {"meta.properties": text}
    info = run("storage", "info", "--json", "-d", tmp_path)
    assert info.exit_code == 1
    assert part in json.loads(info.stdout)[0]["problem"]


def test_what_an_interrupted_format_left_does_not_stand_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "bootstrap.checkpoint").write_bytes(b"half")
    (tmp_path / "bootstrap.checkpoint.tmp").write_bytes(b"half")
    assert format_one(tmp_path).exit_code == 0
    assert (tmp_path / "bootstrap.checkpoint").read_bytes()[:8] == bytes(8)


def test_formatting_by_configuration_takes_a_random_id_unless_the_cluster_is_new(tmp_path: Path) -> None:
    path = config(tmp_path / "c.properties", tmp_path / "a")
    result = run("storage", "format", "-t", CLUSTER, "-c", path)
    assert result.exit_code == 0
    assert "it will only observe, not vote" in result.stderr
    identity = load_meta_properties(PosixDisk(), str(tmp_path / "a"))
    assert identity.node_id == 3000
    assert identity.directory_id != uuid_from_text(DIRECTORY_ID)

    path = config(tmp_path / "c.properties", tmp_path / "b")
    result = run("storage", "format", "-t", CLUSTER, "-c", path, "--new-cluster")
    assert (result.exit_code, result.stderr) == (0, "")
    assert load_meta_properties(PosixDisk(), str(tmp_path / "b")).directory_id == uuid_from_text(DIRECTORY_ID)


def test_new_cluster_needs_a_pinned_voter(tmp_path: Path) -> None:
    path = config(tmp_path / "c.properties", tmp_path / "a", voter="3000@127.0.0.1:9093")
    result = run("storage", "format", "-t", CLUSTER, "-c", path, "--new-cluster")
    assert result.exit_code == 1
    assert "pins no directory id for node 3000" in result.stderr
    assert not (tmp_path / "a").exists()


def test_info_shows_whose_directories_they_are(tmp_path: Path) -> None:
    assert format_one(tmp_path / "a", "--directory-id", DIRECTORY_ID).exit_code == 0
    result = run("storage", "info", "--json", "-d", tmp_path / "a")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [
        {
            "directory": str(tmp_path / "a"),
            "version": 1,
            "clusterId": CLUSTER,
            "nodeId": 3000,
            "directoryId": DIRECTORY_ID,
            "problem": None,
        }
    ]
    table = run("storage", "info", "-d", tmp_path / "a", "-d", tmp_path / "none")
    assert table.exit_code == 1
    assert "does not exist" in table.stdout
    assert DIRECTORY_ID in table.stdout


def test_directories_of_two_clusters_are_called_out(tmp_path: Path) -> None:
    assert format_one(tmp_path / "a").exit_code == 0
    assert run("storage", "format", "-t", OTHER_CLUSTER, "-d", tmp_path / "b", "--node-id", 1).exit_code == 0
    result = run("storage", "info", "-d", tmp_path / "a", "-d", tmp_path / "b")
    assert result.exit_code == 1
    assert "belong to different clusters" in result.stderr


def test_random_uuids_differ_and_are_uuids() -> None:
    texts = {run("storage", "random-uuid").stdout.strip() for _ in range(20)}
    assert len(texts) == 20
    assert all(len(uuid_from_text(text)) == 16 and not text.startswith("-") for text in texts)


def test_voters_at_ipv6_addresses_can_be_asked_whether_their_quorum_runs(tmp_path: Path) -> None:
    hosts = ("[::1]", "[2001:db8::2]", "10.0.0.3")
    voters = ",".join(f"{number}@{host}:1900{number}:{DIRECTORY_ID}" for number, host in enumerate(hosts))
    config = tmp_path / "controller.properties"
    config.write_text(
        "process.roles=controller\nnode.id=0\nlisteners=CONTROLLER://[::1]:19000\n"
        f"controller.listener.names=CONTROLLER\ncontroller.quorum.voters={voters}\nlog.dirs={tmp_path}/data\n"
    )
    others = read_node_config(str(config)).other_voters
    assert others == ("[2001:db8::2]:19001", "10.0.0.3:19002")
    assert parse_bootstrap(",".join(others)) == (("2001:db8::2", 19001), ("10.0.0.3", 19002))


CLUSTER_IDS = {
    CLUSTER: True,
    "MkU3OEVBNTcwNTJENDM2Qk": False,  # its unused bits are not zero: the most copied id on the web
    "MkU3OEVBNTcwNTJENDM2Qg": True,
    "my-cluster": False,
    "5L6g3nShT-eMCtK--X86sw==": False,
    "kafka": False,
    "a cluster": False,
    "p\u00e9rou=1:2#!\\": False,
    "x" * 300: False,
    "3Db5QLSqSZieL3rJBUUegA": True,
}


@pytest.mark.parametrize(("cluster_id", "is_drawn"), CLUSTER_IDS.items())
def test_every_cluster_id_that_kafka_stores_is_taken(tmp_path: Path, cluster_id: str, is_drawn: bool) -> None:
    """As it is, so that a node joins the cluster that has it; for a new one there is a warning."""
    directory = tmp_path / "d"
    for options, is_new in (((), True), (("-g",), False)):
        result = run("storage", "format", "-t", cluster_id, "-d", directory, "--node-id", 1, *options)
        assert result.exit_code == 0
        assert ("is not a uuid: for a new cluster, draw one" in result.stderr) == (is_new and not is_drawn)
    assert load_meta_properties(PosixDisk(), str(directory)).cluster_id == cluster_id


@pytest.mark.parametrize(
    ("release", "more", "levels"),
    [
        ("3.9", (), {}),
        ("4.0-IV0", (), {"group.version": 1}),
        ("4.0", (), {"group.version": 1, "transaction.version": 2}),
        ("4.1", (), {"group.version": 1, "transaction.version": 2, "eligible.leader.replicas.version": 1}),
        ("4.1", ("-f", "eligible.leader.replicas.version=0"), {"group.version": 1, "transaction.version": 2}),
        ("4.0", ("-f", "transaction.version=1"), {"group.version": 1, "transaction.version": 1}),
    ],
)
def test_a_release_sets_the_features_that_kafkas_release_sets(
    tmp_path: Path, release: str, more: tuple[str, ...], levels: dict[str, int]
) -> None:
    assert format_one(tmp_path / "d", "-r", release, *more).exit_code == 0
    dump = run("log", "dump", "--json", tmp_path / "d" / "bootstrap.checkpoint")
    records = [json.loads(line) for line in dump.stdout.splitlines()]
    found = {
        each["data"]["name"]: each["data"]["featureLevel"]
        for each in records
        if each["type"] == "FEATURE_LEVEL_RECORD"
    }
    found.pop("metadata.version")
    assert found == levels
