"""Who asked, from the door to the log: forwarded frames, calls with certificates, brokers' streams."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from metaquorum.cli.log.input.source import open_path
from metaquorum.clients.quorum.admin import AdminClient, bind_broker_id
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.metadata.inspect.log.log import ReadBatch
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_in
from metaquorum.wire import codec
from metaquorum.wire.codec import RequestHeader
from metaquorum.wire.messages import ApiVersionsRequest, CreateTopicsRequest
from metaquorum.wire.table import API_BY_NAME, API_VERSIONS
from tests.unit.server.certificates import certificates_of
from tests.unit.server.nodes import Site, new_site, running_broker, running_controller
from tests.unit.server.test_servers import SERVING, health_is, material, tls_keys

LOOPBACK = "127.0.0.1"


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


def frame(topic: str, client_id: str | None) -> bytes:
    created = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    header = RequestHeader(API_BY_NAME["CreateTopics"].key, 7, 1, client_id)
    body = CreateTopicsRequest(topics=(created,), timeout_ms=30_000)
    return b"".join(codec.encode_request(header, body))


async def ask_for(client: AdminClient, topic: str, principal: str, client_id: str | None) -> None:
    await client.forward(
        frame(topic, client_id),
        broker_id=101,
        principal=principal,
        client_address=f"10.0.0.{len(topic)}",
        by_token=False,
        timeout_ms=30_000,
    )


def causes(site: Site) -> list[tuple[BatchCause | None, tuple[object, ...]]]:
    """The cause of every batch of data, and its records."""
    log = open_path(str(site.root / "controller"), progress=False)
    return [
        (cause_in(item.records[0].record), tuple(one.record for one in item.records))
        for item in log.items()
        if isinstance(item, ReadBatch) and not item.batch.header.is_control
    ]


async def test_every_caller_is_named_as_its_door_knew_it(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    certificates_of(folder, "node", "client")
    keys = {**tls_keys(folder, "required"), "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/"}
    address = [(LOOPBACK, site.controller_port)]
    async with running_controller(site.controller_file(keys)), running_broker(site.broker_file(keys)):
        await health_is(site.broker_port, SERVING, material(folder, "client"))
        async with AdminClient(address, tls=material(folder, "node")) as broker:
            names = {"a" * at: (f"User:u{at}", f"c{at}\n") for at in range(1, 9)}
            await asyncio.gather(*[ask_for(broker, topic, *who) for topic, who in names.items()])
            await ask_for(broker, "nameless", "User:x", None)
        async with AdminClient(address, tls=material(folder, "client")) as operator:
            await bind_broker_id(operator, "a-host", 7)
    made: dict[str, BatchCause | None] = {}
    kinds: dict[type, BatchCause | None] = {}
    for cause, records in causes(site):
        made.update({each.name: cause for each in records if isinstance(each, r.TopicRecord)})
        kinds.update({type(each): cause for each in records if not isinstance(each, r.NoOpRecord)})
    for topic, (principal, client_id) in names.items():
        expected = BatchCause("CreateTopics", None, principal, client_id, f"10.0.0.{len(topic)}", 101)
        assert made[topic] == expected
    assert made["nameless"] == BatchCause("CreateTopics", None, "User:x", None, "10.0.0.8", 101)
    assert kinds[r.ConfigRecord] == BatchCause("BindBrokerId", None, "User:client", None, LOOPBACK)
    assert kinds[r.BrokerRecord] == BatchCause("BrokerRegistration", None, "User:node", None, LOOPBACK)
    assert kinds[r.ControllerRecord] == BatchCause(rule="controller-registered")
    unfenced = kinds[
        r.BrokerRegistrationChangeRecord if r.UnfenceBrokerRecord not in kinds else r.UnfenceBrokerRecord
    ]
    assert unfenced == BatchCause("BrokerHeartbeat", None, "User:node", None, LOOPBACK)


async def test_without_authentication_callers_are_anonymous_and_the_key_switches_it_off(site: Site) -> None:
    address = [(LOOPBACK, site.controller_port)]
    async with running_controller(site.controller_file()), AdminClient(address) as client:
        await bind_broker_id(client, "a-host", 7)
    assert causes(site)[-1][0] == BatchCause("BindBrokerId", None, "User:ANONYMOUS", None, LOOPBACK)
    off = {"metadata.log.causes.enable": "false"}
    end = len(causes(site))
    async with running_controller(site.controller_file(off)), running_broker(site.broker_file()):
        await health_is(site.broker_port, SERVING)
    later = causes(site)[end:]
    assert later and all(cause is None for cause, _ in later)


# A broker offers every version that its messages have, but for those that are left out on purpose.


FEWER = {
    "Fetch": (4, 18),
    "ListOffsets": (0, 10),
    "DescribeLogDirs": (0, 4),
    "InitProducerId": (0, 5),
    "AddPartitionsToTxn": (0, 4),
    "AddOffsetsToTxn": (0, 3),
    "EndTxn": (0, 3),
    "TxnOffsetCommit": (0, 3),
    "WriteTxnMarkers": (0, 1),
    "ListTransactions": (0, 1),
}
NOT_OF_BROKERS = {
    *("Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "FetchSnapshot", "UpdateRaftVoter"),
    *("AlterPartition", "AssignReplicasToDirs", "AllocateProducerIds"),
    *("BrokerRegistration", "BrokerHeartbeat", "ControllerRegistration", "Envelope"),
}


async def versions_at(port: int) -> dict[str, tuple[int, int]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frame = b"".join(
        codec.encode_request(codec.RequestHeader(API_VERSIONS, 0, 1, "me"), ApiVersionsRequest())
    )
    writer.write(len(frame).to_bytes(4, "big") + frame)
    size = int.from_bytes(await reader.readexactly(4), "big")
    body: Any = codec.decode_response(API_VERSIONS, 0, await reader.readexactly(size)).body
    writer.close()
    names = {api.key: name for name, api in API_BY_NAME.items()}
    return {names[each.api_key]: (each.min_version, each.max_version) for each in body.api_keys}


async def test_a_broker_offers_what_its_messages_have(tmp_path: Path) -> None:
    site = new_site(tmp_path)
    async with running_controller(site.controller_file()), running_broker(site.broker_file()):
        await health_is(site.broker_port, SERVING)
        offered = await versions_at(site.kafka_port)
    whole = {name: (api.min_version, api.max_version) for name, api in API_BY_NAME.items()}
    expected = {
        name: FEWER.get(name, versions) for name, versions in whole.items() if name not in NOT_OF_BROKERS
    }
    differing = {name for name, _ in offered.items() ^ expected.items()}
    assert not differing, (
        f"a broker offers {differing} in other versions than wire/tables: change `Offered` or `answers` "
        "(broker/server/kafka/, listeners/forwarded/), or say so in FEWER or NOT_OF_BROKERS"
    )
    assert {name: offered[name] for name in FORWARDED} == {
        name: (each.min_version, each.max_version) for name, each in FORWARDED.items()
    }
    assert FEWER == {name: offered[name] for name in FEWER if offered[name] != whole[name]}
