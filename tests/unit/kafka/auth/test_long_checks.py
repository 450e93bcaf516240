"""Requests that name thousands of things are checked in slices: every API that refuses items one by one."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from metaquorum.listeners.access import steps
from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.access.steps import SLICE, AccessAsked, Each
from metaquorum.listeners.rights import CHECKS
from metaquorum.listeners.services import Client, Offered
from metaquorum.metadata.image import MetadataImage
from metaquorum.wire import codec
from metaquorum.wire.schema import StructSchema
from metaquorum.wire.table import API_BY_NAME, request_type, response_type

CLIENT = Client(listener="KAFKA", address="10.0.0.1", principal="User:nobody")
COUNT = codec.FEW_VALUES + 1
LISTS = [(api, step) for api, steps in CHECKS.items() for step in steps if isinstance(step, Each)]


class Counting:
    """Allows what ends with 7, and nothing else of items."""

    def __init__(self) -> None:
        self.asked = 0

    def allows(self, image: Any, caller: Any, operation: Any, resource: Any, name: str) -> bool:
        self.asked += 1
        return name.endswith("7")


def filled(schema: StructSchema, number: int) -> Any:
    """A structure with its number as every name, and one of each thing that it lists."""
    values: dict[str, Any] = {}
    for field in schema.fields:
        if field.struct is not None and field.is_array and field.tag is None:
            values[field.name] = (filled(field.struct, number),)
        elif field.type == "string" and field.tag is None:
            values[field.name] = f"t{number}"
    return schema.cls(**values)


def long_request(api: str, step: Each) -> Any:
    schema = request_type(API_BY_NAME[api].key).schema
    field = next(each for each in schema.fields if each.name == step.items)
    items = [f"t{n}" if field.struct is None else filled(field.struct, n) for n in range(COUNT)]
    return schema.cls(**{step.items: tuple(items)})


@pytest.mark.parametrize(("api", "step"), LISTS, ids=[f"{api}-{step.items}" for api, step in LISTS])
def test_long_requests_are_checked_as_short_ones_are_and_with_pauses(api: str, step: Each) -> None:
    body = long_request(api, step)
    if not step.when(body):
        pytest.skip("the step does not look at such a request")
    at_once, in_slices = Counting(), Counting()

    def asked(authorizer: Counting) -> AccessAsked:
        return AccessAsked(
            api=api,
            version=0,
            client=CLIENT,
            authorizer=authorizer,
            image=MetadataImage(),  # type: ignore[arg-type]
        )

    wanted = step.before(asked(at_once), body)
    assert step.is_long(body)
    work, last, longest = step.checking(asked(in_slices), body), 0, 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            assert end.value == wanted
            break
        longest, last = max(longest, in_slices.asked - last), in_slices.asked
    longest = max(longest, in_slices.asked - last)
    assert in_slices.asked == at_once.asked
    # A step may ask for several rights of one item.
    assert 0 < longest <= SLICE * 4


async def test_others_are_served_while_a_long_request_is_checked() -> None:
    counting = Counting()
    kinds: Any = request_type(API_BY_NAME["OffsetCommit"].key).cls
    topic, part = kinds.OffsetCommitRequestTopic, kinds.OffsetCommitRequestPartition
    parts = tuple([part(partition_index=index) for index in range(COUNT)])
    body = kinds(group_id="g7", topics=(topic(name="no", partitions=parts),))
    offered = {"OffsetCommit": Offered(0, 9, lambda request, client: pytest.fail("nothing is allowed"))}
    rights = Rights(authorizer=counting, image=MetadataImage, checks=CHECKS)  # type: ignore[arg-type]
    header = codec.RequestHeader(API_BY_NAME["OffsetCommit"].key, 8, 1, None)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(other())
    found = guarded(offered, rights)["OffsetCommit"].handle(codec.Request(header, body, 0), CLIENT)
    assert inspect.isawaitable(found)
    answer = await found
    beside.cancel()
    assert turns >= COUNT // SLICE
    (refused,) = answer.topics
    assert [each.partition_index for each in refused.partitions] == list(range(COUNT))
    assert {each.error_code for each in refused.partitions} == {29}


async def test_a_long_request_passes_with_what_is_allowed_and_is_answered_in_its_order() -> None:
    commit: Any = request_type(API_BY_NAME["OffsetCommit"].key).cls
    answered: Any = response_type(API_BY_NAME["OffsetCommit"].key).cls
    part = commit.OffsetCommitRequestPartition()
    names = [f"t{number}" for number in range(COUNT)]
    seen: list[str] = []

    async def handler(request: codec.Request, client: Client) -> Any:
        seen.extend(each.name for each in request.body.topics)
        return answered(topics=tuple([answered.OffsetCommitResponseTopic(name=name) for name in seen]))

    rights = Rights(authorizer=Counting(), image=MetadataImage, checks=CHECKS)  # type: ignore[arg-type]
    header = codec.RequestHeader(API_BY_NAME["OffsetCommit"].key, 8, 1, None)
    topics = [commit.OffsetCommitRequestTopic(name=name, partitions=(part,)) for name in names]
    guard = guarded({"OffsetCommit": Offered(0, 9, handler)}, rights)["OffsetCommit"]
    body = commit(group_id="g7", topics=tuple(topics))
    answer = await guard.handle(codec.Request(header, body, 0), CLIENT)
    assert seen == [name for name in names if name.endswith("7")]
    assert [each.name for each in answer.topics] == names
    assert [bool(each.partitions) for each in answer.topics] == [not name.endswith("7") for name in names]


async def test_what_a_long_fetch_is_refused_is_not_refused_again_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last look at an answer pauses as well, and leaves alone what the request was refused."""
    made: list[int] = []
    plain = steps._refusing

    def refusing(*arguments: Any) -> Any:
        made.append(1)
        return plain(*arguments)

    monkeypatch.setattr(steps, "_refusing", refusing)
    kinds: Any = request_type(API_BY_NAME["Fetch"].key).cls
    offered = {"Fetch": Offered(4, 11, lambda request, client: pytest.fail("nothing is allowed"))}
    rights = Rights(authorizer=Counting(), image=MetadataImage, checks=CHECKS)  # type: ignore[arg-type]
    header = codec.RequestHeader(API_BY_NAME["Fetch"].key, 11, 1, None)
    denied = [number for number in range(2 * COUNT) if number % 10 != 7]
    topics = [
        kinds.FetchTopic(topic=f"no{number}", partitions=(kinds.FetchPartition(partition=number),))
        for number in denied
    ]
    body = kinds(replica_id=-1, topics=tuple(topics))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(other())
    answer = await guarded(offered, rights)["Fetch"].handle(codec.Request(header, body, 0), CLIENT)
    beside.cancel()
    assert [each.partitions[0].partition_index for each in answer.responses] == denied
    assert {each.partitions[0].error_code for each in answer.responses} == {29}
    assert len(made) == 2 * len(denied), "each topic with its partition, once"
    assert turns >= 2 * (len(denied) // SLICE)
