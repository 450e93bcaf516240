"""What a server says when it cannot start: one line, exit code 1, and every byte on disk as it was."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from metaquorum.broker.server import main as broker_main
from metaquorum.controller.server import main as controller_main
from metaquorum.metadata.features import MAX_METADATA_VERSION
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import (
    ControlRecord,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from metaquorum.metadata.records.types import FeatureLevelRecord, NoOpRecord
from metaquorum.raft.config import Voter
from metaquorum.raft.stored_voters import store_voters
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.known_committed import Known, KnownCommitted
from metaquorum.storage.files.meta_properties import (
    MetaProperties,
    load_meta_properties,
    note_opened,
    store_meta_properties,
)
from metaquorum.storage.files.quorum_state import QuorumState, store_quorum_state
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import random_uuid
from tests.unit.server.nodes import CLUSTER_ID, Site, formatted, new_site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


def everything_below(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def refused(capsys: pytest.CaptureFixture[str], site: Site, run: Callable[[str], int], path: Path) -> str:
    """The line with which the server refuses to start."""
    before = everything_below(site.root)
    assert run(str(path)) == 1
    assert everything_below(site.root) == before
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def filled(site: Site, *, batches: int = 3) -> Path:
    """Gives the controller a log with content; the directory of the replica."""
    replica = site.root / "controller" / "__cluster_metadata-0"
    disk = PosixDisk()
    log = SegmentedLog.open(disk, str(replica))
    for offset in range(batches):
        log.append(
            Batches.parse(
                encode_batch(
                    base_offset=offset, leader_epoch=1, timestamp_ms=1, values=[encode(NoOpRecord(), 0)]
                )
            )
        )
    log.clean_close()
    store_quorum_state(disk, str(replica), QuorumState(epoch=1, voters=(1,)))
    return replica


def not_formatted(site: Site) -> str:
    (site.root / "controller" / "meta.properties").unlink()
    return "does not exist; run `metaquorum storage format`"


def no_directory(site: Site) -> str:
    (site.root / "controller" / "meta.properties").unlink()
    (site.root / "controller").rmdir()
    return "does not exist: format it with metaquorum storage format"


def a_file_for_a_directory(site: Site) -> str:
    no_directory(site)
    (site.root / "controller").write_text("x")
    return "is a file: give a directory in log.dirs"


def another_node(site: Site) -> str:
    identity = MetaProperties(cluster_id=CLUSTER_ID, node_id=5, directory_id=random_uuid(random.Random(5)))
    store_meta_properties(PosixDisk(), str(site.root / "controller"), identity)
    return "belongs to node 5, but node.id is 1"


def a_level_from_the_future(site: Site) -> str:
    replica = site.root / "controller" / "__cluster_metadata-0"
    level = FeatureLevelRecord(name="metadata.version", feature_level=MAX_METADATA_VERSION + 1)
    data = encode_batch(base_offset=3, leader_epoch=1, timestamp_ms=1, values=[encode(level, 0)])
    with (filled(site) / "00000000000000000000.log").open("ab") as segment:
        segment.write(data)
    (replica / ".kafka_cleanshutdown").unlink(missing_ok=True)
    return "the cluster's metadata.version is 4.3-IV0, and this release knows those up to 4.2-IV1"


def future_identity(site: Site) -> str:
    (site.root / "controller" / "meta.properties").write_text("version=9\n")
    return "has version 9"


def bad_bootstrap(site: Site) -> str:
    (site.root / "controller" / "bootstrap.checkpoint").write_bytes(os.urandom(200))
    return "bootstrap.checkpoint cannot be read"


def damaged_log(site: Site) -> str:
    segment = filled(site) / "00000000000000000000.log"
    content = bytearray(segment.read_bytes())
    content[70] ^= 0xFF
    segment.write_bytes(content)
    return "00000000000000000000.log is damaged at byte 0 (offset 0)"


def damaged_quorum_state(site: Site) -> str:
    (filled(site) / "quorum-state").write_text("{}")
    return "quorum-state: is not a quorum state"


def forgotten_vote(site: Site) -> str:
    replica = filled(site)
    KnownCommitted(PosixDisk(), str(replica), Known(LogPosition(1, 3))).close(clean=True)
    (replica / "quorum-state").unlink()
    return "quorum-state: is absent beside the log"


def lost_vote_of_kafkas(site: Site) -> str:
    """It has no file that says that nothing was committed yet."""
    (filled(site) / "quorum-state").unlink()
    return "quorum-state: is absent beside the log"


def lost_log(site: Site) -> str:
    home = site.root / "controller"
    note_opened(PosixDisk(), str(home), identity_of_controller(site))
    return "__cluster_metadata-0: has no log, but this controller has opened one there"


def lost_segment(site: Site) -> str:
    """What is beside it stays."""
    (filled(site) / "00000000000000000000.log").unlink()
    lost_log(site)
    (site.root / "controller" / "__cluster_metadata-0" / "recovery-point").unlink()
    return "__cluster_metadata-0: has no log, but this controller has opened one there"


def identity_of_controller(site: Site) -> bytes:
    return load_meta_properties(PosixDisk(), str(site.root / "controller")).directory_id or b""


def kafkas_other_voters(site: Site) -> str:
    store_quorum_state(PosixDisk(), str(filled(site)), QuorumState(epoch=1, voters=(1, 2, 3)))
    return "names the nodes 1, but this quorum was started with 1, 2, 3"


def damaged_snapshot(site: Site) -> str:
    (filled(site) / "00000000000000000002-0000000001.checkpoint").write_bytes(b"nothing")
    return "00000000000000000002-0000000001.checkpoint is damaged: "


def empty_snapshot(site: Site) -> str:
    path = filled(site) / "00000000000000000002-0000000001.checkpoint"
    path.write_bytes(b"")
    return f"{path} is damaged: the snapshot ends without its footer; no byte was changed. If the log"


def other_voters(site: Site) -> str:
    started_with = [
        Voter(node_id=node_id, host="127.0.0.1", port=site.controller_port + node_id) for node_id in (1, 2)
    ]
    store_voters(PosixDisk(), str(filled(site)), started_with)
    return "names the nodes 1, but this quorum was started with 1, 2"


def another_directory_id_for_a_voter(site: Site) -> str:
    voter = Voter(node_id=1, host="127.0.0.1", port=site.controller_port, directory_id=b"\x05" * 16)
    store_voters(PosixDisk(), str(filled(site)), [voter])
    return "a voter with another disk could lose committed records; restore the old id"


def future_kraft_version_in_the_log(site: Site) -> str:
    replica = filled(site)
    log = SegmentedLog.open(PosixDisk(), str(replica))
    log.append(Batches.parse(_control_batch(log.end_offset, KRaftVersionRecord(kraft_version=2))))
    log.clean_close()
    return "00000000000000000000.log: the KRaftVersionRecord at offset 3 sets kraft.version 2"


def no_voters_in_the_checkpoint(site: Site) -> str:
    replica = filled(site)
    records = (
        SnapshotHeaderRecord(last_contained_log_timestamp=1),
        KRaftVersionRecord(kraft_version=1),
        VotersRecord(voters=()),
        SnapshotFooterRecord(),
    )
    content = b"".join(_control_batch(offset, record) for offset, record in enumerate(records))
    (replica / "00000000000000000002-0000000001.checkpoint").write_bytes(content)
    return "00000000000000000002-0000000001.checkpoint: the VotersRecord at offset 2 names no voter"


def _control_batch(offset: int, record: ControlRecord) -> bytes:
    key, value = encode_control(record)
    return encode_batch(
        base_offset=offset, leader_epoch=1, timestamp_ms=1, values=[value], keys=[key], is_control=True
    )


@pytest.mark.parametrize(
    "damage",
    [
        future_kraft_version_in_the_log,
        no_voters_in_the_checkpoint,
        other_voters,
        another_directory_id_for_a_voter,
        not_formatted,
        no_directory,
        a_file_for_a_directory,
        another_node,
        a_level_from_the_future,
        future_identity,
        bad_bootstrap,
        damaged_log,
        damaged_quorum_state,
        forgotten_vote,
        lost_vote_of_kafkas,
        lost_log,
        lost_segment,
        kafkas_other_voters,
        damaged_snapshot,
        empty_snapshot,
    ],
)
def test_a_directory_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], site: Site, damage: Callable[[Site], str]
) -> None:
    expected = damage(site)
    # The lock's file is there after the first start; what is compared is the second one.
    path = site.controller_file()
    (site.root / "controller" / ".lock").touch() if (site.root / "controller").is_dir() else None
    line = refused(capsys, site, controller_main.run, path)
    assert line.startswith("metaquorum controller: ") and expected in line


def test_a_static_voter_whose_voters_are_not_configured(
    capsys: pytest.CaptureFixture[str], site: Site
) -> None:
    voter = Voter(node_id=1, host="127.0.0.1", port=site.controller_port)
    store_voters(PosixDisk(), str(filled(site)), [voter])
    (site.root / "controller" / ".lock").touch()
    servers = {"controller.quorum.bootstrap.servers": f"127.0.0.1:{site.controller_port}"}
    path = site.controller_file(servers)
    path.write_text(
        "".join(line for line in path.read_text().splitlines(keepends=True) if "quorum.voters" not in line)
    )
    line = refused(capsys, site, controller_main.run, path)
    assert "controller.quorum.voters is missing, but this controller belongs to a quorum with static" in line


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], site: Site) -> None:
    with socket.create_server(("127.0.0.1", site.controller_port)):
        line = refused(capsys, site, controller_main.run, site.controller_file())
    assert f"cannot listen on 127.0.0.1:{site.controller_port}: Address already in use" in line


def test_a_host_that_is_not_here(capsys: pytest.CaptureFixture[str], site: Site) -> None:
    listeners = f"CONTROLLER://192.0.2.1:{site.quorum_port},GRPC_CONTROLLER://:{site.controller_port}"
    path = site.controller_file({"listeners": listeners, "allow.insecure.listeners": "true"})
    assert "cannot listen on 192.0.2.1" in refused(capsys, site, controller_main.run, path)


def test_a_directory_that_another_process_holds(capsys: pytest.CaptureFixture[str], site: Site) -> None:
    path = site.controller_file()
    lock = PosixDisk().lock(str(site.root / "controller"))
    try:
        line = refused(capsys, site, controller_main.run, path)
    finally:
        lock.release()
    assert "is in use by another running process" in line


def test_directories_of_two_clusters(capsys: pytest.CaptureFixture[str], site: Site) -> None:
    other = formatted(site.root / "other", 101, cluster_id="another-cluster-id-000")
    path = site.broker_file({"log.dirs": f"{site.root / 'broker'},{other}"})
    line = refused(capsys, site, broker_main.run, path)
    assert "belongs to cluster another-cluster-id-000" in line


def test_a_copied_directory(capsys: pytest.CaptureFixture[str], site: Site) -> None:
    copy = formatted(site.root / "copy", 101)
    path = site.broker_file({"log.dirs": f"{site.root / 'broker'},{copy}"})
    assert "have the same directory.id" in refused(capsys, site, broker_main.run, path)


def test_a_bad_configuration(capsys: pytest.CaptureFixture[str], site: Site) -> None:
    path = site.controller_file({"node.id": "7"})
    line = refused(capsys, site, controller_main.run, path)
    assert "node.id=7 is not among controller.quorum.voters (1)" in line
    assert "process.roles=controller, but a broker was started" in refused(
        capsys, site, broker_main.run, site.controller_file()
    )
