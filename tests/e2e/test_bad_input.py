"""Bad input at the start of a process: one clear line, a non-zero exit, and every byte on disk as it was.

Each case starts a copy of a node that has run and was stopped in order, with one thing wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from crc32c import crc32c

from cli.layout import free_ports
from storage.batch import BatchHeader, parse_header
from tests.e2e.cluster import Cluster, random_id
from tests.e2e.processes import run_cli

pytestmark = pytest.mark.e2e


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A copy of one stopped node: its configuration and its directory."""

    role: str
    config: Path
    data: Path
    cluster_id: str

    @property
    def log(self) -> Path:
        return self.data / "__cluster_metadata-0"

    @property
    def segment(self) -> Path:
        return self.log / "00000000000000000000.log"

    @property
    def properties(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.config.read_text().splitlines())

    def set(self, **values: str | None) -> None:
        """Changes configuration lines; `_` stands for the dots of a key, None removes the line."""
        lines = self.properties
        for name, value in values.items():
            key = name.replace("_", ".")
            lines.pop(key, None)
            if value is not None:
                lines[key] = value
        self.config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))


def fingerprint(directory: Path) -> dict[str, str]:
    """Every file below `directory` with a hash of its bytes, and every folder."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One controller and one broker with a log of some length, stopped in order."""
    with Cluster(tmp_path_factory.mktemp("bad-input"), controllers=1, brokers=1) as cluster:
        cluster.start()
        for number in range(5):
            cluster.create_topic(f"topic-{number}", partitions=20)
        assert set(cluster.stop().values()) == {0}
        yield cluster


@pytest.fixture
def make_site(stopped: Cluster, tmp_path: Path) -> Callable[[str], Site]:
    def make(role: str) -> Site:
        node = next(node for node in stopped.nodes if node.role == role)
        home = tmp_path / role
        home.mkdir()
        shutil.copytree(node.data, home / "data")
        shutil.copy(node.config, home / "node.properties")
        site = Site(
            role=role, config=home / "node.properties", data=home / "data", cluster_id=stopped.cluster_id
        )
        site.set(log_dirs=str(site.data))
        return site

    return make


@pytest.fixture
def site(make_site: Callable[[str], Site]) -> Site:
    return make_site("controller")


def refused(site: Site, *parts: str) -> str:
    """Starts the process, which must end by itself as the module says; the line."""
    before = fingerprint(site.config.parent)
    result = run_cli(site.role, "run", site.config, expect=None)
    assert result.returncode == 1, result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    for part in parts:
        assert part in lines[0]
    assert fingerprint(site.config.parent) == before
    return lines[0]


# ---- configuration


def unknown_key(site: Site) -> tuple[str, ...]:
    site.set(metadata_log_segment_byte="1000000")
    return ("metadata.log.segment.byte is not a known key", "did you mean metadata.log.segment.bytes?")


def key_of_the_other_role(site: Site) -> tuple[str, ...]:
    site.set(broker_heartbeat_interval_ms="100")
    return ("broker.heartbeat.interval.ms", "this is a controller")


def no_number(site: Site) -> tuple[str, ...]:
    site.set(metadata_max_idle_interval_ms="soon")
    return ("metadata.max.idle.interval.ms", "soon")


def not_a_voter(site: Site) -> tuple[str, ...]:
    site.set(controller_quorum_voters=f"4000@127.0.0.1:9,4001@127.0.0.1:{free_ports(1)[0]}")
    return ("node.id=3000 is not among controller.quorum.voters (4000, 4001)", "add this controller")


def voter_twice(site: Site) -> tuple[str, ...]:
    site.set(controller_quorum_voters="3000@127.0.0.1:9,3001@127.0.0.1:10,3000@127.0.0.1:11")
    return ("controller.quorum.voters has node 3000 twice", "give each voter its own id")


def voters_garbled(site: Site) -> tuple[str, ...]:
    site.set(controller_quorum_voters="localhost:9093")
    return ("controller.quorum.voters has 'localhost:9093'", "write id@host:port:directory-id")


def no_voters(site: Site) -> tuple[str, ...]:
    site.set(controller_quorum_voters=None)
    return ("controller.quorum.voters is missing",)


def key_set_twice(site: Site) -> tuple[str, ...]:
    with site.config.open("a") as file:
        file.write("node.id=3001\n")
    return ("node.id is set twice", "remove one")


def two_roles(site: Site) -> tuple[str, ...]:
    site.set(process_roles="controller,broker")
    return ("process.roles=controller,broker", "one role")


def empty_file(site: Site) -> tuple[str, ...]:
    site.config.write_bytes(b"")
    return (str(site.config), "is empty")


def no_text(site: Site) -> tuple[str, ...]:
    site.config.write_bytes(b"\xff\xfe\x00\x01" * 50)
    return (str(site.config), "UTF-8")


def a_folder(site: Site) -> tuple[str, ...]:
    site.config.unlink()
    site.config.mkdir()
    return (str(site.config), "cannot be read")


def no_file(site: Site) -> tuple[str, ...]:
    site.config.unlink()
    return (str(site.config), "cannot be read", "give the path")


@pytest.mark.parametrize(
    "spoil",
    [
        unknown_key,
        key_of_the_other_role,
        no_number,
        not_a_voter,
        voter_twice,
        voters_garbled,
        no_voters,
        key_set_twice,
        two_roles,
        empty_file,
        no_text,
        a_folder,
        no_file,
    ],
)
def test_configuration(site: Site, spoil: Callable[[Site], tuple[str, ...]]) -> None:
    refused(site, "metaquorum controller: ", *spoil(site))


def test_the_other_role_s_file(make_site: Callable[[str], Site]) -> None:
    broker = make_site("broker")
    result = run_cli("controller", "run", broker.config, expect=1)
    assert result.stderr.count("\n") == 1
    assert "process.roles=broker, but a controller was started" in result.stderr


# ---- directories


def missing(site: Site) -> tuple[str, ...]:
    shutil.rmtree(site.data)
    return (f"{site.data} does not exist", "metaquorum storage format")


def a_file(site: Site) -> tuple[str, ...]:
    shutil.rmtree(site.data)
    site.data.write_text("this is where the directory should be")
    return (f"{site.data} is a file",)


def below_a_file(site: Site) -> tuple[str, ...]:
    (site.config.parent / "file").write_text("in the way")
    site.set(log_dirs=str(site.config.parent / "file" / "data"))
    return (f"{site.config.parent / 'file' / 'data'} does not exist",)


def unformatted(site: Site) -> tuple[str, ...]:
    shutil.rmtree(site.data)
    site.data.mkdir()
    return (f"{site.data / 'meta.properties'}", "does not exist", "metaquorum storage format")


def of_another_node(site: Site) -> tuple[str, ...]:
    port = free_ports(1)[0]
    site.set(
        node_id="3001",
        listeners=f"CONTROLLER://127.0.0.1:{port}",
        controller_quorum_voters=f"3001@127.0.0.1:{port}",
    )
    return (f"{site.data} belongs to node 3000, and node.id is 3001", "correct node.id")


def identity_garbled(site: Site) -> tuple[str, ...]:
    (site.data / "meta.properties").write_bytes(b"\x00\x9f\x11\xfe" * 30)
    return (str(site.data / "meta.properties"),)


def identity_empty(site: Site) -> tuple[str, ...]:
    (site.data / "meta.properties").write_bytes(b"")
    return (str(site.data / "meta.properties"), "has no version line")


def identity_truncated(site: Site) -> tuple[str, ...]:
    path = site.data / "meta.properties"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "cluster.id" not in line))
    return (str(path), "has no cluster.id line")


def identity_from_the_future(site: Site) -> tuple[str, ...]:
    path = site.data / "meta.properties"
    path.write_text(path.read_text().replace("version=1", "version=9"))
    return (str(path), "has version 9, this release reads 0 and 1")


def quorum_state_truncated(site: Site) -> tuple[str, ...]:
    path = site.log / "quorum-state"
    path.write_bytes(path.read_bytes()[:40])
    return (str(path), "restore it from a backup")


def quorum_state_empty(site: Site) -> tuple[str, ...]:
    (site.log / "quorum-state").write_bytes(b"")
    return (str(site.log / "quorum-state"),)


def quorum_state_missing(site: Site) -> tuple[str, ...]:
    (site.log / "quorum-state").unlink()
    return (str(site.log / "quorum-state"), "is absent beside the log")


def quorum_state_from_the_future(site: Site) -> tuple[str, ...]:
    path = site.log / "quorum-state"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data_version": 7}))
    return (str(path), "7")


def bootstrap_garbled(site: Site) -> tuple[str, ...]:
    (site.data / "bootstrap.checkpoint").write_bytes(b"\x13\x37" * 60)
    return (str(site.data / "bootstrap.checkpoint"),)


def epochs_garbled(site: Site) -> tuple[str, ...]:
    (site.log / "leader-epoch-checkpoint").write_text("0\n1\nnonsense\n")
    return (str(site.log / "leader-epoch-checkpoint"),)


def recovery_point_garbled(site: Site) -> tuple[str, ...]:
    (site.log / "recovery-point").write_text("{")
    return (str(site.log / "recovery-point"),)


def second_half_of_the_log_missing(site: Site) -> tuple[str, ...]:
    data = site.segment.read_bytes()
    site.segment.write_bytes(data[: len(data) // 2])
    end = max(position for position, _ in batches(data) if position <= len(data) // 2)
    return (str(site.segment), f"is damaged at byte {end} (offset ", "restore the file from another node")


def log_missing(site: Site) -> tuple[str, ...]:
    site.segment.unlink()
    return (str(site.segment), "found no such file")


def flipped_bit_below_the_recovery_point(site: Site) -> tuple[str, ...]:
    data = bytearray(site.segment.read_bytes())
    position, header = batch_in_the_middle(data)
    data[position + 70] ^= 0x10
    site.segment.write_bytes(data)
    return (str(site.segment), f"is damaged at byte {position} (offset {header.base_offset})")


def flipped_bit_before_valid_batches(site: Site) -> tuple[str, ...]:
    """Without a recovery point (kill -9 before the first one) the valid batches behind it give it away."""
    (site.log / "recovery-point").unlink()
    return flipped_bit_below_the_recovery_point(site)


def record_from_the_future(site: Site) -> tuple[str, ...]:
    """A whole batch with a right CRC, whose record has a type that nobody knows."""
    data = bytearray(site.segment.read_bytes())
    position, header = batch_in_the_middle(data)
    # Attributes of a record, timestamp delta, offset delta, no key: then the value's length and the frame.
    value = data.index(b"\x01\x03", position + 61)  # frame version 1, type 3 (PartitionRecord)
    data[value + 1] = 99
    end = position + header.size_bytes
    data[position + 17 : position + 21] = crc32c(bytes(data[position + 21 : end])).to_bytes(4, "big")
    site.segment.write_bytes(data)
    return (str(site.segment), "record has api key 99, which this version does not know", "newer")


def batch_in_the_middle(data: bytearray) -> tuple[int, BatchHeader]:
    """A batch of several records, with others before and behind it."""
    found = [(position, header) for position, header in batches(data) if header.records_count > 10]
    return found[len(found) // 2]


def batches(data: bytes | bytearray) -> list[tuple[int, BatchHeader]]:
    """Every batch's place and header."""
    position, found = 0, []
    while position < len(data):
        header = parse_header(bytes(data), position)
        found.append((position, header))
        position += header.size_bytes
    return found


@pytest.mark.parametrize(
    "spoil",
    [
        missing,
        a_file,
        below_a_file,
        unformatted,
        of_another_node,
        identity_garbled,
        identity_empty,
        identity_truncated,
        identity_from_the_future,
        quorum_state_truncated,
        quorum_state_empty,
        quorum_state_missing,
        quorum_state_from_the_future,
        bootstrap_garbled,
        epochs_garbled,
        recovery_point_garbled,
        second_half_of_the_log_missing,
        log_missing,
        flipped_bit_below_the_recovery_point,
        flipped_bit_before_valid_batches,
        record_from_the_future,
    ],
)
def test_directory_of_a_controller(site: Site, spoil: Callable[[Site], tuple[str, ...]]) -> None:
    refused(site, "metaquorum controller: ", *spoil(site))


@pytest.mark.parametrize(
    "spoil",
    [
        missing,
        unformatted,
        identity_garbled,
        second_half_of_the_log_missing,
        flipped_bit_before_valid_batches,
    ],
)
def test_directory_of_a_broker(
    make_site: Callable[[str], Site], spoil: Callable[[Site], tuple[str, ...]]
) -> None:
    site = make_site("broker")
    refused(site, "metaquorum broker: ", *spoil(site))


def test_directories_of_two_clusters(make_site: Callable[[str], Site]) -> None:
    site = make_site("broker")
    other, other_id = site.config.parent / "other", random_id()
    run_cli("storage", "format", "--directory", other, "--node-id", "0", "--cluster-id", other_id)
    site.set(log_dirs=f"{site.data},{other}")
    refused(site, f"{other} belongs to cluster {other_id}, and {site.data} to {site.cluster_id}")


def test_a_directory_and_its_copy(make_site: Callable[[str], Site]) -> None:
    site = make_site("broker")
    copy = site.config.parent / "copy"
    shutil.copytree(site.data, copy)
    site.set(log_dirs=f"{site.data},{copy}")
    refused(site, "two of log.dirs have the same directory.id", "format it anew")


def test_a_port_in_use(site: Site) -> None:
    port = int(site.properties["listeners"].rsplit(":", 1)[1])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        refused(site, f"cannot listen on 127.0.0.1:{port}", "choose another port in `listeners`")


WITHOUT_THE_RIGHT = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-linux_immutable")
"""Root writes where it likes; without this capability it is held to the permissions like anybody."""


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_a_read_only_directory(make_site: Callable[[str], Site], role: str) -> None:
    """Permissions, as another user's directory or a careless chmod has them. A root user's process is
    started without CAP_DAC_OVERRIDE, so that they count."""
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root without setpriv (util-linux) cannot be held to permissions")
        prefix = WITHOUT_THE_RIGHT
    site = make_site(role)
    paths = [site.data, *site.data.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    before = fingerprint(site.config.parent)
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        result = run_cli(role, "run", site.config, expect=1, prefix=prefix)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert result.stderr.count("\n") == 1, result.stderr
    assert str(site.data) in result.stderr and "permission denied" in result.stderr
    assert fingerprint(site.config.parent) == before


def test_a_directory_in_use(tmp_path: Path) -> None:
    """A second process on the same directory ends, and the first one goes on."""
    with Cluster(tmp_path, controllers=1, brokers=1) as cluster:
        cluster.start()
        node = cluster.controllers[0]
        second = tmp_path / "second.properties"
        port = free_ports(1)[0]
        text = node.config.read_text().replace(str(node.port), str(port))
        second.write_text(text)
        result = run_cli("controller", "run", second, expect=1)
        assert result.stderr.count("\n") == 1, result.stderr
        assert f"{node.data} is in use by another running process" in result.stderr
        cluster.create_topic("written-after-that")
        cluster.assert_no_bugs()


def test_another_cluster_s_directory_beside_a_running_quorum(tmp_path: Path) -> None:
    """Whole, of the right node and the right directory id, and of another cluster: the voters tell it so."""
    with Cluster(tmp_path, controllers=3, brokers=1) as cluster:
        cluster.start()
        cluster.create_topic("ours")
        quorum = cluster.quorum()
        node = next(node for node in cluster.controllers if node.node_id != quorum.leader_id)
        assert node.stop() == 0
        node.data.rename(node.home / "ours")
        other_id = random_id()
        identity = ["--node-id", node.node_id, "--directory-id", node.directory_id, "--cluster-id", other_id]
        run_cli("storage", "format", "--directory", node.data, *identity)
        before = fingerprint(node.data)
        node.start()
        assert node.wait_exit() == 1
        last = node.last_line()
        assert "ERROR" in last and other_id in last and "correct controller.quorum.voters" in last
        assert before.items() <= fingerprint(node.data).items()
        after = cluster.quorum()
        assert (after.leader_id, after.leader_epoch) == (quorum.leader_id, quorum.leader_epoch)
        assert cluster.topics().keys() == {"ours"}
        # Its own directory back in place, it is one of them again.
        node.data.rename(node.home / "foreign")
        (node.home / "ours").rename(node.data)
        node.start()
        cluster.wait_caught_up(node)
        cluster.assert_no_bugs()


def test_a_broker_without_a_quorum_gives_up_with_the_reason(make_site: Callable[[str], Site]) -> None:
    site = make_site("broker")
    site.set(initial_broker_registration_timeout_ms="500")
    result = run_cli("broker", "run", site.config, expect=1)
    last = result.stderr.splitlines()[-1]
    assert "ERROR broker 0: could not register within 500 ms" in last
    assert "initial.broker.registration.timeout.ms" in last
