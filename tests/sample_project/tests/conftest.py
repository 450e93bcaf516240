from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.testing import Cluster

sys.path.insert(0, str(Path(__file__).parents[1]))


class Running:
    """The service with its cluster."""

    def __init__(self, cluster: Cluster) -> None:
        from invoices import INVOICES, ORDERS, InvoiceService, OrderDesk

        self.cluster = cluster
        for topic in (ORDERS, INVOICES):
            cluster.create_topic(topic)
        self.desk = OrderDesk(cluster.client_config)
        self.orders, self.invoices = ORDERS, INVOICES
        self._stop = threading.Event()
        self._service = InvoiceService(cluster.client_config)
        self._thread = threading.Thread(target=self._service.run, args=(self._stop,), daemon=True)
        self._thread.start()

    def wait_for_invoices(self, count: int) -> list[str]:
        """All invoices, once there are as many."""
        self.cluster.wait_until(lambda: len(self._read()) >= count, f"{count} invoices")
        return self._read()

    def _read(self) -> list[str]:
        return [(each.value or b"").decode() for each in self.cluster.consume_all(self.invoices)]

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)


@pytest.fixture
def running(kafka_cluster: Cluster) -> Iterator[Running]:
    kafka_cluster.timeout_s = 8
    found = Running(kafka_cluster)
    yield found
    found.end()
