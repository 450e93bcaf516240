"""`metaquorum storage format` with dynamic voters: the first checkpoint to the byte, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.admin import storage
from metaquorum.cli.main import main
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.node.formatted import first_checkpoint
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.storage.files.snapshots import BOOTSTRAP_SNAPSHOT
from metaquorum.storage.uuids import uuid_from_text

CLUSTER = "ycvx3IyUTJ2ANvCy7N_YyA"
IDS = ("OUM-3Whd4AdHUNf9WtN5vw", "JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A")
LISTED = ",".join(f"{at}@10.0.0.{at}:9093:{text}" for at, text in enumerate(IDS, 1))
FIRST = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


def config(path: Path, *, role: str = "controller", node_id: int = 1, **more: str) -> Path:
    listener = "CONTROLLER://127.0.0.1:19093" if role == "controller" else "PLAINTEXT://127.0.0.1:19092"
    pairs = {
        "process.roles": role,
        "node.id": str(node_id),
        "listeners": listener,
        "controller.quorum.bootstrap.servers": "127.0.0.1:19093",
        "log.dirs": f"{path}/a,{path}/b",
    } | {name.replace("__", "."): value for name, value in more.items()}
    file = path / "node.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in pairs.items() if value))
    return file


def formatted(file: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["storage", "format", "-t", CLUSTER, "-c", str(file), *options])


@pytest.fixture(autouse=True)
def short_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers at the addresses of these tests."""
    monkeypatch.setattr(storage, "_PROBE_S", 0.1)


def dumped(path: Path) -> list[dict[str, object]]:
    result = CliRunner().invoke(main, ["log", "dump", "--json", str(path)])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_first_checkpoint_is_two_control_batches_by_kafkas_schemas() -> None:
    """The values by hand from KRaftVersionRecord.json and VotersRecord.json, flexible version 0: a compact
    array's length plus one, an unsigned port, and a count of tags behind every struct."""
    directory = uuid_from_text(IDS[0])
    voter = Voter(
        voter_id=3000,
        voter_directory_id=directory,
        endpoints=(VoterEndpoint(name="CONTROLLER", host="c1", port=40_000),),
        kraft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
    )
    endpoint = b"\x0bCONTROLLER" + b"\x03c1" + struct.pack(">H", 40_000) + b"\x00"
    features = struct.pack(">hh", 0, 1) + b"\x00"
    entry = struct.pack(">i", 3000) + directory + b"\x02" + endpoint + features + b"\x00"
    expected = [
        (struct.pack(">hh", 0, 3), struct.pack(">hq", 0, 77_000) + b"\x00"),
        (struct.pack(">hh", 0, 5), struct.pack(">hh", 0, 1) + b"\x00"),
        (struct.pack(">hh", 0, 6), struct.pack(">h", 0) + b"\x02" + entry + b"\x00"),
        (struct.pack(">hh", 0, 4), struct.pack(">h", 0) + b"\x00"),
    ]
    batches = list(iter_batches(first_checkpoint((voter,), timestamp_ms=77_000)))
    records = [record for batch in batches for record in batch.records()]
    assert [(record.key, record.value) for record in records] == expected
    assert [batch.header.base_offset for batch in batches] == [0, 3]
    for batch in batches:
        assert batch.header.is_control and batch.header.leader_epoch == 0
        assert batch.header.base_timestamp_ms == batch.header.max_timestamp_ms == 77_000


def test_standalone_makes_this_controller_the_only_voter(tmp_path: Path) -> None:
    result = formatted(config(tmp_path), "--standalone", "--json")
    assert result.exit_code == 0, result.output
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert (first["voters"], second["voters"]) == ([1], [])
    own_id = first["directoryId"]
    header, version, voters, footer = dumped(tmp_path / "a" / FIRST)
    assert [one["type"] for one in (header, version, voters, footer)] == [
        *("SNAPSHOT_HEADER", "KRAFT_VERSION", "KRAFT_VOTERS", "SNAPSHOT_FOOTER")
    ]
    assert version["data"] == {"version": 0, "kRaftVersion": 1}
    assert voters["data"] == {
        "version": 0,
        "voters": [
            {
                "voterId": 1,
                "voterDirectoryId": own_id,
                "endpoints": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 19093}],
                "kRaftVersionFeature": {"minSupportedVersion": 0, "maxSupportedVersion": 1},
            }
        ],
    }
    assert not (tmp_path / "b" / "__cluster_metadata-0").exists()
    levels = dumped(tmp_path / "a" / "bootstrap.checkpoint")[1:-1]
    assert [one["data"] for one in levels] == [{"name": "metadata.version", "featureLevel": 21}]
    content = (tmp_path / "a" / FIRST).read_bytes()
    image = load_snapshot(list(iter_batches(content)), position=BOOTSTRAP_SNAPSHOT)
    assert image.topics == MetadataImage().topics and image.provenance.offset == 0


def test_every_initial_controller_writes_the_same_set_and_takes_its_own_id(tmp_path: Path) -> None:
    contents = []
    for node_id in (1, 2, 3):
        home = tmp_path / str(node_id)
        home.mkdir()
        result = formatted(config(home, node_id=node_id, metadata__log__dir=f"{home}/b"), "-I", LISTED)
        assert result.exit_code == 0, result.output
        assert "first voters 1, 2, 3 (kraft.version 1)" in result.stdout
        identity = load_meta_properties(PosixDisk(), str(home / "b"))
        assert identity.directory_id == uuid_from_text(IDS[node_id - 1])
        contents.append([one["data"] for one in dumped(home / "b" / FIRST)[1:3]])
        assert not (home / "a" / "__cluster_metadata-0").exists()
    assert contents[0] == contents[1] == contents[2]
    hosts = [(voter["voterId"], voter["endpoints"][0]["host"]) for voter in contents[0][1]["voters"]]  # type: ignore[index]
    assert hosts == [(1, "10.0.0.1"), (2, "10.0.0.2"), (3, "10.0.0.3")]


def test_a_node_that_joins_gets_no_voter_set(tmp_path: Path) -> None:
    result = formatted(config(tmp_path), "--no-initial-controllers", "-f", "kraft.version=1")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        *("bootstrap.checkpoint", "meta.properties")
    ]
    levels = dumped(tmp_path / "a" / "bootstrap.checkpoint")[1:-1]
    assert [one["data"] for one in levels] == [{"name": "metadata.version", "featureLevel": 21}]


def test_a_broker_may_have_the_set_as_an_observer(tmp_path: Path) -> None:
    result = formatted(config(tmp_path, role="broker", node_id=101), "-I", LISTED)
    assert result.exit_code == 0, result.output
    assert len(dumped(tmp_path / "a" / FIRST)) == 4
    assert load_meta_properties(PosixDisk(), str(tmp_path / "a")).directory_id not in map(uuid_from_text, IDS)


def test_an_interrupted_format_does_not_stand_in_the_way(tmp_path: Path) -> None:
    left = tmp_path / "a" / "__cluster_metadata-0"
    left.mkdir(parents=True)
    (left / "00000000000000000000-0000000000.checkpoint.part").write_bytes(b"half")
    assert formatted(config(tmp_path), "-s").exit_code == 0
    assert sorted(path.name for path in left.iterdir()) == ["00000000000000000000-0000000000.checkpoint"]


def test_a_log_is_no_leftover(tmp_path: Path) -> None:
    left = tmp_path / "a" / "__cluster_metadata-0"
    left.mkdir(parents=True)
    (left / "00000000000000000000.log").write_bytes(b"records")
    result = formatted(config(tmp_path), "-s")
    assert (result.exit_code, (left / "00000000000000000000.log").read_bytes()) == (1, b"records")
    assert "is not empty (it contains __cluster_metadata-0)" in result.stderr


STATIC = {"controller__quorum__voters": f"1@127.0.0.1:19093:{IDS[0]}"}


@pytest.mark.parametrize(
    ("more", "options", "exit_code", "part"),
    [
        ({}, [], 1, "controller.quorum.voters is not set; give --standalone"),
        ({}, ["-s", "-N"], 2, "give one of --standalone"),
        ({}, ["-s", "-f", "kraft.version=0"], 1, "kraft.version=0 means static voters"),
        ({}, ["-N", "-f", "kraft.version=0"], 1, "leave out --no-initial-controllers"),
        (STATIC, ["-f", "kraft.version=1"], 1, "kraft.version=1 needs a voter set"),
        (STATIC, ["-s"], 1, "controller.quorum.voters makes the voters static; leave out --standalone"),
        (STATIC, ["-I", LISTED], 1, "leave out --initial-controllers"),
        ({}, ["-s", "--new-cluster"], 2, "--new-cluster is for static voters"),
        ({}, ["-s", "-f", "kraft.version=2"], 1, "supports levels 0 to 1"),
        ({}, ["-s", "-r", "3.8"], 1, "kraft.version=1 needs metadata.version 3.9-IV0"),
        ({"node__id": "9"}, ["-I", LISTED], 1, "node 9 is not among --initial-controllers (1, 2, 3)"),
        ({}, ["-I", ""], 2, "the text is empty"),
        ({}, ["-I", ","], 1, "--initial-controllers is empty"),
        ({}, ["-I", "1@a:1"], 1, "1@a:1 without a directory id"),
        ({}, ["-I", "1@a:1:AAAAAAAAAAAAAAAAAAAAAQ"], 1, "with the reserved id AAAAAAAAAAAAAAAAAAAAAQ"),
        ({}, ["-I", f"1@a:1:{IDS[0]},2@b:1:{IDS[0]}"], 1, "has a directory id twice"),
        ({}, ["-I", f"1@a:1:{IDS[0]},1@b:1:{IDS[1]}"], 1, "--initial-controllers has node 1 twice"),
        ({}, ["-I", "one"], 1, "--initial-controllers has 'one': write id@host:port:directory-id"),
        ({}, ["-I", f"1@a:70000:{IDS[0]}"], 1, "a port is a number from 1 to 65535"),
        (
            {},
            ["-I", LISTED, "--directory-id", IDS[0], "--directory-id", IDS[1]],
            2,
            "has this directory's id",
        ),
        (
            {"listeners": "CONTROLLER://0.0.0.0:9093"},
            ["-s"],
            1,
            "0.0.0.0:9093 cannot be advertised",
        ),
        (
            {"controller__quorum__bootstrap__servers": ""},
            ["-s"],
            1,
            "controller.quorum.voters is missing: name every controller there, or",
        ),
        (
            {"controller__quorum__bootstrap__servers": "here"},
            ["-s"],
            1,
            "controller.quorum.bootstrap.servers has 'here': write host:port",
        ),
    ],
)
def test_what_does_not_go_together_writes_nothing(
    tmp_path: Path, more: dict[str, str], options: list[str], exit_code: int, part: str
) -> None:
    result = formatted(config(tmp_path, **more), *options)
    assert (result.exit_code, result.stderr.count("\n")) == (exit_code, 1), result.output
    assert part in result.stderr
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()


def test_standalone_is_for_controllers(tmp_path: Path) -> None:
    for arguments in (
        ["-c", str(config(tmp_path, role="broker", node_id=101))],
        ["-d", str(tmp_path / "a"), "--node-id", "1"],
    ):
        result = CliRunner().invoke(main, ["storage", "format", "-t", CLUSTER, "-s", *arguments])
        assert result.exit_code == 2
        assert "--standalone needs --config with the configuration file of a controller" in result.stderr
