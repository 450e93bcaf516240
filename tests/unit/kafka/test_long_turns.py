"""No request with many items holds the event loop: every array of every API of a broker, a new one, too."""

from __future__ import annotations

import pytest

from metaquorum.broker.server.kafka import groups
from metaquorum.listeners.forwarded import too_many
from metaquorum.wire.codec import FEW_VALUES
from tests.long_turns import turns

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
