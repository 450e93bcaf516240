"""The commands that change voters, against a leader made of a few lines: what they ask for and in which
order, what they say, and that they go on where an answer was lost."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from metaquorum.cli.admin import voter_changes
from metaquorum.cli.admin.voter_changes import _observer
from metaquorum.cli.main import main
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    DescribeQuorumResponse,
    RaftVoterRequest,
    ReplicaStatus,
)
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import voters_pb2 as pb
from metaquorum.proto.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from metaquorum.proto.voters_pb2_grpc import VotersServicer, add_VotersServicer_to_server
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.messages import tables as codec
from metaquorum.rpc.messages.errors import error_to_pb
from metaquorum.storage.uuids import uuid_to_text

CLUSTER = "EeRffYZ4QIOTb7vyl6pGQw"


def directory(number: int) -> bytes:
    return bytes([200, number]) * 8


def replica(node_id: int, number: int | None = None, *, alive: bool = True, lag: int = 0) -> ReplicaStatus:
    return ReplicaStatus(
        node_id=node_id,
        directory_id=directory(node_id if number is None else number),
        log_end_offset=5000 - lag,
        lag=lag,
        last_fetch_ms=None,
        last_caught_up_ms=None,
        status="",
        is_alive=alive,
        endpoints=(VoterEndpoint("CONTROLLER", "h", 9000 + node_id),),
        max_kraft_version=1,
    )


def quorum_of(*voters: ReplicaStatus, observers: tuple[ReplicaStatus, ...] = ()) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        cluster_id=CLUSTER,
        leader_id=voters[0].node_id,
        leader_epoch=3,
        high_watermark=5000,
        voters=voters,
        observers=observers,
        kraft_version=1,
        voters_offset=7,
        new_voter_lag_max=100,
    )


class Leader(AdminServicer, VotersServicer):
    """Describes `quorum` and changes it. `refusals` come first, each with whether the change is made all the
    same (its answer was lost)."""

    def __init__(self) -> None:
        self.quorum = quorum_of(replica(1), replica(2), replica(3))
        self.asked: list[str] = []
        self.refusals: list[tuple[ApiError, bool]] = []
        self.on_describe: Callable[[], None] = lambda: None
        self.described = 0

    async def DescribeQuorum(self, request: Any, context: Any) -> admin.DescribeQuorumResponse:
        self.described += 1
        self.on_describe()
        return codec.QUORUM.to_pb(self.quorum)

    async def Add(self, request: Any, context: Any) -> pb.ChangedVoters:
        decoded = codec.ADD_VOTER.from_pb(request)
        if decoded.validate_only:
            self.asked.append(f"validate {decoded.voter.voter_id}")
            return self._next() or pb.ChangedVoters()
        return self._change(decoded)

    async def Remove(self, request: Any, context: Any) -> pb.ChangedVoters:
        return self._change(codec.REMOVE_VOTER.from_pb(request))

    def _next(self) -> pb.ChangedVoters | None:
        if not self.refusals:
            return None
        error, _ = self.refusals.pop(0)
        return pb.ChangedVoters(error=error_to_pb(error))

    def _change(self, request: RaftVoterRequest) -> pb.ChangedVoters:
        made = not self.refusals or self.refusals[0][1]
        if made and not isinstance(request, AddRaftVoterRequest) and self._is_gone(request):
            error = ApiError(ErrorCode.VOTER_NOT_FOUND, "it is not a voter")
            return pb.ChangedVoters(error=error_to_pb(error))
        if made:
            self._make(request)
        return self._next() or pb.ChangedVoters()

    def _is_gone(self, request: RaftVoterRequest) -> bool:
        return all(voter.node_id != request.voter_id for voter in self.quorum.voters)  # type: ignore[union-attr]

    def _make(self, request: RaftVoterRequest) -> None:
        assert request.cluster_id == CLUSTER
        known = {(one.node_id, one.directory_id): one for one in self.quorum.voters + self.quorum.observers}
        if isinstance(request, AddRaftVoterRequest):
            self.asked.append(f"add {request.voter.voter_id}")
            one = known[request.voter.voter_id, request.voter.voter_directory_id]
            assert request.voter.endpoints == one.endpoints
            voters = (*self.quorum.voters, one)
            observers = tuple(each for each in self.quorum.observers if each is not one)
        else:
            self.asked.append(f"remove {request.voter_id}")  # type: ignore[union-attr]
            one = known[request.voter_id, request.voter_directory_id]  # type: ignore[union-attr]
            voters = tuple(each for each in self.quorum.voters if each is not one)
            observers = self.quorum.observers
        self.quorum = replace(self.quorum, voters=voters, observers=observers)


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    """A leader that serves, at the address in the environment; waits are short."""
    monkeypatch.setattr(voter_changes, "PATIENCE_S", 0.2)
    monkeypatch.setattr(voter_changes, "SAY_EVERY_S", 0.0)
    service, loop = Leader(), asyncio.new_event_loop()

    async def serve() -> tuple[Any, int]:
        server = new_server()
        port = bind(server, "127.0.0.1", 0, None)
        add_AdminServicer_to_server(service, server)
        add_VotersServicer_to_server(service, server)
        await server.start()
        return server, port

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server, port = asyncio.run_coroutine_threadsafe(serve(), loop).result(10)
    monkeypatch.setenv("METAQUORUM_BOOTSTRAP_CONTROLLERS", f"127.0.0.1:{port}")
    yield service
    asyncio.run_coroutine_threadsafe(server.stop(None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def run(*args: object) -> Result:
    result = CliRunner().invoke(main, ["quorum", *map(str, args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*args: object) -> str:
    """The one line of a command that fails."""
    result = run(*args)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_an_emptied_directory_is_replaced_old_first(leader: Leader) -> None:
    leader.quorum = quorum_of(replica(1), replica(2), replica(3, alive=False), observers=(replica(3, 33),))
    result = run("replace-voter", 3)
    assert leader.asked == ["validate 3", "remove 3", "add 3"]
    assert result.stdout.splitlines() == [
        f"node 3 (directory {uuid_to_text(directory(3))}) is no longer a voter",
        f"node 3 (directory {uuid_to_text(directory(33))}) is a voter",
    ]
    again = run("replace-voter", 3)
    assert "nothing to do" in again.stdout and again.exit_code == 0
    assert len(leader.asked) == 3


def test_a_voter_that_has_just_died_still_looks_alive(leader: Leader) -> None:
    """The leader notices it a while later; then the command goes on instead of having nothing to do."""
    looks_alive = replace(replica(3), last_fetch_ms=1_000)
    leader.quorum = quorum_of(replica(1), replica(2), looks_alive)

    def notice() -> None:
        if leader.described == 3:
            gone = replace(looks_alive, is_alive=False)
            leader.quorum = quorum_of(replica(1), replica(2), gone, observers=(replica(3, 33),))

    leader.on_describe = notice
    run("replace-voter", 3)
    assert leader.asked == ["validate 3", "remove 3", "add 3"]


@pytest.mark.parametrize("fetches", [True, False])
def test_a_voter_that_fetches_again_lives(leader: Leader, fetches: bool) -> None:
    """That is certain at its next fetch; one that never fetches again is looked at for the patience only."""

    def fetch() -> None:
        at_ms = 1_000 + leader.described * fetches
        leader.quorum = quorum_of(replica(1), replica(2), replace(replica(3), last_fetch_ms=at_ms))

    leader.on_describe = fetch
    result = run("replace-voter", 3)
    assert "nothing to do" in result.stdout and result.exit_code == 0
    assert (leader.described <= 3) == fetches


def test_another_id_comes_before_the_old_one_goes(leader: Leader) -> None:
    leader.quorum = quorum_of(replica(1), replica(2), replica(3, alive=False), observers=(replica(4),))
    run("replace-voter", 3, "--with", 4)
    assert leader.asked == ["validate 4", "add 4", "remove 3"]


@pytest.mark.parametrize("done_before", ["remove 3", "add 4"])
def test_an_interrupted_command_goes_on(leader: Leader, done_before: str) -> None:
    leader.quorum = quorum_of(replica(1), replica(2), observers=(replica(3, 33),))
    command: list[object] = ["replace-voter", 3]
    if done_before == "add 4":
        leader.quorum = quorum_of(replica(1), replica(2), replica(3), replica(4))
        command += ["--with", 4]
    assert run(*command).exit_code == 0
    assert leader.asked[-1:] == (["add 3"] if done_before == "remove 3" else ["remove 3"])
    assert sorted(voter.node_id for voter in leader.quorum.voters) in ([1, 2, 3], [1, 2, 4])


def test_a_new_voter_catches_up_first(leader: Leader) -> None:
    leader.quorum = quorum_of(replica(1), observers=(replica(2, lag=4000),))

    def nearer() -> None:
        (observer,) = leader.quorum.observers or (None,)
        if observer is not None and leader.described > 3:
            assert not any(asked.startswith("add") for asked in leader.asked) or observer.lag <= 100
            leader.quorum = replace(
                leader.quorum, observers=(replace(observer, lag=max(0, observer.lag - 1500)),)
            )

    leader.on_describe = nearer
    result = run("add-voter", 2)
    lines = result.stdout.splitlines()
    assert "node 2 is catching up: 4000 records behind" in lines
    assert "node 2 is catching up: 1000 records behind" in lines
    assert lines[-1].endswith("is a voter")
    assert leader.asked == ["validate 2", "add 2"]


LOST = [
    ApiError(ErrorCode.REQUEST_TIMED_OUT, "the voter change at offset 9 is not committed yet"),
    ApiError(ErrorCode.NOT_CONTROLLER, "the leader changed before the voter change was committed"),
    ApiError(ErrorCode.VOTER_NOT_FOUND, "node 3 is not a voter"),
]


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("error", LOST, ids=lambda error: error.code.name)
def test_an_answer_that_was_lost_is_judged_by_the_quorum(leader: Leader, error: ApiError, made: bool) -> None:
    leader.refusals = [(error, made)]
    if error.code is ErrorCode.VOTER_NOT_FOUND and not made:
        assert "VOTER_NOT_FOUND" in refused("remove-voter", 3)
        return
    result = run("remove-voter", 3)
    assert result.exit_code == 0, result.output
    assert leader.asked == ["remove 3"]


def test_a_dry_run_says_who_is_needed_and_changes_nothing(leader: Leader) -> None:
    leader.quorum = quorum_of(replica(1), replica(2), replica(3, alive=False), observers=(replica(4),))
    result = run("replace-voter", 3, "--with", 4, "--dry-run")
    assert result.stdout.splitlines() == [
        f"1. add voter 4 (directory {uuid_to_text(directory(4))}) once it has caught up",
        "   then 4 voters (1, 2, 3, 4), of which 3 are needed; alive: 1, 2, 4; no other voter may fail",
        f"2. remove voter 3 (directory {uuid_to_text(directory(3))})",
        "   then 3 voters (1, 2, 4), of which 2 are needed; alive: 1, 2, 4",
    ]
    told = json.loads(run("replace-voter", 3, "--with", 4, "--dry-run", "--json").stdout)
    assert [(step["step"], step["needed"], step["alive"]) for step in told["steps"]] == [
        ("add", 3, [1, 2, 4]),
        ("remove", 2, [1, 2, 4]),
    ]
    assert told["dryRun"] is True and not leader.asked


def test_a_step_without_a_live_majority_needs_force(leader: Leader) -> None:
    leader.quorum = quorum_of(replica(1), replica(2), replica(3, alive=False))
    line = refused("remove-voter", 2)
    assert "POLICY_VIOLATION: removing node 2 would leave 2 voters, of which 2 are needed and 1 are" in line
    assert "start node 3 first, or give --force" in line and not leader.asked
    assert run("remove-voter", 2, "--force").exit_code == 0
    assert leader.asked == ["remove 2"]


def _observers(*observers: ReplicaStatus) -> DescribeQuorumResponse:
    return quorum_of(replica(1), replica(2), replica(3), observers=observers)


BAD_INPUT: list[tuple[DescribeQuorumResponse, tuple[object, ...], str]] = [
    (_observers(), ("remove-voter", 9), "VOTER_NOT_FOUND: node 9 is not a voter: the voters are node 1 (dir"),
    (
        _observers(),
        ("remove-voter", 3, "--directory-id", uuid_to_text(directory(8))),
        f"VOTER_NOT_FOUND: node 3 with directory {uuid_to_text(directory(8))} is not a voter",
    ),
    (_observers(), ("replace-voter", 9), "VOTER_NOT_FOUND: node 9 is not a voter"),
    (_observers(), ("replace-voter", 9, "--with", 8), "VOTER_NOT_FOUND: node 9 is not a voter"),
    (quorum_of(replica(1)), ("remove-voter", 1), "VOTER_NOT_FOUND: node 1 is the last voter: add another"),
    (_observers(), ("add-voter", 4), "REQUEST_TIMED_OUT: node 4 does not fetch from the leader: start it"),
    (
        _observers(replica(4, alive=False)),
        ("add-voter", 4),
        "REQUEST_TIMED_OUT: node 4 has not fetched from the leader recently: start it",
    ),
    (
        _observers(replica(4)),
        ("add-voter", 4, "--directory-id", uuid_to_text(directory(8))),
        f"INVALID_VOTER_KEY: node 4 observes with directory {uuid_to_text(directory(4))}, not with",
    ),
    (
        _observers(replica(4), replica(4, 44)),
        ("add-voter", 4),
        "INVALID_REQUEST: several directories of node 4 observe",
    ),
    (
        _observers(replica(3, 33)),
        ("add-voter", 3),
        "DUPLICATE_VOTER: node 3 (directory",
    ),
    (_observers(replica(3, 33)), ("replace-voter", 3), "REQUEST_TIMED_OUT: node 3 (directory"),
    (
        _observers(replace(replica(4), max_kraft_version=0)),
        ("add-voter", 4),
        "INVALID_REQUEST: node 4 supports kraft.version 0 to 0, and this quorum is at 1",
    ),
    (
        _observers(replace(replica(4), endpoints=())),
        ("add-voter", 4),
        "INVALID_REQUEST: node 4 has not registered a controller listener",
    ),
    (
        replace(_observers(replica(4)), kraft_version=0),
        ("add-voter", 4),
        "UNSUPPORTED_VERSION: the voters are configured while kraft.version is 0",
    ),
    (
        replace(_observers(replica(4)), voters_offset=5000),
        ("add-voter", 4),
        "REQUEST_TIMED_OUT: another voter change, at offset 5000, is not committed yet",
    ),
]


@pytest.mark.parametrize(("quorum", "command", "line"), BAD_INPUT, ids=lambda value: str(value)[:40])
def test_bad_input_is_one_line_with_kafka_s_code(
    leader: Leader, quorum: DescribeQuorumResponse, command: tuple[object, ...], line: str
) -> None:
    leader.quorum = quorum
    assert line in refused(*command, "--wait", 0.3)
    assert not leader.asked


def test_the_leader_s_word_about_the_new_node_comes_before_any_removal(leader: Leader) -> None:
    leader.quorum = quorum_of(replica(1), replica(2), replica(3, alive=False), observers=(replica(3, 33),))
    text = "node 7 answers at h:9003, not node 3: correct the address"
    leader.refusals = [(ApiError(ErrorCode.INVALID_REQUEST, text), False)]
    assert f"INVALID_REQUEST: {text}" in refused("replace-voter", 3)
    assert leader.asked == ["validate 3"]


def test_a_node_that_is_still_registered_where_it_was_is_asked_where_it_is(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine was replaced under the same id, and has just started: it fetches before it registers."""
    monkeypatch.setattr(voter_changes, "PATIENCE_S", 60.0)
    moved = replica(3, 33)
    before = replace(moved, endpoints=(VoterEndpoint("CONTROLLER", "h", 1),))
    leader.quorum = quorum_of(replica(1), replica(2), replica(3, alive=False), observers=(before,))
    text = "voter 3 does not answer at h:1: start it, or correct its address"
    leader.refusals = [(ApiError(ErrorCode.REQUEST_TIMED_OUT, text), False)]

    def registers() -> None:
        if "validate 3" in leader.asked:
            leader.quorum = replace(
                leader.quorum,
                observers=tuple([moved if one is before else one for one in leader.quorum.observers]),
            )

    leader.on_describe = registers
    run("replace-voter", 3)
    assert leader.asked == ["validate 3", "validate 3", "remove 3", "add 3"]


def test_time_is_up_while_the_new_voter_catches_up(leader: Leader) -> None:
    leader.quorum = _observers(replica(4, lag=4000))
    result = run("add-voter", 4, "--wait", 0.5)
    assert result.exit_code == 1
    assert result.stderr == (
        "metaquorum: waited 0.5 s to add voter 4: node 4 is catching up: 4000 records behind;"
        " run the command again to continue\n"
    )


@pytest.mark.parametrize(
    ("quorum", "command", "waits"),
    [
        (_observers(), ("remove-voter", 9), False),
        (_observers(replica(4), replica(4, 44)), ("add-voter", 4), False),
        (replace(_observers(replica(4)), kraft_version=0), ("add-voter", 4), False),
        (_observers(), ("add-voter", 4), True),
        (quorum_of(replica(1), replica(2), replica(3, alive=False)), ("remove-voter", 2), True),
    ],
)
def test_only_what_may_change_by_itself_is_looked_at_again(
    leader: Leader, quorum: DescribeQuorumResponse, command: tuple[object, ...], waits: bool
) -> None:
    leader.quorum = quorum
    refused(*command, "--wait", 0.3)
    assert (leader.described > 1) is waits and not leader.asked


def test_a_change_that_is_not_committed_is_waited_for(leader: Leader) -> None:
    """Before each step, too: the plan was made while nothing was open."""

    def open_change() -> None:
        if leader.described == 3:
            leader.quorum = replace(leader.quorum, voters_offset=5000)

    leader.on_describe = open_change
    line = refused("remove-voter", 3, "--wait", 0.4)
    assert "waited 0.4 s to remove voter 3: the voter change at offset 5000 is not committed; run" in line


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--directory-id", "nonsense"), "is not a uuid"),
        (("--endpoint", "h:1,h:2"), "give one address"),
        (("--endpoint", "h"), "is not an address"),
        (("--wait", "0"), "is not in the range"),
    ],
)
def test_the_command_line_itself(more: tuple[str, str], text: str) -> None:
    result = run("add-voter", 4, *more)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize(
    ("observers", "named", "code", "text"),
    [
        ((), 4, ErrorCode.REQUEST_TIMED_OUT, "does not fetch from the leader"),
        (
            (replica(4, alive=False),),
            4,
            ErrorCode.REQUEST_TIMED_OUT,
            "has not fetched from the leader recently",
        ),
        ((replica(4, alive=False),), None, ErrorCode.REQUEST_TIMED_OUT, "has not fetched"),
        ((replica(4, 9),), 4, ErrorCode.INVALID_VOTER_KEY, "correct --directory-id"),
        ((replica(4, 8), replica(4, 9)), None, ErrorCode.INVALID_REQUEST, "give --directory-id"),
    ],
)
def test_an_observer_that_is_not_there_is_told_from_one_with_another_directory(
    observers: tuple[ReplicaStatus, ...], named: int | None, code: ErrorCode, text: str
) -> None:
    quorum = quorum_of(replica(1), observers=observers)
    with pytest.raises(ApiError) as caught:
        _observer(quorum, 4, None if named is None else directory(named))
    assert caught.value.code is code and text in caught.value.message
