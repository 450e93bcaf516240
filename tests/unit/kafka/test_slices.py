"""Requests that name many things: in slices between which others are served, each thing once, and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaquorum.broker.server.kafka import groups
from metaquorum.listeners import long_work, slices
from metaquorum.listeners.forwarded import too_many
from metaquorum.listeners.long_work import LongAnswer, LongRequests, LongWork
from metaquorum.listeners.services import Client, EndConnection, Offered
from metaquorum.listeners.slices import CUTS, produced_in_slices, sliced
from metaquorum.wire import codec, messages
from metaquorum.wire.codec import FEW_VALUES, Request, RequestHeader
from metaquorum.wire.table import API_BY_NAME, request_type, response_type
from tests.long_turns import turns

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
        asked, told = request_type(key).schema, response_type(key).schema
        for depth, (item, result) in enumerate(cut.levels):
            of_item = {each.name: each for each in asked.fields}[item]
            if not result:
                asked = of_item.struct
                continue
            of_result = {each.name: each for each in told.fields}[result]
            assert of_item.is_array and of_result.is_array
            if depth < len(cut.levels) - 1:
                assert of_item.struct is not None and of_result.struct is not None
                asked, told = of_item.struct, of_result.struct


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


@pytest.mark.parametrize("more", [0, 1])
async def test_a_short_request_that_came_in_a_frame_is_cut_by_its_names_as_any_other(more: int) -> None:
    """A name takes two bytes here. Only what is shorter than one per name is not counted."""
    (cut,) = CUTS["DescribeGroups"]
    body = messages.DescribeGroupsRequest(groups=("g",) * (cut.above + more))
    header = RequestHeader(API_BY_NAME["DescribeGroups"].key, 5, 1)
    asked = codec.decode_request(b"".join(codec.encode_request(header, body)))
    assert asked.frame is not None and cut.above < asked.end < 3 * cut.above
    served = sliced({"DescribeGroups": Offered(0, 5, lambda request, client: "as it is")})["DescribeGroups"]
    answer = served.handle(asked, CLIENT)
    assert (answer == "as it is") is not bool(more)
    if more:
        answer.close()


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


async def test_a_level_without_results_of_its_own_is_cut_like_the_others() -> None:
    """AlterReplicaLogDirs: topics within directories are answered as topics."""
    kinds: Any = messages.AlterReplicaLogDirsRequest
    told: Any = messages.AlterReplicaLogDirsResponse
    calls: list[int] = []

    def altered(asked: Request, client: Client) -> Any:
        parts = [(t.name, index) for d in asked.body.dirs for t in d.topics for index in t.partitions]
        calls.append(len(parts))
        results = []
        for directory in asked.body.dirs:
            for topic in directory.topics:
                made = tuple(
                    told.AlterReplicaLogDirPartitionResult(partition_index=index)
                    for index in topic.partitions
                )
                results.append(told.AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=made))
        return told(results=tuple(results))

    def topic(name: str, size: int) -> Any:
        return kinds.AlterReplicaLogDirTopic(name=name, partitions=tuple(range(size)))

    body = kinds(
        dirs=(
            kinds.AlterReplicaLogDir(path="/a", topics=(topic("t", 3_000), topic("u", 5))),
            kinds.AlterReplicaLogDir(path="/b", topics=(topic("v", 2_000),)),
        )
    )
    served = sliced({"AlterReplicaLogDirs": Offered(0, 2, altered)})["AlterReplicaLogDirs"]
    answer = (await served.handle(request("AlterReplicaLogDirs", 2, body), CLIENT)).body
    assert max(calls) == CUTS["AlterReplicaLogDirs"][0].values and sum(calls) == 5_005
    found = [(each.topic_name, [part.partition_index for part in each.partitions]) for each in answer.results]
    assert found == [("t", [*range(3_000)]), ("u", [*range(5)]), ("v", [*range(2_000)])]


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


async def test_a_turn_that_is_never_answered_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for a request that waits for its turn."""
    monkeypatch.setattr(long_work, "TURN_MAX_S", 0.01)
    requests, begun = LongRequests(at_once=1), asyncio.Event()
    requests.enter(lambda: None)
    requests.enter(begun.set)
    assert not begun.is_set()
    async with asyncio.timeout(60):
        await begun.wait()


def produce(*parts: tuple[int, bytes], topics: int = 1) -> Any:
    kinds: Any = messages.ProduceRequest
    return kinds(
        acks=-1,
        timeout_ms=1,
        topic_data=tuple(
            kinds.TopicProduceData(
                name=f"t{topic}",
                partition_data=tuple(
                    kinds.PartitionProduceData(index=index, records=records) for index, records in parts
                ),
            )
            for topic in range(topics)
        ),
    )


class Appends:
    """A handler of Produce whose answers a test gives."""

    def __init__(self) -> None:
        self.begun: list[tuple[Any, asyncio.Future[Any]]] = []

    def __call__(self, asked: Request, client: Client) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.begun.append((asked.body, future))
        return future

    def answer(self, place: int) -> None:
        kinds: Any = messages.ProduceResponse
        body, future = self.begun[place]
        future.set_result(
            kinds(
                responses=tuple(
                    kinds.TopicProduceResponse(
                        name=topic.name,
                        partition_responses=tuple(
                            kinds.PartitionProduceResponse(
                                index=part.index, base_offset=int(part.records), error_code=0
                            )
                            for part in topic.partition_data
                        ),
                    )
                    for topic in body.topic_data
                ),
                node_endpoints=(kinds.NodeEndpoint(node_id=place, host="h", port=1),),
            )
        )


async def test_a_long_produce_begins_as_a_whole_and_in_order_before_anything_is_stored() -> None:
    """Of a partition that is named twice, the last batch counts, also where another slice has the first."""
    appends = Appends()
    first = tuple((index, b"1") for index in range(5_000))
    again = tuple((index, b"2") for index in range(0, 5_000, 10))
    answer = asyncio.ensure_future(
        produced_in_slices(request("Produce", 10, produce(*first, *again)), CLIENT, appends)
    )
    other = 0
    while len(appends.begun) < 20:
        await asyncio.sleep(0)
        other += 1
        assert not answer.done()
    assert other >= 20, "the loop has its turn between slices"
    for place in reversed(range(20)):
        appends.answer(place)
    told = await answer
    (topic,) = told.responses
    found = {part.index: part.base_offset for part in topic.partition_responses}
    assert len(topic.partition_responses) == 5_000
    assert found == {index: 1 if index % 10 else 2 for index in range(5_000)}
    assert [each.node_id for each in told.node_endpoints] == list(range(20))


async def test_the_slices_of_markers_all_begin_before_one_is_stored() -> None:
    """Each waits for an append of its own: one after the other, the last would be late."""
    asked, answer = messages.WriteTxnMarkersRequest, messages.WriteTxnMarkersResponse
    begun: list[asyncio.Future[Any]] = []

    def handle(request: Request, client: Client) -> asyncio.Future[Any]:
        begun.append(asyncio.get_running_loop().create_future())
        return begun[-1]

    topic = asked.WritableTxnMarkerTopic(name="t", partition_indexes=tuple(range(FEW_VALUES + 1)))
    marker = asked.WritableTxnMarker(producer_id=1, topics=(topic,))
    served = sliced({"WriteTxnMarkers": Offered(0, 1, handle)})["WriteTxnMarkers"]
    body = asked(markers=(marker,))
    waiting = asyncio.ensure_future(served.handle(request("WriteTxnMarkers", 1, body), CLIENT))
    slices = -(-(FEW_VALUES + 1) // CUTS["WriteTxnMarkers"][0].values)
    while len(begun) < slices:
        await asyncio.sleep(0)
        assert not waiting.done()
    for future in begun:
        future.set_result(answer(markers=()))
    assert (await waiting).body == answer(markers=())


async def test_a_long_produce_that_nobody_waits_for_has_no_answer() -> None:
    body = produce(*((index, b"1") for index in range(5_000)))
    asked = request("Produce", 10, body)
    assert await produced_in_slices(asked, CLIENT, lambda asked, client: None) is None


@pytest.mark.parametrize(
    "api", [api for api, cuts in CUTS.items() if cuts[0].above == FEW_VALUES and api != "Produce"]
)
async def test_what_may_overlap_with_others_of_its_connection_is_not_cut(api: str) -> None:
    """It reaches its handler as it is, at once: what waits here might come behind what came later."""
    asked: list[Request] = []

    def handle(request: Request, client: Client) -> str:
        asked.append(request)
        return "as it is"

    (cut,) = CUTS[api]
    kind = request_type(API_BY_NAME[api].key)

    def filled(schema: Any, levels: Any, count: int) -> Any:
        (name, _), rest = levels[0], levels[1:]
        item = next(each for each in schema.fields if each.name == name)
        if item.struct is None:
            return schema.cls(**{name: tuple(map(str, range(count)))})
        if rest:
            return schema.cls(**{name: (filled(item.struct, rest, count),)})
        return schema.cls(**{name: tuple(item.struct.cls() for _ in range(count))})

    served = sliced({api: Offered(0, 20, handle)})[api]
    most = filled(kind.schema, cut.levels, FEW_VALUES - len(cut.levels) + 1)
    assert served.handle(request(api, 8, most), CLIENT) == "as it is"
    assert asked[0].body is most
    more = filled(kind.schema, cut.levels, FEW_VALUES + 1)
    waiting = served.handle(request(api, 8, more), CLIENT)
    assert asyncio.iscoroutine(waiting)
    waiting.close()


async def test_an_answer_that_refuses_all_is_the_whole_answer() -> None:
    kinds: Any = messages.LeaveGroupRequest
    told: Any = messages.LeaveGroupResponse
    calls: list[int] = []

    def leave(asked: Request, client: Client) -> Any:
        calls.append(len(asked.body.members))
        if len(calls) == 2:
            return told(error_code=16)
        return told(members=tuple(told.MemberResponse(member_id=m.member_id) for m in asked.body.members))

    body = kinds(group_id="g", members=tuple(kinds.MemberIdentity(member_id=f"{n}") for n in range(9_000)))
    served = sliced({"LeaveGroup": Offered(0, 5, leave)})["LeaveGroup"]
    answer = (await served.handle(request("LeaveGroup", 4, body), CLIENT)).body
    assert (answer.error_code, answer.members, len(calls)) == (16, (), 2)


async def test_the_topics_of_many_groups_are_cut_and_joined_and_a_group_is_refused_as_a_whole() -> None:
    kinds: Any = messages.OffsetFetchRequest
    told: Any = messages.OffsetFetchResponse
    calls: list[tuple[str, int]] = []

    async def fetched(asked: Request, client: Client) -> Any:
        groups = []
        for group in asked.body.groups:
            size = sum(len(topic.partition_indexes) for topic in group.topics or ())
            calls.append((group.group_id, size))
            if group.group_id == "late" and len([each for each, _ in calls if each == "late"]) == 2:
                groups.append(told.OffsetFetchResponseGroup(group_id="late", error_code=16))
                continue
            topics = tuple(
                told.OffsetFetchResponseTopics(
                    name=topic.name,
                    partitions=tuple(
                        told.OffsetFetchResponsePartitions(partition_index=index)
                        for index in topic.partition_indexes
                    ),
                )
                for topic in group.topics or ()
            )
            groups.append(told.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics))
        return told(groups=tuple(groups))

    def group(name: str, *sizes: int) -> Any:
        topics = tuple(
            kinds.OffsetFetchRequestTopics(name=f"t{size}", partition_indexes=tuple(range(size)))
            for size in sizes
        )
        return kinds.OffsetFetchRequestGroup(group_id=name, topics=topics)

    everything = kinds.OffsetFetchRequestGroup(group_id="all", topics=None)
    body = kinds(groups=(group("a", 300, 5, 200), everything, group("late", 500), group("z", 3)))
    served = sliced({"OffsetFetch": Offered(0, 10, fetched)})["OffsetFetch"]
    answer = (await served.handle(request("OffsetFetch", 8, body), CLIENT)).body
    assert max(size for _, size in calls) <= 128
    found = [
        (each.group_id, each.error_code, [(topic.name, len(topic.partitions)) for topic in each.topics])
        for each in answer.groups
    ]
    assert found == [
        ("a", 0, [("t300", 300), ("t5", 5), ("t200", 200)]),
        ("all", 0, []),
        ("late", 16, []),
        ("z", 0, [("t3", 3)]),
    ]


# No request with many items holds the event loop: every array of every API of a broker, a new one, too.


ITEMS, BOUND = FEW_VALUES + 1_900, FEW_VALUES + 900
CALLS_MAX = 20_000
"""In one turn of the loop: some milliseconds. That is three for each item of a request: a handler that looks
at all of them at once needs more."""


@pytest.mark.timeout(600)
def test_no_array_of_any_request_holds_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of a bounded number in one turn take what `THINGS_MAX` and `SUBSCRIBED_MAX` allow; here these are
    lower, so that requests are shorter."""
    monkeypatch.setattr(too_many, "THINGS_MAX", BOUND)
    monkeypatch.setattr(groups, "SUBSCRIBED_MAX", BOUND)
    found = [*turns(items=ITEMS)]
    assert len({turn.api for turn in found}) > 40
    assert [turn for turn in found if turn.answer is None] == [], "each has an answer"
    long = [
        f"{turn.api} {turn.version} {turn.array}: {turn.calls:,}" for turn in found if turn.calls > CALLS_MAX
    ]
    assert long == [], f"calls in one turn for {ITEMS:,} items"
