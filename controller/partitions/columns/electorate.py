"""Which replicas may lead, as tables over broker ids and directory codes.

Owns the tables, built once for many partitions. Does not elect: `elections` does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metaquorum.controller.partitions.partition_change import Rules
from metaquorum.metadata.image import MIGRATING, UNASSIGNED, MetadataImage
from metaquorum.metadata.image.chunk import PADDING

IntArray = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

DENSE_IDS_MAX = 1 << 20
"""Broker ids up to here have a place in the table; rows with higher ones are not decided in columns."""

_EVERYONE = -2
"""Owner of the directory ids that do not name a particular directory."""


class Electorate:
    """`acceptable` is about brokers; `in_place` is stricter than the rule for one partition: what it rejects
    needs a closer look."""

    __slots__ = ("_may_lead", "_owner")

    def __init__(self, image: MetadataImage, rules: Rules) -> None:
        brokers = [broker_id for broker_id in image.brokers if broker_id < DENSE_IDS_MAX]
        self._may_lead = np.zeros(max(brokers, default=0) + 2, dtype=bool)
        for broker_id in brokers:
            self._may_lead[broker_id] = rules.may_lead(broker_id)
        table = image.topics.columns.directories
        owner = np.full(len(table) + 1, PADDING, dtype=np.int64)
        for reserved in (MIGRATING, UNASSIGNED):
            owner[table.code(reserved)] = _EVERYONE
        for broker_id in brokers:
            for directory in image.brokers[broker_id].directories:
                code = table.find(directory)
                if code is not None and code < len(owner) and directory not in rules.failing:
                    owner[code] = broker_id
        self._owner = owner

    def acceptable(self, ids: IntArray) -> Flags:
        """By broker id; padding and unknown ids are not acceptable."""
        table = self._may_lead
        found: Flags = table[np.where((ids >= 0) & (ids < len(table)), ids, len(table) - 1)]
        return found

    def in_place(self, replicas: IntArray, directories: IntArray) -> Flags:
        """Whether each replica is in an online directory of its broker, or in no particular one."""
        owner = self._owner[np.where(directories < len(self._owner), directories, -1)]
        found: Flags = (owner == replicas) | (owner == _EVERYONE)
        return found
