"""A broker offers every version that its messages have, but for those that are left out on purpose."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.wire import codec
from metaquorum.wire.messages import ApiVersionsRequest
from metaquorum.wire.table import API_BY_NAME, API_VERSIONS
from tests.unit.server.nodes import new_site, running_broker, running_controller
from tests.unit.server.test_servers import SERVING, health_is

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
