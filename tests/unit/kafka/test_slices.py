"""Requests that name many things: in slices between which others are served, each thing once, and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaquorum.broker.server.kafka import slices
from metaquorum.broker.server.kafka.slices import CUTS, sliced
from metaquorum.listeners.long_work import LongAnswer, LongRequests, LongWork
from metaquorum.listeners.services import Client, EndConnection, Offered
from metaquorum.wire import messages
from metaquorum.wire.codec import Request, RequestHeader
from metaquorum.wire.table import API_BY_NAME, request_type, response_type

CLIENT = Client(listener="KAFKA", address="127.0.0.1")


def request(api: str, version: int, body: Any) -> Request:
    return Request(RequestHeader(API_BY_NAME[api].key, version, 1), body, 0)


def described(names: tuple[str, ...]) -> Any:
    message: Any = messages.DescribeGroupsResponse
    return message(groups=tuple(message.DescribedGroup(group_id=name) for name in names))


@pytest.mark.parametrize("api", CUTS)
def test_cuts_name_fields_of_the_request_and_of_its_answer(api: str) -> None:
    key = API_BY_NAME[api].key
    for cut in CUTS[api]:
        asked = {each.name: each for each in request_type(key).schema.fields}[cut.items]
        told = {each.name: each for each in response_type(key).schema.fields}[cut.results]
        assert asked.is_array and told.is_array
        if cut.parts:
            assert asked.struct is not None and told.struct is not None
            assert cut.parts in {each.name for each in asked.struct.fields}
            assert cut.result_parts in {each.name for each in told.struct.fields}


async def test_other_requests_are_served_between_slices() -> None:
    calls: list[int] = []

    def describe(asked: Request, client: Client) -> Any:
        calls.append(len(asked.body.groups))
        return described(asked.body.groups)

    served = sliced({"DescribeGroups": Offered(0, 5, describe)})["DescribeGroups"]
    names = tuple(f"g{number}" for number in range(1_000))
    others: list[int] = []

    async def other() -> None:
        while len(calls) < 8:
            others.append(len(calls))
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(other())
    answer = await served.handle(
        request("DescribeGroups", 0, messages.DescribeGroupsRequest(groups=names)), CLIENT
    )
    await beside
    assert max(calls) == CUTS["DescribeGroups"][0].values and len(calls) == 8
    assert set(range(1, 8)) <= set(others)
    assert isinstance(answer, LongAnswer)
    assert tuple(each.group_id for each in answer.body.groups) == names


async def test_a_name_that_is_repeated_is_answered_once() -> None:
    served = sliced({"DescribeGroups": Offered(0, 5, lambda asked, _: described(asked.body.groups))})
    body = messages.DescribeGroupsRequest(groups=("",) * 200_000)
    answer = await served["DescribeGroups"].handle(request("DescribeGroups", 0, body), CLIENT)
    assert [each.group_id for each in answer.body.groups] == [""]


async def test_few_names_are_answered_as_they_were() -> None:
    served = sliced({"DescribeGroups": Offered(0, 5, lambda asked, _: described(asked.body.groups))})
    body = messages.DescribeGroupsRequest(groups=("a", "a"))
    answer = served["DescribeGroups"].handle(request("DescribeGroups", 0, body), CLIENT)
    assert [each.group_id for each in answer.groups] == ["a", "a"]


async def test_long_parts_of_an_item_are_cut_and_joined() -> None:
    message: Any = messages.ListOffsetsRequest
    answered: Any = messages.ListOffsetsResponse
    calls: list[int] = []

    async def listed(asked: Request, client: Client) -> Any:
        calls.append(sum(len(topic.partitions) for topic in asked.body.topics))
        return answered(
            topics=tuple(
                answered.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        answered.ListOffsetsPartitionResponse(partition_index=part.partition_index)
                        for part in topic.partitions
                    ),
                )
                for topic in asked.body.topics
            )
        )

    sizes = {"a": 3, "b": 300, "c": 5, "b2": 128}
    body = message(
        topics=tuple(
            message.ListOffsetsTopic(
                name=name,
                partitions=tuple(message.ListOffsetsPartition(partition_index=n) for n in range(size)),
            )
            for name, size in sizes.items()
        )
    )
    served = sliced({"ListOffsets": Offered(0, 10, listed)})["ListOffsets"]
    answer = await served.handle(request("ListOffsets", 5, body), CLIENT)
    found = {topic.name: [part.partition_index for part in topic.partitions] for topic in answer.body.topics}
    assert found == {name: list(range(size)) for name, size in sizes.items()}
    assert max(calls) <= 128


async def test_an_answer_that_grows_too_large_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "ANSWER_VALUES_MAX", 500)
    served = sliced({"DescribeGroups": Offered(0, 5, lambda asked, _: described(asked.body.groups))})
    body = messages.DescribeGroupsRequest(groups=tuple(map(str, range(1_000))))
    with pytest.raises(EndConnection, match="too large: ask for fewer things at once"):
        await served["DescribeGroups"].handle(request("DescribeGroups", 0, body), CLIENT)


async def test_owners_take_turns_in_the_thread() -> None:
    work, done = LongWork(), []
    pieces = [work.do("a", lambda: done.append("a")) for _ in range(3)]
    pieces += [work.do("b", lambda: done.append("b"))]
    await asyncio.wait_for(asyncio.gather(*pieces), 10)
    assert done == ["a", "a", "b", "a"] or done == ["a", "b", "a", "a"]


async def test_long_requests_wait_for_their_turn() -> None:
    requests, begun = LongRequests(at_once=2), []
    turns = [requests.enter(lambda number=number: begun.append(number)) for number in range(4)]
    assert begun == [0, 1]
    turns[2].leave()  # its connection has closed
    turns[0].leave()
    assert begun == [0, 1, 3]
    for turn in turns:
        turn.leave()
