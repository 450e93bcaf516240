"""What the commands that start a node run, and requests that a controller's services cannot read."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.server import main as broker
from metaquorum.controller.server import main as controller
from metaquorum.controller.server.services import PartitionsService
from metaquorum.metadata.errors import ErrorCode
from metaquorum.proto import partitions_pb2 as pb
from metaquorum.rpc.messages.errors import NO_HINTS


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
