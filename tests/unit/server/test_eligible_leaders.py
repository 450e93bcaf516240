"""Eligible leader replicas on running servers: switched by the command line, clean stops that are proven."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import NO_LEADER, PartitionInfo
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.storage.partition.replica_directory import CLEAN_SHUTDOWN_FILE as FILE_NAME
from tests.topics import create_topics, partitions_of
from tests.unit.server.nodes import Site, new_site, running_broker, running_controller, without_data
from tests.unit.server.test_servers import SERVING, health_is

NAME = "eligible.leader.replicas.version"


async def run(site: Site, *arguments: str, code: int = 0) -> Result:
    """The command line in a thread of its own, as the cluster runs on this loop."""
    line = [*arguments, *site.bootstrap(arguments[0])]
    result = await asyncio.to_thread(CliRunner().invoke, main, line)
    assert result.exit_code == code, result.output
    return result


async def described(site: Site) -> PartitionInfo:
    """As the controller has it: no broker runs at times."""
    async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
        return (await partitions_of(client, "t"))[0]


async def led_by(site: Site, leader: int) -> PartitionInfo:
    async with asyncio.timeout(240):
        while True:
            found = await described(site)
            if found.leader == leader:
                return found


async def test_on_and_off_and_a_clean_stop_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_data(monkeypatch)  # else a replica that recovers is soon done with it
    site = new_site(tmp_path)
    marker = site.root / "broker" / FILE_NAME
    async with running_controller(site.controller_file()):
        async with running_broker(site.broker_file()):
            await health_is(site.broker_port, SERVING)
            early = await run(site, "features", "upgrade", f"{NAME}=1", code=1)
            assert "it needs metadata.version 4.0-IV1: upgrade that first" in early.output
            await run(site, "features", "upgrade", "metadata.version=4.0", f"{NAME}=1")
            shown = await run(site, "features", "describe")
            assert f"{NAME}" in shown.output
            broker = await run(site, "configs", "describe", "broker", "default")
            assert "min.insync.replicas" in broker.output
            async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
                made = await create_topics(client, [NewTopic(name="t", assignments=((101,),))])
                assert made[0].error is ErrorCode.NONE
                epoch = (await client.list_brokers()).brokers[0].epoch
            assert not marker.exists()
        # It left its leadership in order, and kept all that it had.
        gone = await led_by(site, NO_LEADER)
        assert (gone.isr, gone.elr, gone.last_known_elr) == ((), (101,), (101,))
        assert json.loads(marker.read_bytes()) == {"version": 0, "brokerEpoch": epoch}
        async with running_broker(site.broker_file()):
            back = await led_by(site, 101)
            assert (back.isr, back.elr, back.last_known_elr) == ((101,), (), ())
            assert not marker.exists()
            again = await run(site, "topics", "describe", "t")
            assert "Elr" not in again.output
        await led_by(site, NO_LEADER)
        # Nothing proves the next start: it recovers what it has.
        marker.unlink()
        async with running_broker(site.broker_file()):
            await led_by(site, 101)
            assert (await described(site)).leader_recovery_state == 1
            await run(site, "features", "downgrade", f"{NAME}=0")
            refused = await run(site, "features", "downgrade", "metadata.version=22", code=1)
            assert "could lose metadata" in refused.output


class DiskGaveUp(Exception):
    """Ends a running broker as a failure does: the process goes, and nobody is asked."""


async def test_a_broker_that_fails_leaves_no_proof_of_a_clean_stop(tmp_path: Path) -> None:
    site = new_site(tmp_path)
    marker = site.root / "broker" / FILE_NAME
    async with running_controller(site.controller_file()):
        with pytest.raises(DiskGaveUp):
            async with running_broker(site.broker_file()):
                await health_is(site.broker_port, SERVING)
                raise DiskGaveUp
        assert not marker.exists()
        async with running_broker(site.broker_file()):
            await health_is(site.broker_port, SERVING)
        assert marker.exists()
