"""A running controller's log, copied as the log tools do: over mutual TLS, by a reader that is no replica."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from metaquorum.clients.kafka.live_log import LiveSource, LogSpool, copy_log
from metaquorum.clients.kafka.login import ClientSecurity
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.search import ClientError
from metaquorum.config.security import TlsFiles
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.storage.disk.posix import PosixDisk
from tests.topics import create_topics
from tests.unit.server.certificates import certificates_of
from tests.unit.server.nodes import new_site, running_broker, running_controller
from tests.unit.server.test_servers import SERVING, health_is, material, tls_keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tls"
    made.mkdir()
    certificates_of(made, "node", "client")
    return made


def source(address: list[tuple[str, int]], folder: Path, name: str | None) -> LiveSource:
    files = TlsFiles(
        keystore=None if name is None else folder / f"{name}.pem", truststore=folder / "authority.pem"
    )
    return LiveSource(addresses=address, timeout_ms=10_000, security=ClientSecurity(tls=files))


async def test_a_log_is_copied_over_mutual_tls_and_the_reader_is_not_listed(
    folder: Path, tmp_path: Path
) -> None:
    site = new_site(tmp_path / "site")
    keys = tls_keys(folder, "required")
    address = [("127.0.0.1", site.controller_port)]
    allowed = material(folder, "client")
    home, told = str(tmp_path / "copy"), list[tuple[int, int]]()
    async with running_controller(site.controller_file(keys)), running_broker(site.broker_file(keys)):
        await health_is(site.broker_port, SERVING, allowed)
        async with AdminClient(address, tls=allowed) as client:
            assert [one.broker_id for one in (await client.list_brokers()).brokers] == [101]
            found = await copy_log(
                source(address, folder, "client"),
                LogSpool(PosixDisk(), home),
                rng=random.Random(1),
                on_progress=lambda offset, target: told.append((offset, target)),
            )
            quorum = await client.describe_quorum()
        assert [one.node_id for one in quorum.observers] == [101]
        with pytest.raises(ClientError):
            refused = LogSpool(PosixDisk(), str(tmp_path / "refused"))
            await copy_log(source(address, folder, None), refused, rng=random.Random(1))
    log = open_log(PosixDisk(), home)
    assert (log.start_offset, log.end_offset) == (0, found.end_offset)
    assert told[-1][0] == found.end_offset
    assert found.snapshot is None
    assert log.identity is not None
    assert (log.identity.cluster_id, log.identity.node_id) == (found.cluster_id, found.leader_id)
    state = state_at(log)
    assert state.problems == []
    assert 101 in dict(state.image.brokers.items())


async def test_a_copy_is_extended_by_what_was_committed_since(tmp_path: Path) -> None:
    site = new_site(tmp_path / "site")
    address = [("127.0.0.1", site.controller_port)]
    disk, home = PosixDisk(), str(tmp_path / "copy")

    async with running_controller(site.controller_file()), running_broker(site.broker_file()):
        await health_is(site.broker_port, SERVING)
        plain = LiveSource(addresses=address, timeout_ms=10_000)
        known = await copy_log(plain, LogSpool(disk, home), rng=random.Random(1))
        old = state_at(open_log(disk, home)).image
        async with AdminClient(address) as client:
            await create_topics(client, [NewTopic(name="orders", partitions=3, replication_factor=1)])
        spool = LogSpool(disk, home, copied=known)
        found = await copy_log(plain, spool, rng=random.Random(2), copied=known)
        with pytest.raises(ClientError, match=r"the disk has 1 MiB free, of which 64 must stay free.*TMPDIR"):
            full = LogSpool(disk, str(tmp_path / "full"), room=lambda: 1 << 20)
            await copy_log(plain, full, rng=random.Random(3))
        with pytest.raises(ClientError, match="now answers, but the log belongs to other"):
            other = replace(found, cluster_id="other")
            await copy_log(plain, LogSpool(disk, home, copied=other), rng=random.Random(4), copied=other)
    log = open_log(disk, home)
    state = state_at(log)
    assert (log.start_offset, log.end_offset) == (0, found.end_offset)
    assert found.end_offset > known.end_offset and state.problems == []
    assert [topic.name for topic in old.topics.all()] == []
    assert [topic.name for topic in state.image.topics.all()] == ["orders"]
