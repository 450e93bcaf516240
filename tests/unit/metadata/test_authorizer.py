"""What access control entries answer: the written cases of acl_cases.txt, and what a decision costs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest
from msgspec.structs import replace

from metaquorum.metadata.authorizer import Authorizer, Caller
from metaquorum.metadata.image import Acl, MetadataImage, ShardedMap
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from tests.bench import bench_access

CASES = Path(__file__).with_name("acl_cases.txt")
_TYPES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.CLUSTER,
    "txn": ResourceType.TRANSACTIONAL_ID,
    "token": ResourceType.DELEGATION_TOKEN,
    "user": ResourceType.USER,
}
_PERMISSIONS = {"allow": Permission.ALLOW, "deny": Permission.DENY}


def _number(text: str, known: dict[str, int]) -> int:
    return known[text] if text in known else int(text)


@dataclass
class Case:
    title: str
    super_users: tuple[str, ...] = ()
    is_open: bool = False
    acls: list[Acl] = field(default_factory=list)
    questions: list[tuple[int, str]] = field(default_factory=list)


def _acl(words: list[str]) -> Acl:
    permission, principal, host, operation, kind, name = words
    pattern = PatternType.LITERAL
    if name.endswith("..."):
        name, pattern = name.removesuffix("..."), PatternType.PREFIXED
    elif "!" in name:
        number, _, name = name.partition("!")
        pattern = int(number)
    return Acl(
        resource_type=_number(kind, _TYPES),
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=_number(operation, Operation.__members__),
        permission_type=_number(permission, _PERMISSIONS),
    )


def _cases() -> list[Case]:
    cases: list[Case] = []
    for number, line in enumerate(CASES.read_text().splitlines(), 1):
        words = line.split()
        if not line or line.startswith("#"):
            continue
        if line.startswith("== "):
            cases.append(Case(line.removeprefix("== ")))
        elif words[0] == "super":
            cases[-1].super_users = tuple(words[1:])
        elif words[0] == "open":
            cases[-1].is_open = True
        elif line.endswith((": yes", ": no")):
            cases[-1].questions.append((number, line))
        else:
            cases[-1].acls.append(_acl(words))
    return cases


def _image(acls: list[Acl]) -> MetadataImage:
    entries: ShardedMap[bytes, Acl] = ShardedMap()
    builder = entries.builder()
    for number, acl in enumerate(acls):
        builder.put(number.to_bytes(16, "big"), acl)
    return replace(MetadataImage(), acls=builder.freeze())


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.title)
def test_written_cases(case: Case) -> None:
    image = _image(case.acls)
    authorizer = Authorizer(super_users=case.super_users, allow_everyone=case.is_open)
    for number, line in case.questions:
        question, _, answer = line.rpartition(": ")
        principal, host, operation, kind, name = question.split()
        asked = (image, Caller(principal, host), Operation[operation], _TYPES[kind])
        allowed = authorizer.allows_any(*asked) if name == "ANY" else authorizer.allows(*asked, name)
        assert allowed == (answer == "yes"), f"{CASES.name}:{number}: {line}"


def test_an_entry_that_is_gone_counts_no_more() -> None:
    """One of two equal ones still does."""
    allowed = _acl("allow User:a * READ topic t".split())
    authorizer = Authorizer()
    question = (Caller("User:a", "h"), Operation.READ, ResourceType.TOPIC, "t")
    image = _image([allowed, allowed])
    for left in (2, 1, 0):
        assert authorizer.allows(image, *question) == (left > 0)
        builder = image.acls.builder()
        builder.remove((2 - left).to_bytes(16, "big"))
        image = replace(image, acls=builder.freeze())


def test_there_are_enough_cases() -> None:
    assert sum(len(case.questions) for case in _cases()) >= 200


def test_operations_are_those_of_the_resource() -> None:
    image = _image([_acl("allow User:a * READ topic t".split()), _acl("allow User:a * ALL group g".split())])
    authorizer, caller = Authorizer(super_users=["User:root"]), Caller("User:a", "h")
    assert authorizer.operations(image, caller, ResourceType.TOPIC, "t") == 1 << 3 | 1 << 8
    assert authorizer.operations(image, caller, ResourceType.GROUP, "g") == 1 << 3 | 1 << 6 | 1 << 8
    root = Caller("User:root", "h")
    # The figures that Kafka answers where everything is allowed.
    assert authorizer.operations(image, root, ResourceType.TOPIC, "t") == 3576
    assert authorizer.operations(image, root, ResourceType.CLUSTER, "kafka-cluster") == 8096


def test_a_decision_costs_the_same_however_many_entries_there_are() -> None:
    """Counted in calls, which do not depend on the machine; tests/bench has the time."""
    few, many = _calls_over(1_000), _calls_over(20_000)
    assert many < 2 * few


def _calls_over(entries: int) -> int:
    """The calls of some questions over so many entries, once these were read."""
    image, authorizer = bench_access.image_of(entries), Authorizer()
    asked = bench_access.questions(1_000)
    answers = [bench_access.ask(authorizer, image, each) for each in asked]
    assert any(answers) and not all(answers)
    calls = _calls(lambda: [bench_access.ask(authorizer, image, each) for each in asked])
    # One more entry: only what changed is read.
    more = bench_access.with_one_more(image)
    assert _calls(lambda: bench_access.ask(authorizer, more, asked[0])) < 1_000
    assert not bench_access.ask(authorizer, more, asked[0])
    return calls


def _calls(action: Callable[[], object]) -> int:
    """How many functions `action` calls, Python's and built-in ones."""
    count = 0

    def counted(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count
