"""Laws of the controller that mistakes broke unnoticed: what changes a registration, who is a voter, which
reassignments go on, the last block of producer ids, and a check of the node that must itself bite."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace as Fake
from typing import Any, get_args
from unittest import mock

import msgspec
import pytest
from msgspec.structs import replace

from metaquorum.controller.active.outcome import (
    BalanceLeaders,
    ForgetEligible,
    MoveLeaders,
    RemoveBroker,
    Work,
    next_slice,
)
from metaquorum.controller.answers import describe_quorum, not_controller, transfer_target
from metaquorum.controller.brokers.brokers import decide_registration
from metaquorum.controller.invariants import check_node
from metaquorum.controller.partitions import elections
from metaquorum.controller.partitions.elections import decide_elections
from metaquorum.controller.partitions.partition_change import Rules, Target, build_change
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.controller.result import ControllerResult, Slice
from metaquorum.controller.settings.settings import decide_allocate_producer_ids
from metaquorum.metadata.errors import ApiError, ErrorCode, InvariantViolation
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.records.types import (
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    ControllerRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from metaquorum.metadata.requests.common import DescribeQuorumResponse, ReplicaStatus
from metaquorum.metadata.requests.partitions import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ongoing_reassignments,
)
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.raft.roles import ReplicaState
from metaquorum.raft.voters import Endpoint, VersionRange, VoterNode, VoterSet
from tests.unit.controller.node_quorum import CLUSTER, image_of, registration
from tests.unit.controller.test_broker_decisions import TOPIC, broker, partition

# ---- what changes a registration -------------------------------------------------------------------

ENDPOINT = BrokerEndpoint("DATA", "m", 500, 1)
FEATURES = (BrokerFeature("metadata.version", 1, 25), BrokerFeature("transaction.version", 0, 2))
DIRECTORIES = (b"d" * 16, b"e" * 16)
SAID = {"endpoints": (ENDPOINT,), "features": FEATURES, "rack": "m", "directories": DIRECTORIES}


def registered(**changes: object) -> MetadataImage:
    return image_of(*_again(image_of(level=25), {**SAID, **changes}).records, level=25)


OTHER: list[dict[str, object]] = [
    {"endpoints": (msgspec.structs.replace(ENDPOINT, **{name: value}),)}
    for name, value in [
        *(("name", "A"), ("name", "Z"), ("host", "a"), ("host", "z")),
        *(("port", 1), ("port", 999), ("security_protocol", 0), ("security_protocol", 3)),
    ]
]
OTHER += [{"endpoints": (ENDPOINT, msgspec.structs.replace(ENDPOINT, name="B"))}]
OTHER += [
    {"features": (BrokerFeature("metadata.version", *both), FEATURES[1])} for both in ((1, 26), (2, 25))
]
OTHER += [{"features": (*FEATURES, BrokerFeature("group.version", 0, 1))}]
OTHER += [{"rack": rack} for rack in ("a", "z", None)]
OTHER += [{"directories": held} for held in ((*DIRECTORIES, b"f" * 16), (*DIRECTORIES, b"a" * 16))]


@pytest.mark.parametrize("other", OTHER, ids=str)
@pytest.mark.parametrize("forth", [True, False])
def test_whatever_a_registration_says_anew_is_written(other: dict[str, object], forth: bool) -> None:
    """The same process says something else, in either direction; said again, it is not written again."""
    before, after = ({}, other) if forth else (other, {})
    image = registered(**before)
    for said, count in ((after, 1), (before, 0)):
        result = _again(image, {**SAID, **said})
        assert not isinstance(result.response, ApiError), result.response
        assert len(result.records) == count


def test_the_order_of_listeners_features_and_directories_says_nothing() -> None:
    """Said again as it was said, too: the image has them in another order."""
    both = (ENDPOINT, msgspec.structs.replace(ENDPOINT, name="A"))
    turned = {"endpoints": both[::-1], "features": FEATURES[::-1], "directories": DIRECTORIES[::-1]}
    for said in ({"endpoints": both}, turned):
        assert _again(registered(endpoints=both), {**SAID, **said}).records == ()


def _again(image: MetadataImage, said: dict[str, object]) -> ControllerResult:
    return decide_registration(
        image,
        registration(1, **said),
        cluster_id=CLUSTER,
        next_offset=50,
        session_remaining_ms=0,
        session_timeout_ms=9_000,
        kraft_version=0,
    )


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({}, False),
        ({"incarnation_id": b"i" * 15}, True),
        ({"incarnation_id": b"i" * 17}, True),
        ({"incarnation_id": bytes(16)}, True),
        ({"endpoints": ()}, True),
        ({"directories": ()}, True),
        ({"directories": (b"d" * 15,)}, True),
        ({"directories": (bytes(15) + b"\x01",)}, True),
        ({"directories": (bytes(14) + b"\x01\x00",)}, False),
        ({"directories": (b"d" * 16, b"d" * 16)}, True),
    ],
)
def test_a_registration_names_what_it_must(said: dict[str, object], refused: bool) -> None:
    result = _again(image_of(level=25), {**SAID, **said})
    code = result.response.code if isinstance(result.response, ApiError) else None
    assert code == (ErrorCode.INVALID_REGISTRATION if refused else None)
    assert bool(result.records) != refused


# ---- who is a voter --------------------------------------------------------------------------------


def state(node_id: int, end: int, *, voter: bool = True) -> ReplicaState:
    return ReplicaState(
        node_id=node_id,
        directory_id=bytes([node_id]) * 16,
        is_voter=voter,
        log_end_offset=end,
        last_fetch_wall_ms=node_id + 100,
        last_caught_up_wall_ms=node_id + 200,
    )


def leading(*replicas: ReplicaState) -> Any:
    """The Raft core of node 2, which leads, at 77 ms."""
    return Fake(
        describe=lambda now_ms: list(replicas) if now_ms == 77 else [],
        state=Fake(identity=Fake(cluster_id="c"), config=Fake(new_voter_lag_max=30)),
        kraft_version=1,
        voters_offset=41,
        voters=VoterSet(
            [
                VoterNode(
                    node_id=1,
                    directory_id=bytes([1]) * 16,
                    endpoints=(Endpoint("CONTROLLER", "one", 9093),),
                    versions=VersionRange(0, 1),
                )
            ]
        ),
        node_id=2,
        is_leader=True,
        epoch=6,
        high_watermark=40,
        losses=(),
        log_end_offset=50,
        leader_id=2,
        transfer_refusal=lambda target: None,
    )


def shown(
    node_id: int, end: int, lag: int, status: str, endpoint: VoterEndpoint | None = None
) -> ReplicaStatus:
    return ReplicaStatus(
        node_id=node_id,
        directory_id=bytes([node_id]) * 16,
        log_end_offset=end,
        lag=lag,
        last_fetch_ms=node_id + 100,
        last_caught_up_ms=node_id + 200,
        status=status,
        is_alive=False,
        endpoints=() if endpoint is None else (endpoint,),
        max_kraft_version=0 if endpoint is None else 1,
    )


def test_the_quorum_is_told_by_voters_and_observers() -> None:
    raft = leading(
        state(2, 50), state(1, 45), state(3, -1), state(4, 50, voter=False), state(5, 51, voter=False)
    )
    image = image_of(
        ControllerRecord(
            controller_id=4,
            incarnation_id=bytes(15) + b"x",
            end_points=(ControllerEndpoint("CONTROLLER", "four", 9094, 0),),
            features=(ControllerFeature("kraft.version", 0, 1),),
        )
    )
    said = describe_quorum(raft, image, 77)
    assert isinstance(said, DescribeQuorumResponse)
    assert said.voters == (
        shown(2, 50, 0, "Leader"),
        shown(1, 45, 5, "Follower", VoterEndpoint("CONTROLLER", "one", 9093)),
        shown(3, -1, 50, "Follower"),
    )
    assert said.observers == (
        shown(4, 50, 0, "Observer", VoterEndpoint("CONTROLLER", "four", 9094)),
        shown(5, 51, 0, "Observer"),
    )
    assert (said.cluster_id, said.leader_id, said.leader_epoch, said.high_watermark) == ("c", 2, 6, 40)
    assert (said.kraft_version, said.new_voter_lag_max) == (1, 30)
    assert said.open_change == 41
    assert replace(said, high_watermark=42).open_change is None


@pytest.mark.parametrize(
    ("others", "target"),
    [
        ([], None),
        ([state(4, 99, voter=False)], None),
        ([state(1, 5), state(3, 6)], 3),
        ([state(3, 6), state(1, 6), state(4, 99, voter=False)], 1),
    ],
)
def test_leadership_goes_to_the_other_voter_whose_log_is_longest(
    others: list[ReplicaState], target: int | None
) -> None:
    found = transfer_target(leading(state(2, 1000), *others), None, 77)
    if target is None:
        assert isinstance(found, ApiError) and "there is no other voter" in str(found)
    else:
        assert found == target


@pytest.mark.parametrize(("leader", "hint"), [(None, None), (2, None), (3, 3)])
def test_who_is_not_the_active_controller_names_the_one_that_is(leader: int | None, hint: int | None) -> None:
    error = not_controller(2, leader)
    assert (error.code, error.leader_hint) == (ErrorCode.NOT_CONTROLLER, hint)


# ---- partitions ------------------------------------------------------------------------------------


def moving(index: int, *, adding: tuple[int, ...] = (), removing: tuple[int, ...] = ()) -> PartitionRecord:
    made = partition(index, (1, 2, 3), (1, 2), 1)
    return msgspec.structs.replace(made, adding_replicas=adding, removing_replicas=removing)


def test_a_reassignment_goes_on_while_anything_is_added_or_removed() -> None:
    image = image_of(
        *(broker(at) for at in (1, 2, 3)),
        TopicRecord("t", TOPIC),
        moving(0),
        moving(1, adding=(3,)),
        moving(2, removing=(2,)),
        moving(3, adding=(3,), removing=(2,)),
    )
    found = list(ongoing_reassignments(image))
    assert [(each.topic, each.partition, each.adding, each.removing) for each in found] == [
        ("t", 1, (3,), ()),
        ("t", 2, (), (2,)),
        ("t", 3, (3,), (2,)),
    ]
    assert [(each.replicas, each.isr) for each in found] == [((1, 2, 3), (1, 2))] * 3
    assert [each.partition for each in ongoing_reassignments(image, [("t", 3), ("t", 0), ("u", 1)])] == [3]


@pytest.mark.parametrize("told", [0, 1, 2, 3])
def test_so_many_refusals_of_elections_are_told_and_every_success(told: int) -> None:
    led_by_two = [partition(at, (1, 2), (2,), 2) for at in range(3)]
    electable = [partition(at, (3, 2), (3, 2), 2) for at in range(3, 5)]
    image = image_of(
        *(broker(at) for at in (1, 2, 3)), TopicRecord("t", TOPIC), *led_by_two, *electable, level=25
    )
    rules = rules_of(image, image.brokers.is_active)
    with mock.patch.object(elections, "REFUSALS_REPORTED_MAX", told):
        result = decide_elections(image, ElectLeadersRequest(unclean=False), rules, records_max=1000)
        one = decide_elections(image, ElectLeadersRequest(unclean=False), rules, records_max=1)
    assert isinstance(result.response, ElectLeadersResponse) and isinstance(
        one.response, ElectLeadersResponse
    )
    codes = [each.error for each in result.response.results]
    assert codes.count(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE) == told
    assert codes.count(ErrorCode.NONE) == len(result.records) == 2
    assert not result.response.more
    assert len(one.records) == 1 and one.response.more


@pytest.mark.parametrize(("most", "refused"), [(2, False), (1, True)])
def test_so_many_elections_may_be_named_at_once(most: int, refused: bool) -> None:
    """Each counts once; the answer to too many says nothing of the image, and waits for no commit."""
    image = image_of(TopicRecord("t", TOPIC), partition(0, (1,), (1,), 1), partition(1, (1,), (1,), 1))
    request = ElectLeadersRequest(unclean=False, partitions=(("t", 0), ("t", 1), ("t", 0)))
    result = decide_elections(image, request, rules_of(image, image.brokers.is_active), records_max=most)
    assert isinstance(result.response, ApiError) == refused
    assert result.depends_on_image != refused


ELR = FeatureLevelRecord("eligible.leader.replicas.version", 1)


@pytest.mark.parametrize(
    ("last", "replicas", "elected"), [(3, (1, 2, 3), 3), (3, (1, 2), -1), (1, (1, 2), -1)]
)
def test_the_last_known_leader_leads_again_while_it_is_a_replica(
    last: int, replicas: tuple[int, ...], elected: int
) -> None:
    """Of a partition that nobody in sync can lead; broker 1 is fenced."""
    lost = msgspec.structs.replace(
        partition(0, replicas, (), -1), directories=tuple(b"%dddddddddddddddd" % at for at in replicas)
    )
    brokers = [
        msgspec.structs.replace(broker(at, fenced=at == 1), log_dirs=(b"%dddddddddddddddd" % at,))
        for at in (1, 2, 3)
    ]
    image = image_of(
        *brokers,
        ELR,
        TopicRecord("t", TOPIC),
        msgspec.structs.replace(lost, last_known_elr=(last,)),
        level=25,
    )
    info = image.topics.partition(TOPIC, 0)
    assert info is not None and info.last_known_elr == (last,)
    change = build_change(info, Target(), rules_of(image, image.brokers.is_active))
    assert (-1 if change is None else change.leader) == elected
    if change is not None:
        assert change.isr == (elected,)


# ---- producer ids ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handed_out", "first"),
    [(None, 0), (0, 0), (7, 7), (2**63 - 1001, 2**63 - 1001), (2**63 - 1000, None), (2**63 - 1, None)],
)
def test_the_last_block_of_producer_ids_is_whole(handed_out: int | None, first: int | None) -> None:
    known = [] if handed_out is None else [ProducerIdsRecord(1, 10, handed_out)]
    image = image_of(broker(1), *known)
    result = decide_allocate_producer_ids(image, AllocateProducerIdsRequest(broker_id=1, broker_epoch=10))
    if first is None:
        assert isinstance(result.response, ApiError) and result.records == ()
        return
    assert result.response == AllocateProducerIdsResponse(first_id=first, count=1000)
    assert result.records == (ProducerIdsRecord(broker_id=1, broker_epoch=10, next_producer_id=first + 1000),)


# ---- the check of the node -------------------------------------------------------------------------


def batch(end: int, replies: int = 0, ends: int | None = None) -> Fake:
    return Fake(
        end_offset=end, state=Fake(end_offset=end if ends is None else ends), replies=[None] * replies
    )


def sound_node() -> Any:
    """Active, with two batches on their way, one of which fences a broker."""
    return Fake(
        ledger=Fake(
            committed_offset=10,
            pending=[batch(12, replies=2), batch(15)],
            replies_waiting=2,
            newest_state=Fake(end_offset=15),
            newest=Fake(brokers={1: None}),
        ),
        raft=Fake(high_watermark=10, is_leader=True),
        decided_end_offset=15,
        replica=Fake(snapshots=Fake(last_offset=0), is_reading=False),
        sessions=Fake(fencing={1: 5}),
        active=Fake(work=[Fake(broker_id=2), Fake(broker_id=1)]),
        config=Fake(answers_max=2, waiting_requests_max=1),
        stopped=None,
    )


def stand_by(node: Any) -> None:
    node.active, node.ledger.pending, node.ledger.replies_waiting = None, [], 0
    node.sessions.fencing = {}


BREAKS: dict[str, Callable[[Any], object]] = {
    "above the high watermark": lambda node: setattr(node.ledger, "committed_offset", 11),
    "must ascend": lambda node: node.ledger.pending.append(batch(15)),
    "must end where its batch ends": lambda node: node.ledger.pending.__setitem__(1, batch(15, ends=14)),
    "is committed and still pending": lambda node: setattr(node.raft, "high_watermark", 12),
    "miscounted": lambda node: setattr(node.ledger, "replies_waiting", 1),
    "must not replay others'": lambda node: setattr(node.replica, "is_reading", True),
    "has nothing pending": lambda node: setattr(node, "active", None),
    "fences no broker": lambda node: (stand_by(node), node.sessions.fencing.update({1: 5})),
    "an active controller leads": lambda node: setattr(node.raft, "is_leader", False),
    "the newest state ends at": lambda node: setattr(node, "decided_end_offset", 16),
    "no work is under way for it": lambda node: node.active.work.pop(1),
    "answers are not bounded": lambda node: (
        node.ledger.pending.__setitem__(1, batch(15, replies=2)),
        setattr(node.ledger, "replies_waiting", 4),
    ),
    "work is not bounded": lambda node: node.active.work.extend([Fake(broker_id=at) for at in range(2, 11)]),
}


@pytest.mark.parametrize("law", BREAKS)
def test_each_law_of_a_node_bites(law: str) -> None:
    node = sound_node()
    check_node(node)
    BREAKS[law](node)
    with pytest.raises(InvariantViolation, match=law):
        check_node(node)


def test_what_the_laws_of_a_node_allow() -> None:
    node = sound_node()
    node.active.work = [Fake(broker_id=at) for at in range(1, 11)]
    node.ledger.pending[1] = batch(15, replies=1)
    node.ledger.replies_waiting = 3
    check_node(node)
    node.ledger.committed_offset, node.replica.snapshots.last_offset = 11, 11
    check_node(node)
    stand_by(node)
    check_node(node)
    node.replica.is_reading = True
    check_node(node)


# Work in slices belongs to one incarnation of a broker: it ends when another one has registered.


NOTHING_LEFT = Slice(records=(), done=True)


def anybody(image: MetadataImage) -> Rules:
    """Rules by which every broker may lead."""
    return rules_of(image, lambda _: True)


def image_with_epoch(epoch: int, *, shutting_down: bool = False) -> MetadataImage:
    """Broker 1 of that epoch and broker 2, unfenced; broker 1 leads a partition."""
    return image_of(
        FeatureLevelRecord(name="metadata.version", feature_level=19),
        broker(1, epoch=epoch, shutting_down=shutting_down),
        broker(2),
        TopicRecord(name="t", topic_id=TOPIC),
        partition(0, (1, 2), (1, 2), 1),
    )


@pytest.mark.parametrize(
    "work",
    [
        RemoveBroker(broker_id=1, epoch=10),
        RemoveBroker(broker_id=1, epoch=10, unregister=True),
        MoveLeaders(broker_id=1, epoch=10),
    ],
)
def test_work_on_an_earlier_incarnation_leaves_the_newer_one_alone(work: Work) -> None:
    leaves = isinstance(work, MoveLeaders)
    same, newer = (image_with_epoch(epoch, shutting_down=leaves) for epoch in (10, 11))
    assert next_slice(work, same, anybody(same), 100).records
    assert next_slice(work, newer, anybody(newer), 100) == NOTHING_LEFT


@pytest.mark.parametrize("elr", [0, 1])
@pytest.mark.parametrize("kind", get_args(Work))
def test_work_that_finds_nothing_to_do_is_done(kind: type[Any], elr: int) -> None:
    """Of every kind; work that is never done would be asked for empty batches for ever."""
    image = image_of(
        FeatureLevelRecord(name="metadata.version", feature_level=25),
        FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=elr),
        broker(2),
        TopicRecord(name="t", topic_id=TOPIC),
        partition(0, (2,), (2,), 2),
    )
    given = {"broker_id": 1, "epoch": 10, "directories": frozenset([b"d" * 16])}
    wanted = set(kind.__struct_fields__) & given.keys()
    work = kind(**{name: given[name] for name in wanted if kind not in (BalanceLeaders, ForgetEligible)})
    assert next_slice(work, image, anybody(image), 100) == NOTHING_LEFT
    assert next_slice(work, MetadataImage(), anybody(image), 100) == NOTHING_LEFT


def test_leaders_stay_where_the_broker_does_not_leave_any_more() -> None:
    image = image_with_epoch(10)
    assert next_slice(MoveLeaders(broker_id=1, epoch=10), image, anybody(image), 100) == NOTHING_LEFT


def test_a_removal_ends_with_the_record_for_the_epoch_that_it_began_with() -> None:
    image = image_with_epoch(10)
    fenced = next_slice(RemoveBroker(broker_id=1, epoch=10), image, anybody(image), 100)
    assert fenced.done and fenced.records[-1] == FenceBrokerRecord(id=1, epoch=10)
    work = RemoveBroker(broker_id=1, epoch=10, unregister=True)
    removed = next_slice(work, image, anybody(image), 100)
    assert removed.done and removed.records[-1] == UnregisterBrokerRecord(broker_id=1, broker_epoch=10)
    assert not any(isinstance(record, FenceBrokerRecord) for record in removed.records)
