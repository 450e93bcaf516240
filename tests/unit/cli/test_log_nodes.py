"""PATH as a directory of several nodes, several paths, or an archive of those."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest

from metaquorum.cli.log.input import source as log_archive
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.cli.running import run_log as run
from tests.unit.metadata.made_logs import START_MS, STORY, make_node


@pytest.fixture
def quorum(tmp_path: Path) -> Path:
    home = tmp_path / "quorum"
    for at, story in enumerate((STORY[:9], STORY, STORY)):
        node(home / f"controller-{3000 + at}", story, 3000 + at)
    return home


def node(home: Path, story: list[object] = STORY, node_id: int = 3000, **more: str) -> NodeFiles:  # type: ignore[assignment]
    return make_node(PosixDisk(), story, home=str(home), node_id=node_id, **more)  # type: ignore[arg-type]


def packed(source: Path, target: Path, mode: str) -> Path:
    with tarfile.open(target, mode) as archive:
        archive.add(source, arcname=source.name)
    return target


@pytest.mark.parametrize(("name", "mode"), [("q.tar", "w"), ("q.tgz", "w:gz"), ("q.tar.xz", "w:xz")])
def test_an_archive_of_nodes_is_read_as_their_directory(
    quorum: Path, tmp_path: Path, name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "private"))
    (tmp_path / "private").mkdir()
    archive = packed(quorum, tmp_path / name, mode)
    for command in (("timeline",), ("check",), ("state", "topic/orders"), ("why", "topic/orders/1")):
        there = run(command[0], quorum, *command[1:])
        here = run(command[0], archive, *command[1:])
        assert there.exit_code == here.exit_code == 0, here.stderr
        assert here.stdout.replace(f"{archive}/quorum", str(quorum)) == there.stdout
    assert os.listdir(tmp_path / "private") == []


def test_one_gzipped_segment_is_read_by_its_name(quorum: Path, tmp_path: Path) -> None:
    segment = quorum / "controller-3001" / "__cluster_metadata-0" / f"{0:020}.log"
    zipped = tmp_path / f"{0:020}.log.gz"
    zipped.write_bytes(gzip.compress(segment.read_bytes()))
    assert run("timeline", zipped).stdout == run("timeline", segment).stdout
    other = tmp_path / "segment.gz"
    shutil.copy(zipped, other)
    refused = run("timeline", other)
    assert refused.exit_code == 1
    assert "its name is not a segment's or checkpoint's name plus .gz" in refused.stderr


def test_the_nodes_are_told_and_compared(quorum: Path) -> None:
    result = run("timeline", quorum)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "metaquorum: 3 nodes as one log: offsets 0 to 14; all of them reach offset 12; "
        "controller-3000 is 2 behind",
    ]
    assert "topic deleted" in result.stdout
    single = run("timeline", quorum / "controller-3001")
    assert (single.stderr, single.stdout) == ("", result.stdout)


def test_several_paths_are_what_their_directory_is(quorum: Path) -> None:
    nodes = sorted(quorum.iterdir())
    assert run("timeline", *nodes).stdout == run("timeline", quorum).stdout
    assert run("check", *nodes).stdout == run("check", quorum).stdout


def test_a_command_over_one_log_says_which_node_it_took(quorum: Path) -> None:
    result = run("state", quorum, "topic", "--json")
    assert result.exit_code == 0
    assert "this is the log of controller-3001, which has the newest end" in result.stderr
    assert list(json.loads(result.stdout)) == ["orders"]


def test_damage_of_one_node_is_made_good_and_told(quorum: Path) -> None:
    segment = quorum / "controller-3001" / "__cluster_metadata-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[100 + 64] ^= 1
    segment.write_bytes(data)
    result = run("timeline", quorum)
    assert result.exit_code == 1
    assert "controller-3001 has no offset 1: read from controller-3000" in result.stderr
    told = [line for line in result.stdout.splitlines(keepends=True) if "replica damaged" not in line]
    assert "".join(told) == run("timeline", quorum / "controller-3002").stdout
    place = ("--from", "1", "--to", "2", "--entity", "controller/3001", "--severity", "warning", "--json")
    (event,) = [json.loads(line) for line in run("timeline", quorum, *place).stdout.splitlines()]
    assert (event["kind"], event["offset"], event["severity"]) == ("replica damaged", 1, "warning")
    assert "damaged" not in run("timeline", quorum, "--from", "2").stdout
    assert "damaged" not in run("timeline", quorum, "--severity", "critical").stdout
    checked = run("check", quorum, "--json")
    report = json.loads(checked.stdout)
    assert report["nodes"]["nodes"][1]["lost"] == [{"fromOffset": 1, "toOffset": 2, "by": "controller-3000"}]
    assert report["logs"][-1]["path"] == "3 nodes as one log"
    assert report["logs"][-1]["endOffset"] == 15
    assert checked.exit_code == 1


def test_nodes_of_two_clusters_are_refused_with_their_names(tmp_path: Path) -> None:
    node(tmp_path / "q" / "a")
    node(tmp_path / "q" / "b", cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
    for command in (("timeline",), ("state",), ("why", "broker/1")):
        result = run(command[0], tmp_path / "q", *command[1:])
        assert result.exit_code == 1
        assert "nodes of 2 clusters: 3Db5QLSqSZieL3rJBUUegA (a), AAAAAAAAAAAAAAAAAAAAAA (b)" in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_directory_of_archives_is_a_directory_of_nodes(quorum: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for home in quorum.iterdir():
        packed(home, kept / f"{home.name}.tgz", "w:gz")
    assert run("timeline", kept).stdout == run("timeline", quorum).stdout


def test_the_data_of_partitions_stays_in_the_archive(quorum: Path, tmp_path: Path) -> None:
    partition = quorum / "controller-3001" / "orders-0"
    partition.mkdir()
    user = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=START_MS, values=[b"x" * 5000])
    (partition / f"{0:020}.log").write_bytes(user * 1000)
    directory = tmp_path / "out"
    directory.mkdir()
    log_archive._unpack(str(packed(quorum, tmp_path / "q.tgz", "w:gz")), str(directory))
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert not any("orders-0" in str(path) for path in files)
    assert sum(path.name == f"{0:020}.log" for path in files) == 3


def hostile(tmp_path: Path, member: tarfile.TarInfo, content: bytes = b"") -> Path:
    path = tmp_path / "hostile.tar"
    member.size = len(content)
    with tarfile.open(path, "w") as archive:
        archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("../__cluster_metadata-0/x", tarfile.REGTYPE, "a path outside the archive"),
        ("/etc/__cluster_metadata-0/x", tarfile.REGTYPE, "a path outside the archive"),
        ("a/../../x", tarfile.REGTYPE, "a path outside the archive"),
        ("n/__cluster_metadata-0/00000000000000000000.log", tarfile.SYMTYPE, "holds a link"),
        ("n/__cluster_metadata-0", tarfile.SYMTYPE, "holds a link"),
        ("n/x", tarfile.LNKTYPE, "holds a link"),
        ("n/x", tarfile.CHRTYPE, "neither a file nor a directory"),
        ("n/x", tarfile.FIFOTYPE, "neither a file nor a directory"),
    ],
)
def test_an_archive_that_would_reach_elsewhere_is_refused(
    tmp_path: Path, name: str, kind: bytes, told: str
) -> None:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = "/etc/passwd"
    result = run("state", hostile(tmp_path, member))
    assert (result.exit_code, result.stdout) == (1, "")
    assert told in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["hostile.tar"]


def test_an_archive_that_does_not_fit_is_refused_before_it_is_unpacked(
    quorum: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = packed(quorum, tmp_path / "q.tgz", "w:gz")
    monkeypatch.setattr(log_archive, "SPARE_BYTES", 1 << 60)
    assert "set TMPDIR to a directory on a larger disk" in run("state", archive).stderr
    monkeypatch.setattr(log_archive, "SPARE_BYTES", 0)
    monkeypatch.setattr(log_archive, "MAX_BYTES", 10)
    assert "unpack it and give the directory" in run("state", archive).stderr


@pytest.mark.parametrize("cut", [0.01, 0.3, 0.8])
def test_half_an_archive_is_one_line(quorum: Path, tmp_path: Path, cut: float) -> None:
    archive = packed(quorum, tmp_path / "q.tgz", "w:gz")
    data = archive.read_bytes()
    archive.write_bytes(data[: int(cut * len(data))])
    result = run("state", archive)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert str(archive) in result.stderr


def test_an_archive_without_a_metadata_log_says_so(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "readme.txt").write_text("hello")
    result = run("state", packed(tmp_path / "docs", tmp_path / "d.tar", "w"))
    assert "holds no metadata log; pack a node's directory" in result.stderr


def test_a_path_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    result = run("state", tmp_path / "absent")
    assert result.stderr == f"metaquorum: {tmp_path}/absent does not exist; check the path\n"


@pytest.mark.parametrize("name", ["kafka-3.3-three-nodes-lagging", "kafka-3.7-three-nodes-lagging"])
def test_recorded_quorums_are_one_log(shared_data: Path, name: str) -> None:
    result = run("timeline", shared_data / "kraft-wild" / name)
    assert result.exit_code == 0
    assert result.stderr.startswith("metaquorum: 3 nodes as one log: offsets 0 to ")
    assert result.stderr.count(" behind") in (1, 2)
