"""The diagram of docs/architecture.md shows the calls that the code has."""

from __future__ import annotations

from tests.walk.processes import BLOCK, DOCUMENT, diagram, edges


def test_the_page_shows_who_calls_whom() -> None:
    shown = BLOCK.search(DOCUMENT.read_text("utf-8"))
    assert shown is not None
    assert shown[0] == diagram(), "write it again: python -m tests.walk.processes"


def test_known_calls_are_found_and_no_others_of_their_kind() -> None:
    found = edges()
    assert ("broker", "controller", "BrokerLifecycle") in found
    assert ("command", "broker", "BrokerSelf") in found
    assert ("broker", "broker", "Kafka's protocol") in found
    assert {caller for caller, _, service in found if service == "BrokerSelf"} == {"command"}
    assert {answerer for _, answerer, service in found if service == "Raft"} == {"controller"}
