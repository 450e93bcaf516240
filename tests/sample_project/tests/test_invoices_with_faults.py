"""What the service does when brokers, the network and the protocol fail."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.testing import Chaos, check_log


def test_a_lost_acknowledgement_stores_an_order_once(running: Any) -> None:
    with running.cluster.fault("Produce", topic=running.orders, lose_answer=True, times=1) as lost:
        running.desk.place("a book")
        assert lost.hits == 1
    assert [each.value for each in running.cluster.consume_all(running.orders)] == [b"a book"]


def test_an_aborted_transaction_is_done_again(running: Any) -> None:
    with running.cluster.fault(
        "Produce", topic=running.invoices, error="MESSAGE_TOO_LARGE", times=1
    ) as refused:
        running.desk.place("a book")
        refused.wait()
    assert running.wait_for_invoices(1) == ["invoice of a book"]


@pytest.mark.kafka(brokers=2, controllers=1)
def test_the_coordinator_may_move(running: Any) -> None:
    running.desk.place("a book")
    running.wait_for_invoices(1)
    running.cluster.move_coordinator(transaction="invoices-1")
    running.desk.place("a pen")
    assert running.wait_for_invoices(2) == ["invoice of a book", "invoice of a pen"]


@pytest.mark.kafka(brokers=2, controllers=1, seed=3, chaos=Chaos(cuts=2, slow_disks=1, lasts_s=(0.1, 0.3)))
def test_every_order_is_invoiced_once_in_chaos(running: Any) -> None:
    running.cluster.timeout_s = 60
    orders = [f"book {number}" for number in range(10)]
    for order in orders:
        running.desk.place(order)
    running.cluster.wait_for_chaos()
    wanted = [("invoices", 0, f"invoice of {order}") for order in orders]
    check_log(wanted, [("invoices", 0, each) for each in running.wait_for_invoices(10)])
