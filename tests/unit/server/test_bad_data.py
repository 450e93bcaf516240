"""Bad input to a broker that holds data: every kind is refused with its code and text, and what is stored
stays as it was, byte by byte. A real controller and a real broker on this loop, asked over sockets."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from metaquorum.broker.server import main as broker
from metaquorum.broker.server import main as broker_main
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.quorum.nodes import mark_log_dir_offline
from metaquorum.controller.server import main as controller
from metaquorum.controller.server.services import PartitionsService
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.metadata.requests.data import MarkLogDirOfflineRequest
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    IsrMember,
    PartitionAlteration,
    ReplicaAssignment,
)
from metaquorum.proto import partitions_pb2 as pb
from metaquorum.rpc.messages.errors import NO_HINTS
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.uuids import random_uuid
from metaquorum.wire.messages import FetchRequest
from tests.broker_calls import BrokerCalls, batch, calls_to, records
from tests.controller_calls import alter_partition, assign_replicas
from tests.topics import create_topics, partitions_of
from tests.unit.broker.test_replica_validation import REFUSED
from tests.unit.server.nodes import (
    CLUSTER_ID,
    Site,
    formatted,
    free_port,
    listeners,
    new_site,
    running_broker,
    running_controller,
)
from tests.unit.server.test_servers import SERVING, health_is

TOPIC = "t"
LIMIT = 1_000
PRODUCER = {"producer_id": 7, "producer_epoch": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    site: Site
    data: Path
    """The second log directory; the only replica may lie in it or in that of the metadata log."""
    calls: BrokerCalls
    client: AdminClient

    def stored(self) -> dict[str, bytes]:
        """Every file of the topic's replicas by its path."""
        found = {
            str(path.relative_to(self.site.root)): path.read_bytes()
            for directory in (self.site.root / "broker", self.data)
            for path in sorted(directory.glob(f"{TOPIC}-*/*"))
            if path.is_file()
        }
        assert any(name.endswith(".log") and content for name, content in found.items()), found.keys()
        return found


def refusal(answer: Any, code: ErrorCode, text: str = "") -> None:
    """The answer has this code, and where it has room for words, this text."""
    assert answer.error_code == code, answer
    if text:
        assert text in answer.error_message, answer.error_message
        assert "\n" not in answer.error_message


@asynccontextmanager
async def serving(root: Path, *, bounced: bool = False) -> AsyncIterator[Fixture]:
    """A broker with two directories and a topic in which producer 7 wrote the sequences 0 to 2. `bounced`: it
    was stopped and started since, and leads in a later epoch."""
    site = new_site(root)
    data = formatted(root / "data", 101_2)
    own = random_uuid(random.Random(77))
    store_meta_properties(
        PosixDisk(), str(data), MetaProperties(cluster_id=CLUSTER_ID, node_id=101, directory_id=own)
    )
    file = site.broker_file(
        {
            "log.dirs": f"{site.root / 'broker'},{data}",
            "broker.heartbeat.interval.ms": "100",
            "message.max.bytes": str(LIMIT),
            "log.retention.hours": "48",
        }
    )
    async with (
        running_controller(site.controller_file()),
        AdminClient([("127.0.0.1", site.controller_port)], timeout_ms=20_000) as client,
    ):
        for life in range(2 if bounced else 1):
            async with running_broker(file):
                await health_is(site.broker_port, SERVING)
                if life == 0:
                    await create_topics(client, [NewTopic(name=TOPIC, partitions=1, replication_factor=1)])
                async with calls_to(site.kafka_port) as calls:
                    first = batch([b"a", b"b", b"c"], base_sequence=0, **PRODUCER)
                    while (await calls.produce(TOPIC, first)).error_code:
                        pass
                    if life == int(bounced):
                        yield Fixture(site=site, data=data, calls=calls, client=client)


async def test_batches_that_are_wrong(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        before, calls = at.stored(), at.calls
        for name, (data, code, text) in REFUSED.items():
            result = await calls.produce(TOPIC, data)
            assert result.base_offset == -1, name
            if "transaction" in name:  # the request names none
                refusal(result, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no transactional id")
            else:
                refusal(result, code, text)
            assert at.stored() == before, name
        too_large = await calls.produce(TOPIC, batch([b"x" * LIMIT]))
        refusal(too_large, ErrorCode.MESSAGE_TOO_LARGE, str(LIMIT))
        assert at.stored() == before
        # The very same bytes that came first: a success, and stored once.
        again = await calls.produce(TOPIC, batch([b"a", b"b", b"c"], base_sequence=0, **PRODUCER))
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
        assert at.stored() == before


async def test_sequences_and_producer_epochs(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        before, calls = at.stored(), at.calls
        for epoch, sequence, code, text in (
            (4, 4, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "3 is next"),
            (4, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "3 is next"),
            (5, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "0 is next"),
            (3, 3, ErrorCode.INVALID_PRODUCER_EPOCH, "current epoch is 4"),
        ):
            wrong = batch([b"x"], producer_id=7, producer_epoch=epoch, base_sequence=sequence)
            refusal(await calls.produce(TOPIC, wrong), code, text)
            assert at.stored() == before
        for half in ((7, -1), (-1, 0)):
            refusal(await calls.init_producer_id(*half), ErrorCode.INVALID_REQUEST)
        refusal(await calls.produce(TOPIC, batch([b"x"]), acks=2), ErrorCode.INVALID_REQUIRED_ACKS, "2")
        assert at.stored() == before


async def test_offsets_outside_of_the_log_and_names_that_nobody_has(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        before, calls = at.stored(), at.calls
        for offset in (4, 10**9, 2**63 - 1):
            part = await calls.fetch_one(TOPIC, offset)
            refusal(part, ErrorCode.OFFSET_OUT_OF_RANGE)
            assert bytes(part.records or b"") == b""
        for name, partition in (("nobody", 0), (TOPIC, 1), (TOPIC, 2**31 - 1)):
            for answer in (
                await calls.produce(name, batch([b"x"]), partition=partition),
                await calls.fetch_one(name, partition=partition),
                await calls.list_offset(name, -2, partition=partition),
            ):
                refusal(answer, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        broker = "127.0.0.1", at.site.broker_port
        with pytest.raises(ApiError, match=f"it has {at.site.root / 'broker'}") as caught:
            await mark_log_dir_offline(broker, MarkLogDirOfflineRequest(path="/nowhere"), timeout_ms=20_000)
        assert caught.value.code is ErrorCode.LOG_DIR_NOT_FOUND
        with pytest.raises(ApiError, match="give either the path or the id of the log directory"):
            await mark_log_dir_offline(broker, MarkLogDirOfflineRequest(), timeout_ms=20_000)
        assert at.stored() == before


async def test_leader_epochs_and_fetch_sessions(tmp_path: Path) -> None:
    async with serving(tmp_path, bounced=True) as at:
        calls, info = at.calls, (await partitions_of(at.client, TOPIC))[0]
        now = info.leader_epoch
        assert now > 0
        before = at.stored()
        cases = [(now + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)]
        cases += [(epoch, ErrorCode.FENCED_LEADER_EPOCH) for epoch in range(now)]
        for epoch, code in cases:
            fetched = await calls.fetch_one(TOPIC, leader_epoch=epoch)
            refusal(fetched, code)
            refusal(await calls.list_offset(TOPIC, -1, leader_epoch=epoch), code)
        unknown = await calls.fetch(None, session_id=99, session_epoch=1)
        refusal(unknown, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        begun = await calls.fetch(info.topic_id, session_id=0, session_epoch=0)
        assert begun.session_id > 0
        wrong = await calls.fetch(None, session_id=begun.session_id, session_epoch=5)
        refusal(wrong, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        assert at.stored() == before
        # A client that names topics has a session, too: it names nothing, and hears of what is new.
        by_name = await calls.fetch(TOPIC, 3, session_epoch=0)
        assert by_name.session_id > 0
        assert not (await calls.produce(TOPIC, batch([b"new"]))).error_code
        more = FetchRequest(max_wait_ms=20_000, min_bytes=1, max_bytes=1 << 20, session_epoch=1)
        answer = await calls.ask(structs.replace(more, session_id=by_name.session_id), version=12)
        (topic_found,) = answer.responses
        (part,) = topic_found.partitions
        assert (topic_found.topic, records(part.records)) == (TOPIC, [(3, b"new")])


async def test_broker_epochs_of_followers_and_leaders(tmp_path: Path) -> None:
    async with serving(tmp_path, bounced=True) as at:
        epoch = (await at.client.list_brokers()).brokers[0].epoch
        info = (await partitions_of(at.client, TOPIC))[0]
        topic_id = info.topic_id
        before = at.stored()
        for replica_id, replica_epoch, code in (
            (101, epoch - 1, ErrorCode.STALE_BROKER_EPOCH),
            (999, 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch)
            refusal(await at.calls.fetch_one(topic_id, replica_state=state), code)

        def altered(
            leader_epoch: int, partition_epoch: int, member_epoch: int = epoch
        ) -> PartitionAlteration:
            return PartitionAlteration(
                topic_id=topic_id,
                partition=0,
                leader_epoch=leader_epoch,
                partition_epoch=partition_epoch,
                isr=(IsrMember(broker_id=101, broker_epoch=member_epoch),),
            )

        for alteration, code in (
            (altered(info.leader_epoch - 1, info.partition_epoch), ErrorCode.FENCED_LEADER_EPOCH),
            (altered(info.leader_epoch + 1, info.partition_epoch), ErrorCode.NOT_CONTROLLER),
            (altered(info.leader_epoch, info.partition_epoch - 1), ErrorCode.INVALID_UPDATE_VERSION),
            (altered(info.leader_epoch, info.partition_epoch, epoch - 1), ErrorCode.INELIGIBLE_REPLICA),
        ):
            request = AlterPartitionRequest(broker_id=101, broker_epoch=epoch, partitions=(alteration,))
            result = (await alter_partition(at.client, request)).results[0]
            assert result.error is code and result.message, result
        stale = AlterPartitionRequest(
            broker_id=101,
            broker_epoch=epoch - 1,
            partitions=(altered(info.leader_epoch, info.partition_epoch),),
        )
        with pytest.raises(ApiError) as caught:
            await alter_partition(at.client, stale)
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
        place = ReplicaAssignment(directory_id=info.directories[0], topic_id=topic_id, partition=0)
        with pytest.raises(ApiError) as caught:
            await assign_replicas(
                at.client,
                AssignReplicasToDirsRequest(broker_id=101, broker_epoch=epoch - 1, assignments=(place,)),
            )
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
        assert await partitions_of(at.client, TOPIC) == [info]
        assert at.stored() == before


async def test_directories_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second broker is given a directory of the first one while that runs, and a copy of it."""
    async with serving(tmp_path) as at:
        before = at.stored()
        copy = tmp_path / "copy"
        shutil.copytree(at.data, copy)
        copied = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}

        async def refused(node_id: int, name: str, *directories: Path) -> str:
            file = at.site.broker_file(
                {
                    "node.id": str(node_id),
                    "listeners": listeners(free_port(), free_port()),
                    "log.dirs": ",".join(map(str, directories)),
                }
            ).rename(tmp_path / f"{name}.properties")
            assert await asyncio.to_thread(broker_main.run, str(file)) == 1
            (line,) = [each for each in capsys.readouterr().err.splitlines() if "metaquorum broker:" in each]
            return line

        own = formatted(tmp_path / "second", 102)
        assert "belongs to node 101, but node.id is 102" in await refused(102, "theirs", own, at.data)
        assert "belongs to node 101, but node.id is 102" in await refused(102, "copied", own, copy)
        same = formatted(tmp_path / "third", 101)
        assert "is in use by another running process" in await refused(101, "twice", same, at.data)
        assert "one is a copy" in await refused(101, "both", same, at.data, copy)
        assert at.stored() == before
        assert {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()} == copied
        result = await at.calls.produce(TOPIC, batch([b"d"]))
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 3)


# What the commands that start a node run, and requests that a controller's services cannot read.


@pytest.mark.parametrize(("module", "role"), [(broker, "broker"), (controller, "controller")])
def test_a_node_runs_by_its_file_and_role(module: Any, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(broker, "keep_freed_buffers", lambda: ran.append("allocator"))

    def run_process(*arguments: Any, **options: Any) -> int:
        ran.append((arguments, options))
        return 7

    monkeypatch.setattr(module, "run_process", run_process)
    options: dict[str, Any] = {} if module is controller else {"node_id": 101}
    assert module.run("/node.properties", **options) == 7
    before = ["allocator"] if module is broker else []
    assert ran == [*before, (("/node.properties", role, module.serve), options)]


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("AlterPartition", pb.AlterPartitionRequest(partitions=[{"topic_id": b"short"}])),
        ("AssignReplicasToDirs", pb.AssignReplicasToDirsRequest(assignments=[{"topic_id": b"short"}])),
    ],
)
async def test_a_request_with_a_wrong_id_is_refused_before_the_node(method: str, request_: Any) -> None:
    service: Any = PartitionsService(None, NO_HINTS)  # type: ignore[arg-type]
    answer = await getattr(service, method)(request_, None)
    assert ErrorCode(answer.error.code) is ErrorCode.INVALID_REQUEST
