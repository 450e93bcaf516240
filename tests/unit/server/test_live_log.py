"""A running controller's log, copied as the log tools do: over mutual TLS, by a reader that is no replica."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.runtime.client.admin import AdminClient, ClientError
from metaquorum.runtime.client.live_log import copy_log, extend_log
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.server.nodes import new_site, running_broker, running_controller
from tests.unit.server.test_servers import SERVING, certificate_files, health_is, material, tls_keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tls"
    made.mkdir()
    authority = certificate_files(made, "authority", None)
    for name in ("node", "client"):
        certificate_files(made, name, authority)
    return made


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
                address,
                PosixDisk(),
                home,
                timeout_ms=10_000,
                tls=allowed,
                rng=random.Random(1),
                on_progress=lambda offset, target: told.append((offset, target)),
            )
            quorum = await client.describe_quorum()
        assert [one.node_id for one in quorum.observers] == [101]
        with pytest.raises(ClientError):
            await copy_log(
                address,
                PosixDisk(),
                str(tmp_path / "refused"),
                timeout_ms=300,
                tls=material(folder, None),
                rng=random.Random(1),
            )
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
        known = await copy_log(address, disk, home, timeout_ms=10_000, rng=random.Random(1))
        old = state_at(open_log(disk, home)).image
        async with AdminClient(address) as client:
            await client.create_topics([NewTopic(name="orders", partitions=3, replication_factor=1)])
        found = await extend_log(address, disk, home, known, timeout_ms=10_000, rng=random.Random(2))
        with pytest.raises(ClientError, match=r"the disk has 1 MiB free, of which 64 must stay free.*TMPDIR"):
            await copy_log(
                address,
                disk,
                str(tmp_path / "full"),
                timeout_ms=10_000,
                rng=random.Random(3),
                room=lambda: 1 << 20,
            )
        with pytest.raises(ClientError, match="now answers, but the log belongs to other"):
            await extend_log(
                address,
                disk,
                home,
                replace(found, cluster_id="other"),
                timeout_ms=10_000,
                rng=random.Random(4),
            )
    log = open_log(disk, home)
    state = state_at(log)
    assert (log.start_offset, log.end_offset) == (0, found.end_offset)
    assert found.end_offset > known.end_offset and state.problems == []
    assert [topic.name for topic in old.topics.all()] == []
    assert [topic.name for topic in state.image.topics.all()] == ["orders"]
