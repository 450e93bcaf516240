"""A cluster that the tests of a process share: each has topics of its own, and leaves none behind."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Mapping

from metaquorum.testing.calls import CheckedCalls
from metaquorum.testing.cluster import Cluster
from metaquorum.testing.errors import ClusterError

_numbers = itertools.count(1)


class SharedCluster(CheckedCalls):
    """Makes the cluster at its first use. `make` returns one that is not started."""

    def __init__(self, make: Callable[[], Cluster]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None
        self._begun_ms = 0
        """When the test began, in Unix time by the cluster's clock."""

    @property
    def cluster(self) -> Cluster:
        """The cluster itself, for what needs no topic of a test's own."""
        with self._lock:
            if self._cluster is None:
                self._cluster = self._make().start()
            return self._cluster

    @property
    def bootstrap_servers(self) -> str:
        """For any client's `bootstrap.servers`."""
        return self.cluster.bootstrap_servers

    @property
    def client_config(self) -> dict[str, str]:
        """As `Cluster.client_config`."""
        return self.cluster.client_config

    def topic(
        self,
        name: str = "topic",
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        configs: Mapping[str, object] | None = None,
    ) -> str:
        """Creates a topic with a name of its own that begins with `name`; returns the name."""
        unique = f"{name}-{next(_numbers)}"
        return self.cluster.create_topic(unique, partitions, replication_factor, configs=configs)

    def unique(self, name: str = "group") -> str:
        """A name that no other test uses, for a group or a transactional id."""
        return f"{name}-{next(_numbers)}"

    def begin_test(self) -> None:
        """What happens from now on is that of another test."""
        with self._lock:
            self._begun_ms = 0 if self._cluster is None else self._cluster.clock.wall_ms

    def failure_report(self) -> str:
        """For the report of a failed test: what happened since it began."""
        return self.cluster.failure_report(self._begun_ms)

    def clean(self) -> None:
        """Removes what tests have made. A cluster that does not come back healthy is replaced at the next
        use."""
        with self._lock:
            cluster = self._cluster
        if cluster is None:
            return
        try:
            cluster.clean()
        except ClusterError:
            self.close()

    def close(self) -> None:
        """Closes the cluster, if there is one."""
        with self._lock:
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            with contextlib.suppress(ClusterError):
                cluster.close()
