"""What the service does when nothing goes wrong."""

from __future__ import annotations

from typing import Any


def test_an_order_becomes_an_invoice(running: Any) -> None:
    running.desk.place("a book")
    assert running.wait_for_invoices(1) == ["invoice of a book"]


def test_orders_are_invoiced_in_their_order(running: Any) -> None:
    orders = [f"book {number}" for number in range(5)]
    for order in orders:
        running.desk.place(order)
    assert running.wait_for_invoices(5) == [f"invoice of {order}" for order in orders]
    running.cluster.wait_until(lambda: set(running.cluster.lag("invoices").values()) == {0})
