"""Which brokers get the replicas of a new topic: round robin. Knows no image: ids go in and come out."""

from __future__ import annotations

from collections.abc import Sequence


def round_robin(
    brokers: Sequence[int], partitions: int, replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """Replica lists by partition, the preferred leader first.

    Leaders go round from `start`. Followers stand next to their leader at first, and one further for each
    full round, so that the partitions of one leader are followed by all others in turn. `brokers` are
    distinct and at least `replication_factor` many.
    """
    count = len(brokers)
    assignments: list[tuple[int, ...]] = []
    for partition in range(partitions):
        leader = (start + partition) % count
        replicas = [brokers[leader]]
        for follower in range(replication_factor - 1):
            distance = 1 + (partition // count + follower) % (count - 1)
            replicas.append(brokers[(leader + distance) % count])
        assignments.append(tuple(replicas))
    return assignments
