"""A controller alone in its quorum and a broker, with real gRPC and real files on one loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from metaquorum.broker.replica.disk_work import DirectoryFailed
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.search import ClientError
from metaquorum.config.load import load_config
from metaquorum.config.security import TlsFiles
from metaquorum.errors import ConfigError
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.network.tls import TlsMaterial
from metaquorum.node.replica import check_directories, open_replica
from metaquorum.raft.store import ReplicaStore
from metaquorum.rpc.channels import open_channel
from metaquorum.wire.messages import UnregisterBrokerRequest
from tests.topics import committed_image, create_topics, delete_topics, partitions_in, partitions_of
from tests.unit.server.certificates import certificate_files, certificates_of
from tests.unit.server.nodes import (
    Site,
    forwarded,
    new_site,
    running_broker,
    running_controller,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


async def health_is(port: int, wanted: int, tls: TlsMaterial | None = None) -> None:
    """Waits, on the service's own stream, until it says `wanted`."""
    channel = open_channel("127.0.0.1", port, tls)
    try:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        async with asyncio.timeout(60):
            async for update in stub.Watch(health_pb2.HealthCheckRequest()):
                if update.status == wanted:
                    return
    finally:
        await channel.close(None)


async def test_topics_and_brokers_from_registration_to_deletion(site: Site) -> None:
    async with running_controller(site.controller_file()):
        async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
            none_yet = await create_topics(client, [NewTopic(name="early", partitions=1)])
            assert none_yet[0].error is not ErrorCode.NONE
            async with running_broker(site.broker_file()):
                await health_is(site.broker_port, SERVING)
                made = await create_topics(
                    client,
                    [NewTopic(name="orders", partitions=3, replication_factor=1), NewTopic(name="a b")],
                )
                assert [each.error for each in made] == [
                    ErrorCode.NONE,
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                ]
                again = await create_topics(client, [NewTopic(name="orders", partitions=1)])
                assert again[0].error is ErrorCode.TOPIC_ALREADY_EXISTS

                image = await committed_image(client)
                assert [p.replicas for p in partitions_in(image, "orders")] == [(101,)] * 3
                assert [topic.name for topic in image.topics.all()] == ["orders"]
                assert dict(image.features.finalized) == {"metadata.version": 19}

                brokers = await client.list_brokers()
                assert [(b.broker_id, b.fenced) for b in brokers.brokers] == [(101, False)]
                (deleted,) = await delete_topics(client, ["orders"])
                assert deleted.error is ErrorCode.NONE
                assert not (await committed_image(client)).topics.all()
            gone = await client.list_brokers()
            assert gone.brokers[0].fenced
            unregister = UnregisterBrokerRequest(broker_id=101)
            assert (await forwarded(client, unregister)).error_code == ErrorCode.NONE
            assert (await client.list_brokers()).brokers == ()
            refused = await forwarded(client, unregister)
            assert refused.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize("which", ["its only directory", "the process"])
async def test_a_broker_that_cannot_go_on_is_fenced_by_its_last_word_and_not_by_its_sessions_end(
    site: Site, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    sessions = {"broker.session.timeout.ms": "600000"}
    async with running_controller(site.controller_file(sessions)):
        async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
            with pytest.raises(AssertionError, match=r"is offline|a bug"):
                async with running_broker(site.broker_file()) as process:
                    await health_is(site.broker_port, SERVING)
                    await create_topics(client, [NewTopic(name="orders", partitions=1)])
                    assert process.node.replicas is not None
                    (only,) = process.node.replicas._placement.directories.good_ids()
                    if which == "the process":
                        process.driver.end("stopped by a bug", failed=True)
                    else:
                        process.driver.post(DirectoryFailed(directory_id=only, reason="the disk is gone"))
                    await process.driver.wait()
            assert "the controller was notified that this broker is stopping" in caplog.text
            assert "no controller could be notified" not in caplog.text
            assert (await client.list_brokers()).brokers[0].fenced
            assert (await partitions_of(client, "orders"))[0].leader == -1
            # Its id is free: the next process need not wait for the session to end.
            async with running_broker(site.broker_file({"initial.broker.registration.timeout.ms": "20000"})):
                await health_is(site.broker_port, SERVING)


async def test_health_says_serving_while_it_leads_and_not_serving_before_it_ends(site: Site) -> None:
    statuses: list[int] = []
    serving = asyncio.Event()

    async def watch() -> None:
        channel = open_channel("127.0.0.1", site.controller_port, None)
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            async for update in stub.Watch(health_pb2.HealthCheckRequest()):
                statuses.append(update.status)
                if update.status == SERVING:
                    serving.set()
        except grpc.aio.AioRpcError:
            pass  # the process has ended
        finally:
            await channel.close(None)

    async with running_controller(site.controller_file()) as controller:
        watching = asyncio.create_task(watch())
        await asyncio.wait_for(serving.wait(), 60)
        assert controller.node.active is not None
    await asyncio.wait_for(watching, 60)
    assert statuses[-2:] == [SERVING, NOT_SERVING]


@pytest.mark.parametrize(("role", "may_vote"), [("controller", True), ("broker", False)])
def test_the_metadata_log_is_opened_as_the_configuration_says(
    site: Site, monkeypatch: pytest.MonkeyPatch, role: str, may_vote: bool
) -> None:
    opened: dict[str, Any] = {}
    store = ReplicaStore.open

    def noting(disk: Any, directory: str, log: Any, *rest: Any, **more: Any) -> ReplicaStore:
        opened.update(more, directory=directory, segment_bytes=log.segment_bytes, segment_ms=log.segment_ms)
        return store(disk, directory, log, *rest, **more)

    monkeypatch.setattr(ReplicaStore, "open", noting)
    keys = {
        "metadata.log.segment.bytes": "12345678",
        "metadata.log.segment.ms": "23456789",
        "metadata.max.retention.bytes": "34567890",
        "metadata.max.retention.ms": "45678901",
    }
    config = load_config(getattr(site, f"{role}_file")(keys), role)
    open_replica(config, check_directories(config)).store.close()
    assert (opened["directory"], opened["may_vote"]) == (str(config.metadata_log_dir), may_vote)
    assert [
        str(opened[name]) for name in ("segment_bytes", "segment_ms", "retention_bytes", "retention_ms")
    ] == [*keys.values()]


async def test_nobody_there_is_one_clear_error(site: Site) -> None:
    async with AdminClient([("127.0.0.1", site.controller_port)], timeout_ms=150) as client:
        with pytest.raises(ClientError) as caught:
            await client.list_brokers()
    line = str(caught.value)
    assert line.startswith(f"no node at 127.0.0.1:{site.controller_port} answered within 150 ms")
    assert "check that the quorum runs" in line and "\n" not in line


# ---- TLS -----------------------------------------------------------------------------------------


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    folder.mkdir()
    certificates_of(folder, "node", "client")
    certificate_files(folder, "stranger", certificate_files(folder, "other-authority", None))
    return folder


def tls_keys(folder: Path, client_auth: str) -> dict[str, str]:
    return {
        "listener.security.protocol.map": "CONTROLLER:SSL,GRPC_CONTROLLER:SSL,PLAINTEXT:SSL,GRPC:SSL",
        "ssl.keystore.location": str(folder / "node.pem"),
        "ssl.truststore.location": str(folder / "authority.crt"),
        "ssl.client.auth": client_auth,
    }


def material(folder: Path, keystore: str | None, truststore: str = "authority") -> TlsMaterial:
    return TlsMaterial.load(
        TlsFiles(
            keystore=folder / f"{keystore}.pem" if keystore else None,
            truststore=folder / f"{truststore}.crt",
        )
    )


@pytest.mark.parametrize("client_auth", ["none", "required"])
async def test_tls_and_mutual_tls_by_configuration(site: Site, certificates: Path, client_auth: str) -> None:
    keys = tls_keys(certificates, client_auth)
    address = [("127.0.0.1", site.controller_port)]
    allowed = material(certificates, "client" if client_auth == "required" else None)
    refused = [None, material(certificates, "client", "other-authority")]
    if client_auth == "required":
        refused += [material(certificates, None), material(certificates, "stranger")]
    async with running_controller(site.controller_file(keys)), running_broker(site.broker_file(keys)):
        await health_is(site.broker_port, SERVING, allowed)
        async with AdminClient(address, tls=allowed) as client:
            assert [b.broker_id for b in (await client.list_brokers()).brokers] == [101]
        for tls in refused:
            async with AdminClient(address, tls=tls, attempts_max=1) as client:
                with pytest.raises(ClientError):
                    await client.list_brokers()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("absent.pem", None, "cannot be read: No such file"),
        ("text.pem", b"no certificate", "holds no unencrypted private key in PEM form"),
        (
            "key-only.pem",
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "holds no certificate in PEM form",
        ),
        (
            "encrypted.pem",
            b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "holds no unencrypted private key",
        ),
    ],
)
def test_a_bad_keystore_is_one_clear_line(
    tmp_path: Path, name: str, content: bytes | None, text: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        TlsMaterial.load(TlsFiles(keystore=path))
    assert text in str(caught.value) and str(path) in str(caught.value)
