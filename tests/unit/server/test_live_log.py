"""A running controller's log, copied as the log tools do: over mutual TLS, by a reader that is no replica."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from metadata.inspect.log import open_log
from metadata.inspect.states import state_at
from runtime.client import AdminClient, ClientError
from runtime.live_log import copy_log
from storage.posix_disk import PosixDisk
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
