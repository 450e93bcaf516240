"""Fetches from a broker whose TLS does not fit: the follower's log says why, once."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from metaquorum.broker.replica.events import DataEvent, PeerFetchFailed, SendFetch
from metaquorum.broker.server.data.peers import PeerFetches
from metaquorum.metadata.requests.data import FetchRequest
from metaquorum.runtime.rpc.channels import TlsMaterial, bind, new_server
from tests.unit.server.test_servers import certificate_files, material


@pytest.mark.parametrize(
    ("authority", "problem"),
    [
        (None, "it speaks TLS, and we do not"),
        ("stranger", "its certificate is not accepted: self-signed certificate"),
    ],
)
async def test_a_leader_whose_tls_does_not_fit_is_named_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, authority: str | None, problem: str
) -> None:
    caplog.set_level(logging.WARNING)
    for name in ("leader", "stranger"):
        certificate_files(tmp_path, name, None)
    server = new_server()
    port = bind(server, "127.0.0.1", 0, material(tmp_path, "leader", "leader"))
    await server.start()
    reports: asyncio.Queue[DataEvent] = asyncio.Queue()
    ours: TlsMaterial | None = material(tmp_path, None, authority) if authority else None
    fetches = PeerFetches(reports.put_nowait, lambda effect: ours, message_max_bytes=1_000_000)
    request = FetchRequest(replica_id=1, max_wait_ms=0, min_bytes=0, max_bytes=1, partitions=())
    try:
        async with asyncio.timeout(60):
            while not caplog.messages:
                fetches.send(
                    SendFetch(
                        target=7,
                        host="127.0.0.1",
                        port=port,
                        correlation_id=1,
                        request=request,
                        timeout_ms=30_000,
                    )
                )
                assert isinstance(await reports.get(), PeerFetchFailed)
    finally:
        await fetches.close()
        await server.stop(None)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"broker 7 at 127.0.0.1:{port} cannot be reached: {problem}")
