"""The diagram of docs/architecture.md shows the calls that the code has."""

from __future__ import annotations

from tests.walk.processes import BLOCK, DOCUMENT, diagram, edges


def test_the_page_shows_who_calls_whom() -> None:
    shown = BLOCK.search(DOCUMENT.read_text("utf-8"))
    assert shown is not None
    assert shown[0] == diagram(), "write it again: python -m tests.walk.processes"


def test_known_calls_are_found_and_no_others_of_their_kind() -> None:
    found = edges()
    assert ("broker", "controller", "BrokerLifecycle.Heartbeats") in found
    assert ("command", "broker", "BrokerSelf.DescribeBroker") in found
    assert ("broker", "broker", "Kafka's protocol") in found
    assert {caller for caller, _, what in found if what.startswith("BrokerSelf.")} == {"command"}
    assert ("controller", "controller", "Kafka's protocol") in found
    assert {answerer for _, answerer, what in found if what == "Forwarding.Follow"} == {"controller"}


def test_a_client_class_counts_with_the_calls_that_a_role_makes() -> None:
    """Brokers and commands have the same `AdminClient`."""
    made = {(caller, what) for caller, _, what in edges()}
    assert ("command", "Admin.TransferLeadership") in made and ("command", "Metadata.ListBrokers") in made
    assert ("broker", "Admin.DescribeQuorum") in made and ("broker", "Forwarding.Forward") in made
    for what in ("Admin.TransferLeadership", "Metadata.ListBrokers", "BrokerIds.Bind", "Voters.Add"):
        assert ("broker", what) not in made
    assert {caller for caller, what in made if what == "BrokerLifecycle.Register"} == {"broker"}
