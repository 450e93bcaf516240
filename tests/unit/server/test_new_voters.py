"""What a node that is to become a voter is asked first, and how long it may take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.controller.server import voter_changes as module
from metaquorum.controller.server.voter_changes import PROBE_TIMEOUT_MS, VoterChanges
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    Done,
    ReadImageRequest,
    ReadImageResponse,
    RemoveRaftVoterRequest,
    UpgradeKRaftVersionRequest,
)
from metaquorum.metadata.requests.settings import (
    FeatureUpdate,
    LevelChange,
    SettingResult,
    SettingsResponse,
    UpdateFeaturesRequest,
)
from tests.unit.controller.node_quorum import Quorum
from tests.unit.observability.test_small_parts import STATUS

ENDPOINTS = (VoterEndpoint("IN", "a", 1), VoterEndpoint("OUT", "b", 2))
VOTER = Voter(STATUS.node_id, STATUS.directory_id, ENDPOINTS)
REQUEST = AddRaftVoterRequest(voter=VOTER, cluster_id=STATUS.cluster_id)


class Probe:
    """`answer`: what the new voter says; None: that it is the one."""

    def __init__(self, answer: ApiError | None = None) -> None:
        self.asked: list[tuple[Any, int]] = []
        self._answer = answer

    async def ask(
        self, voter: Voter, addresses: list[tuple[str, int]], timeout_ms: int
    ) -> KRaftVersionFeature | ApiError:
        assert voter.voter_id == VOTER.voter_id
        self.asked.append((addresses, timeout_ms))
        return self._answer or KRaftVersionFeature(0, 1)


def changes(probe: Probe) -> VoterChanges:
    unused: Any = None
    return VoterChanges(unused, Quorum(size=1).elect().node.raft, STATUS.cluster_id, probe)


@pytest.mark.parametrize(
    ("asked_ms", "given_ms"), [(0, 1), (-5, 1), (1, 1), (700, 700), (600_000, PROBE_TIMEOUT_MS)]
)
async def test_it_has_as_long_as_who_asks_waits(asked_ms: int, given_ms: int) -> None:
    probe = Probe()
    found = await changes(probe)._probe(replace(REQUEST, timeout_ms=asked_ms))
    assert probe.asked == [([("a", 1), ("b", 2)], given_ms)]
    supported = replace(VOTER, kraft_version_feature=KRaftVersionFeature(0, 1))
    assert found == replace(REQUEST, timeout_ms=asked_ms, voter=supported)


async def test_it_needs_an_address() -> None:
    probe = Probe()
    found = await changes(probe)._probe(replace(REQUEST, voter=replace(VOTER, endpoints=())))
    assert isinstance(found, ApiError) and found.code is ErrorCode.INVALID_REQUEST
    assert probe.asked == []


@pytest.mark.parametrize(("level", "fits"), [(0, False), (1, True), (2, True), (3, False)])
def test_it_can_work_at_the_level_of_the_quorum(level: int, fits: bool) -> None:
    voter = replace(VOTER, kraft_version_feature=KRaftVersionFeature(1, 2))
    assert (module._too_old(voter, level) is None) == fits


@pytest.mark.parametrize(
    ("cluster_id", "code"),
    [
        ("other", ErrorCode.INCONSISTENT_CLUSTER_ID),
        *[(at, ErrorCode.UNSUPPORTED_VERSION) for at in (None, STATUS.cluster_id)],
    ],
)
def test_a_request_of_another_cluster_is_refused_before_anybody_is_asked(
    cluster_id: str | None, code: ErrorCode
) -> None:
    found = changes(Probe())._why_not_here(replace(REQUEST, cluster_id=cluster_id))
    assert found is not None and found.code is code  # voters are configured here


# ---- what reaches Raft, and what comes back


class Inbox:
    """In the place of the node's: answers in turn."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[Any] = []
        self._answers = list(answers)

    async def ask(self, request: Any, mutator: object = None) -> Any:
        self.asked.append(request)
        return self._answers.pop(0)


IMAGE = ReadImageResponse(image=MetadataImage(), offset=0)
BUSY = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "busy")


def over(inbox: Inbox, probe: Probe | None = None, **raft: Any) -> VoterChanges:
    """`raft`: what is unusual about the core of this leader."""
    usual = {"node_id": 1, "leader_id": 1, "is_leader": True, "kraft_version": 1, "voters": (1,)}
    core: Any = SimpleNamespace(**{**usual, **raft})
    return VoterChanges(inbox, core, STATUS.cluster_id, probe or Probe())  # type: ignore[arg-type]


async def test_a_new_voter_is_added_with_the_versions_that_it_reports() -> None:
    probe = Probe()
    supported = replace(VOTER, kraft_version_feature=KRaftVersionFeature(0, 1))
    for answer in (Done(), BUSY):
        inbox = Inbox(answer)
        assert await over(inbox, probe).change(REQUEST) == answer
        assert inbox.asked == [replace(REQUEST, voter=supported)]
    asked = replace(REQUEST, validate_only=True)
    assert await over(Inbox(), probe).change(asked) == Done()
    found = await over(Inbox(), probe, kraft_version=2).change(asked)
    assert isinstance(found, ApiError) and found.code is ErrorCode.INVALID_REQUEST
    assert "supports kraft.version 0 to 1 and this quorum is at 2" in found.message
    assert len(probe.asked) == 4


async def test_a_refused_addition_reaches_nobody() -> None:
    probe, inbox = Probe(BUSY), Inbox()
    other = await over(inbox, probe).change(replace(REQUEST, cluster_id="other"))
    assert isinstance(other, ApiError) and other.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert probe.asked == []
    assert await over(inbox, probe).change(REQUEST) is BUSY
    assert inbox.asked == []


async def test_a_removal_is_for_raft_to_judge() -> None:
    request = RemoveRaftVoterRequest(voter_id=3, voter_directory_id=bytes(16))
    for answer in (Done(), BUSY):
        inbox = Inbox(answer)
        assert await over(inbox).change(request) == answer
        assert inbox.asked == [request]


def of_kraft_version(level: int, *, validate_only: bool = False) -> UpdateFeaturesRequest:
    update = FeatureUpdate(name="kraft.version", level=level, change=LevelChange.UPGRADE)
    return UpdateFeaturesRequest(updates=(update,), validate_only=validate_only)


async def test_an_upgrade_reads_the_image_first() -> None:
    inbox = Inbox(BUSY)
    assert await over(inbox).upgrade(of_kraft_version(1)) is BUSY
    assert inbox.asked == [ReadImageRequest(linearizable=False)]


WRONG = ApiError(ErrorCode.INVALID_UPDATE_VERSION, "not so")


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (Done(), SettingResult(subject="kraft.version")),
        (BUSY, BUSY),
        (
            WRONG,
            SettingResult(
                subject="kraft.version",
                error=ErrorCode.INVALID_UPDATE_VERSION,
                message="kraft.version cannot become 1: not so",
            ),
        ),
    ],
)
async def test_the_level_that_a_quorum_has_is_asked_for_even_to_validate(
    answer: Any, found: Any, validate_only: bool
) -> None:
    """Only Raft knows whether a change is under way; nothing is written for the same level."""
    inbox = Inbox(IMAGE, answer)
    response = await over(inbox).upgrade(of_kraft_version(1, validate_only=validate_only))
    assert inbox.asked[1:] == [UpgradeKRaftVersionRequest(kraft_version=1, voters=())]
    expected = found if isinstance(found, ApiError) else SettingsResponse(results=(found,))
    assert response == expected


@pytest.mark.parametrize("validate_only", [False, True])
async def test_an_upgrade_that_is_only_validated_is_not_asked_for(
    validate_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = UpgradeKRaftVersionRequest(kraft_version=2, voters=(VOTER,))
    monkeypatch.setattr(module, "upgrade_request", lambda level, image, raft: wanted)
    inbox = Inbox(IMAGE, Done())
    response = await over(inbox).upgrade(of_kraft_version(2, validate_only=validate_only))
    assert response == SettingsResponse(results=(SettingResult(subject="kraft.version"),))
    assert inbox.asked[1:] == ([] if validate_only else [wanted])


async def test_an_upgrade_that_cannot_be_says_why() -> None:
    response = await over(Inbox(IMAGE)).upgrade(of_kraft_version(2))
    assert not isinstance(response, ApiError)
    (found,) = response.results
    assert found.error is ErrorCode.INVALID_UPDATE_VERSION
    assert (found.message or "").startswith("kraft.version cannot become 2: ")
    elsewhere = await over(Inbox(IMAGE), is_leader=False, leader_id=2).upgrade(of_kraft_version(2))
    assert isinstance(elsewhere, ApiError) and elsewhere.code is ErrorCode.NOT_CONTROLLER


async def test_a_new_voter_is_asked_at_the_listener_of_voters() -> None:
    """Not at that of gRPC, which its entry names, too."""
    probe = Probe()
    kafka, grpc = VoterEndpoint("CONTROLLER", "a", 1), VoterEndpoint("GRPC", "a", 2)
    request = replace(REQUEST, voter=replace(VOTER, endpoints=(grpc, kafka)))
    core: Any = SimpleNamespace(node_id=1, leader_id=1, is_leader=True, kraft_version=1, voters=(1,))
    inbox: Any = Inbox(Done())
    changes = VoterChanges(inbox, core, STATUS.cluster_id, probe, "controller")
    assert await changes.change(request) == Done()
    assert probe.asked == [([("a", 1)], PROBE_TIMEOUT_MS)]
