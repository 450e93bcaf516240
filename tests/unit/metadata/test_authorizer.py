"""What access control entries answer: the written cases of acl_cases.txt, and what a decision costs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from metaquorum.metadata.access.authorizer import Authorizer, Caller
from metaquorum.metadata.image import Acl, MetadataImage, ShardedMap
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType

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


def test_a_decision_over_100_000_entries_takes_less_than_20_microseconds() -> None:
    acls = [
        _acl(f"allow User:u{i % 500} {'*' if i % 3 else '10.0.1.1'} READ topic team{i % 997}.{i}...".split())
        if i % 2
        else _acl(f"allow User:u{i % 500} * READ topic team{i % 997}.{i}".split())
        for i in range(100_000)
    ]
    image, authorizer = _image(acls), Authorizer()
    asked = [
        (Caller(f"User:u{i % 500}", "10.0.1.1"), f"team{i % 997}.{i}.orders") for i in range(1, 20_000, 7)
    ]
    authorizer.allows(image, *_question(asked[0]))
    begun = time.process_time()
    answers = [authorizer.allows(image, *_question(each)) for each in asked]
    spent_us = (time.process_time() - begun) * 1e6 / len(asked)
    assert any(answers) and not all(answers)
    assert spent_us < 20, f"{spent_us:.1f} us"
    # One more entry: only what changed is read.
    builder = image.acls.builder()
    builder.put(b"new", _acl("deny User:* * ALL topic *".split()))
    begun = time.process_time()
    assert not authorizer.allows(replace(image, acls=builder.freeze()), *_question(asked[0]))
    assert time.process_time() - begun < 0.05


def _question(asked: tuple[Caller, str]) -> tuple[Caller, Operation, ResourceType, str]:
    return asked[0], Operation.READ, ResourceType.TOPIC, asked[1]
