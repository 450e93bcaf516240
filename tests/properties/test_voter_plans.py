"""Laws of plans for voters: no plan passes through a voter set without a live majority, and Raft accepts each
step.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metaquorum.cli.admin.voter_changes import (
    StepKind,
    VoterPlan,
    VoterStep,
    VoterWish,
    check_step,
    is_done,
    make_plan,
)
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import DescribeQuorumResponse, ReplicaStatus

IDS = st.integers(1, 7)
DIRECTORIES = st.sampled_from([bytes([n]) * 16 for n in (200, 201, 202)])


@st.composite
def replicas(draw: st.DrawFn, status: str) -> ReplicaStatus:
    return ReplicaStatus(
        node_id=draw(IDS),
        directory_id=draw(DIRECTORIES),
        log_end_offset=90,
        lag=10,
        last_fetch_ms=None,
        last_caught_up_ms=None,
        status=status,
        is_alive=draw(st.booleans()),
        max_kraft_version=1,
    )


@st.composite
def quorums(draw: st.DrawFn) -> DescribeQuorumResponse:
    """Any quorum that a live leader can describe. It leads with a majority, or has just lost it."""
    voters = draw(st.lists(replicas("Follower"), min_size=1, max_size=7, unique_by=lambda one: one.node_id))
    voters[0] = replace(voters[0], is_alive=True, status="Leader")
    keys = {(one.node_id, one.directory_id) for one in voters}
    observers = draw(
        st.lists(replicas("Observer"), max_size=4, unique_by=lambda one: (one.node_id, one.directory_id))
    )
    return DescribeQuorumResponse(
        cluster_id="cluster",
        leader_id=voters[0].node_id,
        leader_epoch=4,
        high_watermark=100,
        voters=tuple(voters),
        observers=tuple(one for one in observers if (one.node_id, one.directory_id) not in keys),
        kraft_version=1,
        voters_offset=draw(st.sampled_from([5, 5, 5, 100])),
        new_voter_lag_max=1000,
    )


@st.composite
def wishes(draw: st.DrawFn, *, force: bool = False) -> VoterWish:
    add_id, remove_id = draw(st.tuples(st.none() | IDS, st.none() | IDS).filter(any))
    return VoterWish(
        add_id=add_id, remove_id=remove_id, directory_id=draw(st.none() | DIRECTORIES), force=force
    )


def plan_or_refusal(quorum: DescribeQuorumResponse, wanted: VoterWish) -> VoterPlan | ApiError:
    try:
        return make_plan(quorum, wanted)
    except ApiError as error:
        return error


def after(quorum: DescribeQuorumResponse, step: VoterStep) -> DescribeQuorumResponse:
    """The quorum as it is described when the step is committed. A removed voter observes."""
    key = (step.member.node_id, step.member.directory_id)
    known = {(one.node_id, one.directory_id): one for one in (*quorum.voters, *quorum.observers)}
    voters = tuple(known[member.node_id, member.directory_id] for member in step.voters)
    observers = [one for one in quorum.observers if (one.node_id, one.directory_id) != key]
    if step.kind is StepKind.REMOVE:
        observers.append(known[key])
    return replace(quorum, voters=voters, observers=tuple(observers))


@settings(max_examples=250, deadline=None)
@given(quorums(), wishes())
def test_no_step_leaves_a_set_without_a_live_majority(
    quorum: DescribeQuorumResponse, wanted: VoterWish
) -> None:
    plan = plan_or_refusal(quorum, wanted)
    if isinstance(plan, ApiError):
        return
    assert bool(plan.steps) != bool(plan.nothing_to_do)
    assert quorum.open_change is None
    now = quorum
    for step in plan.steps:
        before = {(one.node_id, one.directory_id) for one in now.voters}
        assert not is_done(now, step)
        check_step(now, step)
        now = after(now, step)
        voters = {(one.node_id, one.directory_id) for one in now.voters}
        assert len(voters ^ before) == 1, "one change at a time"
        assert len({node_id for node_id, _ in voters}) == len(voters), "each id once"
        assert sum(one.is_alive for one in now.voters) > len(now.voters) // 2
        assert is_done(now, step)


@settings(max_examples=250, deadline=None)
@given(quorums(), wishes())
def test_a_plan_reaches_what_was_asked_for_and_can_be_run_again(
    quorum: DescribeQuorumResponse, wanted: VoterWish
) -> None:
    plan = plan_or_refusal(quorum, wanted)
    if isinstance(plan, ApiError):
        return
    now = quorum
    for taken in range(len(plan.steps) + 1):
        left = make_plan(now, wanted)
        assert [step.member for step in left.steps] == [step.member for step in plan.steps[taken:]]
        if taken < len(plan.steps):
            now = after(now, plan.steps[taken])
    ids = {one.node_id for one in now.voters}
    assert wanted.add_id is None or wanted.add_id in ids
    assert wanted.remove_id in (None, wanted.add_id) or wanted.remove_id not in ids
    if wanted.directory_id is not None and wanted.add_id is not None and plan.steps:
        added = [step.member for step in plan.steps if step.kind is StepKind.ADD]
        assert not added or added[0].directory_id == wanted.directory_id


@settings(max_examples=250, deadline=None)
@given(quorums(), wishes())
def test_force_lifts_that_refusal_and_no_other(quorum: DescribeQuorumResponse, wanted: VoterWish) -> None:
    plan, forced = plan_or_refusal(quorum, wanted), plan_or_refusal(quorum, replace(wanted, force=True))
    if isinstance(plan, ApiError) and plan.code is ErrorCode.POLICY_VIOLATION:
        assert isinstance(forced, VoterPlan) and not all(step.has_majority for step in forced.steps)
        assert "--force" in plan.message
    else:
        assert forced == plan


@settings(max_examples=300, deadline=None)
@given(quorums(), st.data())
def test_a_dead_voter_can_always_be_removed_while_a_majority_is_alive(
    quorum: DescribeQuorumResponse, data: st.DataObject
) -> None:
    leader, *others = quorum.voters
    dead_count = data.draw(st.integers(0, max(0, (len(quorum.voters) - 1) // 2)))
    others = [replace(one, is_alive=at >= dead_count) for at, one in enumerate(others)]
    found = replace(quorum, voters=(leader, *others), voters_offset=5)
    for dead in others[:dead_count]:
        (step,) = make_plan(found, VoterWish(remove_id=dead.node_id)).steps
        assert step.kind is StepKind.REMOVE and step.member.node_id == dead.node_id
