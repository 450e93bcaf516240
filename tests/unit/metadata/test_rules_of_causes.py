"""The table of rules of causes: its page, its names, and what hangs on them."""

from __future__ import annotations

from pathlib import Path

from metaquorum.metadata.inspect.causes.brokers import FENCES
from metaquorum.metadata.inspect.causes.rule import SEVERITIES
from metaquorum.metadata.inspect.causes.table import (
    EXPLAINS,
    PRECEDENCE,
    TABLE,
    WRITTEN,
    is_orderly,
    render_document,
    rule_lines,
    word_of,
)
from tests.conftest import REPOSITORY
from tests.unit.generated import keep_generated


def test_the_page_is_what_the_table_makes() -> None:
    keep_generated("log-tools.md", render_document())


BY_THEIR_TEXT = frozenset(
    (
        "broker-id-unused directory-assigned eligible-leaders-off fence-requested fenced-broker-leads "
        "leadership-began metadata-lag new-incarnation token-expired transaction-abandoned"
    ).split()
)
"""Rules that tests know by what they answer. A new rule is not one of them."""


def test_a_test_or_a_story_names_every_rule() -> None:
    tests = [*Path(__file__).parent.glob("test_*.py"), *(REPOSITORY / "tests" / "stories").glob("*.txt")]
    text = "".join(path.read_text("utf-8") for path in tests if path != Path(__file__))
    names = {rule.name for rules in (*TABLE, WRITTEN) for rule in rules.rules}
    missing = {name for name in names if name not in text} - BY_THEIR_TEXT
    assert not missing, f"test_same_records.py has no records that match {missing}, nor some that do not"


def test_every_rule_is_whole_and_comes_once_per_kind_of_change() -> None:
    for rules in (*TABLE, WRITTEN):
        names = [rule.name for rule in rules.rules]
        assert len(names) == len(set(names)) > 0, rules.about
        numbers = [rule.precedence for rule in rules.rules]
        assert numbers == sorted(set(numbers)), "no two rules of one kind have one precedence"
        for rule in rules.rules:
            assert rule.when and rule.severity in SEVERITIES and "_" not in rule.name
            assert all(what and proof for what, proof in rule.readings)
    for rules in TABLE[:3]:
        assert all(rule.explains for rule in rules.rules), "a rule about partitions explains a field"
    assert PRECEDENCE.keys() == EXPLAINS.keys()


def test_a_list_for_a_terminal_has_every_rule_and_what_would_confirm_it() -> None:
    lines = rule_lines()
    for rules in (*TABLE, WRITTEN):
        assert f"{rules.about}:" in lines
        for rule in rules.rules:
            assert f"{rule.name:24}  {rule.when}" in lines
            for what, proof in rule.readings:
                assert any(line.strip() == f"{what}? to confirm: {proof}" for line in lines)


def test_only_a_clean_stop_is_no_fault() -> None:
    orderly = {rule.name for rule in FENCES.rules if is_orderly(rule.name)}
    assert orderly == {"shutdown-finished", "stopped-idle", "idle-fenced-early"}
    assert is_orderly("controlled-shutdown")
    assert (
        not is_orderly(None) and not is_orderly("broker-restarted") and not is_orderly("of a newer release")
    )


def test_a_rule_without_a_word_has_its_name() -> None:
    assert word_of("session-expired") == "no heartbeat"
    assert word_of("of-a-newer-release") == "of-a-newer-release"
    assert word_of(None) == word_of("") == "of unknown cause"
