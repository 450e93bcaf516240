"""Bad input at the start of a process: one clear line, a non-zero exit code, and every byte on disk
unchanged.

Each case starts a copy of a node that has run and was shut down cleanly, with one thing wrong.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metaquorum.node.local_nodes import free_ports
from tests.e2e import spoil
from tests.e2e.cluster import Cluster, random_id
from tests.e2e.processes import run_cli
from tests.e2e.spoil import Site

pytestmark = pytest.mark.e2e


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
    """One controller and one broker with a log of some length, shut down cleanly."""
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
    """Starts the process, which must end by itself as the module says; returns the line."""
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


@pytest.mark.parametrize(
    "spoil",
    [
        spoil.unknown_key,
        spoil.no_number,
        spoil.not_a_voter,
        spoil.voter_twice,
        spoil.voters_garbled,
        spoil.no_voters,
        spoil.key_set_again,
        spoil.two_roles,
        spoil.empty_file,
        spoil.no_text,
        spoil.a_folder,
        spoil.no_file,
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


@pytest.mark.parametrize(
    "spoil",
    [
        spoil.missing,
        spoil.a_file,
        spoil.below_a_file,
        spoil.unformatted,
        spoil.of_another_node,
        spoil.identity_garbled,
        spoil.identity_empty,
        spoil.identity_truncated,
        spoil.identity_from_the_future,
        spoil.quorum_state_truncated,
        spoil.quorum_state_empty,
        spoil.quorum_state_missing,
        spoil.quorum_state_from_the_future,
        spoil.bootstrap_garbled,
        spoil.recovery_point_garbled,
        spoil.second_half_of_the_log_missing,
        spoil.log_missing,
        spoil.flipped_bit_below_the_recovery_point,
        spoil.flipped_bit_before_valid_batches,
        spoil.record_from_the_future,
    ],
)
def test_directory_of_a_controller(site: Site, spoil: Callable[[Site], tuple[str, ...]]) -> None:
    refused(site, "metaquorum controller: ", *spoil(site))


@pytest.mark.parametrize(
    "spoil",
    [
        spoil.missing,
        spoil.unformatted,
        spoil.identity_garbled,
        spoil.second_half_of_the_log_missing,
        spoil.flipped_bit_before_valid_batches,
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
    refused(site, f"{other} belongs to cluster {other_id}, but {site.data} to {site.cluster_id}")


def test_a_directory_and_its_copy(make_site: Callable[[str], Site]) -> None:
    site = make_site("broker")
    copy = site.config.parent / "copy"
    shutil.copytree(site.data, copy)
    site.set(log_dirs=f"{site.data},{copy}")
    refused(site, f"{copy} have the same directory.id", "reformat it")


def test_a_port_in_use(site: Site) -> None:
    port = int(site.properties["listeners"].rsplit(":", 1)[1])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        refused(site, f"cannot listen on 127.0.0.1:{port}", "choose another port in `listeners`")


WITHOUT_THE_RIGHT = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-linux_immutable")
"""Root may write anywhere; without this capability permissions apply to it as to any user."""


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_a_read_only_directory(make_site: Callable[[str], Site], role: str) -> None:
    """Permissions of another user's directory, or after a careless chmod. A root user's process is started
    without CAP_DAC_OVERRIDE, so that they apply."""
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


def under_permissions() -> tuple[str, ...]:
    """What runs a command so that permissions apply to it; skips where that is impossible."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root without setpriv (util-linux) cannot be held to permissions")
    return WITHOUT_THE_RIGHT


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("mode", [0o555, 0o000])
@pytest.mark.parametrize("words", [("storage", "format"), ("local", "up")], ids=" ".join)
def test_a_volume_that_this_user_cannot_write(
    tmp_path: Path, words: tuple[str, ...], mode: int, made: bool
) -> None:
    """The volume itself, and a directory below it."""
    volume = tmp_path / "volume"
    volume.mkdir()
    where = volume if made else volume / "data"
    more = () if words[0] == "local" else ("--node-id", "1", "--cluster-id", random_id())
    prefix = under_permissions()
    volume.chmod(mode)
    try:
        result = run_cli(*words, "--directory", where, *more, expect=1, prefix=prefix)
    finally:
        volume.chmod(0o700)
    assert result.stderr.count("\n") == 1, result.stderr
    assert str(volume) in result.stderr and "permission denied" in result.stderr.lower()
    assert "format it" not in result.stderr and list(volume.iterdir()) == []


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_a_directory_that_this_user_cannot_read(make_site: Callable[[str], Site], role: str) -> None:
    """It may hold the log of years: nobody is told to format it."""
    prefix = under_permissions()
    site = make_site(role)
    before = fingerprint(site.config.parent)
    site.data.chmod(0)
    try:
        result = run_cli(role, "run", site.config, expect=1, prefix=prefix)
    finally:
        site.data.chmod(0o700)
    assert result.stderr.count("\n") == 1, result.stderr
    assert str(site.data) in result.stderr and "permission denied" in result.stderr
    assert "format" not in result.stderr and fingerprint(site.config.parent) == before


RESERVED_PORT = 93
UNPRIVILEGED_FROM = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_a_port_that_the_system_reserves(make_site: Callable[[str], Site], role: str) -> None:
    if not UNPRIVILEGED_FROM.exists() or int(UNPRIVILEGED_FROM.read_text()) <= RESERVED_PORT:
        pytest.skip("this system reserves no ports, or does not say which")
    prefix: tuple[str, ...] = ()
    if under_permissions():
        prefix = ("setpriv", "--bounding-set=-net_bind_service")
    site = make_site(role)
    port = int(site.properties["listeners"].split(",")[0].rsplit(":", 1)[1])
    text = site.config.read_text().replace(f":{port}", f":{RESERVED_PORT}")
    site.config.write_text(text)
    result = run_cli(role, "run", site.config, expect=1, prefix=prefix)
    assert result.stderr.count("\n") == 1, result.stderr
    assert f"cannot listen on 127.0.0.1:{RESERVED_PORT}" in result.stderr
    assert "reserves the port" in result.stderr and "stop the process" not in result.stderr


def test_a_directory_in_use(tmp_path: Path) -> None:
    """A second process on the same directory exits, and the first one continues."""
    with Cluster(tmp_path, controllers=1, brokers=1) as cluster:
        cluster.start()
        node = cluster.controllers[0]
        second = tmp_path / "second.properties"
        text = node.config.read_text()
        for taken, port in zip((node.port, node.kafka_port), free_ports(2), strict=True):
            text = text.replace(str(taken), str(port))
        second.write_text(text)
        result = run_cli("controller", "run", second, expect=1)
        assert result.stderr.count("\n") == 1, result.stderr
        assert f"{node.data} is in use by another running process" in result.stderr
        cluster.create_topic("written-after-that")
        cluster.assert_no_bugs()


def test_another_cluster_s_directory_beside_a_running_quorum(tmp_path: Path) -> None:
    """Intact, with the right node id and directory id, but of another cluster: the voters report that."""
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
        assert "ERROR" in last and other_id in last and "controller.quorum.voters" in last
        assert before.items() <= fingerprint(node.data).items()
        after = cluster.quorum()
        assert (after.leader_id, after.leader_epoch) == (quorum.leader_id, quorum.leader_epoch)
        assert cluster.topics().keys() == {"ours"}
        # With its own directory restored, it joins them again.
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
