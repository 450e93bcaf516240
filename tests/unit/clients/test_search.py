"""The search for a node that answers: order of addresses, time limits, and the text at the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.clients.search import RETRY, Address, Attempts, ClientError, NodeChoice

A, B, C = ("a", 1), ("b", 2), ("c", 3)
ELSEWHERE = ("hint", 9)


def choice(*addresses: Address) -> NodeChoice:
    return NodeChoice(lambda: addresses)


def attempts(
    among: NodeChoice, *, limit_ms: int = 1000, attempt_ms: int = 400, most: int | None = None
) -> Attempts:
    return Attempts(among, random.Random(1), now_s=0.0, limit_ms=limit_ms, attempt_ms=attempt_ms, most=most)


def test_each_address_is_passed_over_for_the_next_and_then_the_first() -> None:
    among = choice(A, B, C)
    order = []
    for _ in range(4):
        order.append(among.current)
        among.pass_over(among.current)
    assert order == [A, B, C, A]


def test_a_node_outside_of_the_list_is_left_for_the_first_of_it() -> None:
    among = choice(A, B)
    among.prefer(ELSEWHERE)
    assert among.current == ELSEWHERE
    among.pass_over(ELSEWHERE)
    assert among.current == A


def test_a_failure_of_an_address_that_is_no_longer_the_current_one_changes_nothing() -> None:
    among = choice(A, B)
    among.prefer(B)
    among.pass_over(A)
    assert among.current == B


def test_the_list_may_change_between_calls() -> None:
    listed: list[Address] = [A]
    among = NodeChoice(lambda: listed)
    assert among.current == A
    listed[:] = [B, C]
    among.pass_over(A)
    assert among.current == B


def test_a_list_without_an_address_is_an_error_until_it_has_one() -> None:
    listed: list[Address] = []
    among = NodeChoice(lambda: listed)
    with pytest.raises(ClientError, match="no address of a controller is known yet"):
        _ = among.current
    listed.append(B)
    assert among.current == B


def test_an_address_that_fails_after_the_list_became_empty_is_not_asked_again() -> None:
    listed: list[Address] = [A, B]
    among = NodeChoice(lambda: listed)
    among.prefer(A)
    listed.clear()
    among.pass_over(A)
    with pytest.raises(ClientError, match="no address of a controller is known yet"):
        _ = among.current


def test_an_attempt_takes_its_share_and_the_last_one_what_is_left() -> None:
    search = attempts(choice(A, B))
    assert search.next_s(0.0) == 0.4
    assert not search.is_cut_short
    assert search.next_s(0.7) == pytest.approx(0.3)
    assert search.is_cut_short
    assert search.next_s(1.0) == 0.0
    assert search.count == 2


def test_no_more_attempts_than_allowed() -> None:
    search = attempts(choice(A), most=1)
    assert search.next_s(0.0) > 0
    search.failed(A, "it hung up")
    assert search.next_s(0.1) == 0.0
    assert search.text("quorum") == "no answer (a:1: it hung up); the change may or may not have been made"


def test_the_text_names_every_address_the_limit_and_the_last_problem() -> None:
    search = attempts(choice(A, ("::1", 2)))
    assert "(last: no request was sent)" in search.text("cluster")
    search.failed(A, "first")
    search.failed(("::1", 2), "second")
    assert search.text("cluster") == (
        "no node at a:1, [::1]:2 answered within 1000 ms (last: [::1]:2: second); check that the cluster "
        "runs and that the addresses are right"
    )


def test_a_search_is_hopeless_when_every_listed_address_is() -> None:
    search = attempts(choice(A, B))
    assert not search.failed(A, "unknown host", lasts=True)
    assert not search.failed(ELSEWHERE, "unknown host", lasts=True)
    assert not search.failed(B, "it hung up")
    assert search.failed(B, "unknown host", lasts=True)


def test_pauses_grow_from_one_failure_to_the_next() -> None:
    search = attempts(choice(A), limit_ms=100_000)
    waits_s = [search.wait_s(0.0) for _ in range(12)]
    least = [min(RETRY.initial_ms * 2**failures, RETRY.max_ms) for failures in range(12)]
    assert all(
        wait_s * 1000 >= (1 - RETRY.jitter) * nominal_ms - 1
        for wait_s, nominal_ms in zip(waits_s, least, strict=True)
    )


@given(st.lists(st.floats(0, 0.3), max_size=30))
def test_pauses_have_a_bound_and_never_pass_the_limit(steps: list[float]) -> None:
    search, now_s = attempts(choice(A)), 0.0
    longest_s = RETRY.max_ms * (1 + RETRY.jitter) / 1000
    while steps and search.next_s(now_s):
        wait_s = search.wait_s(now_s)
        assert 0 <= wait_s <= longest_s
        assert now_s + wait_s <= 1.0
        now_s += wait_s + steps.pop()
