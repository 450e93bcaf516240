"""The table `upgrades`: finalized features of the cluster, and what its nodes' software supports, over time.

Owns the comparison of a level with the one before. Does not know where nodes run (`ids`)
or whether a level is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from metaquorum.metadata.features import METADATA_VERSION, METADATA_VERSION_NAMES
from metaquorum.metadata.image import BrokerRegistration, ControllerRegistration
from metaquorum.pipeline.intervals.moments import Moment, Row
from metaquorum.pipeline.intervals.rows import Intervals, Memory

FEATURE, BROKER, CONTROLLER = "feature", "broker", "controller"
LevelKey = tuple[str, str]
"""The kind of what has a level, and its name."""
Node = BrokerRegistration | ControllerRegistration


class Upgrades:
    """Rows of `upgrades`."""

    def __init__(self) -> None:
        self._rows: Intervals[tuple[str, str]] = Intervals()
        self.before: Memory[tuple[str, str], int] = Memory()
        """The last level of each, also of nodes that are gone."""

    def feature(self, name: str, level: int | None, moment: Moment, *, known: bool = True) -> None:
        """A batch changed a feature. `level` None: it is no longer finalized."""
        if level is None:
            self._rows.end((FEATURE, name), moment)
        else:
            self._level((FEATURE, name), level, name == METADATA_VERSION, moment, known=known)

    def node(self, node_id: int, now: Node | None, moment: Moment, *, known: bool = True) -> None:
        """A batch changed a broker or controller. `now` None: the broker is unregistered."""
        kind = CONTROLLER if isinstance(now, ControllerRegistration) else BROKER
        self._node((kind, f"{kind}/{node_id}"), now, moment, known=known)

    def controller(self, node_id: int, now: ControllerRegistration | None, moment: Moment) -> None:
        """The same for a controller, which may be gone."""
        self._node((CONTROLLER, f"{CONTROLLER}/{node_id}"), now, moment, known=True)

    def _node(self, key: LevelKey, now: Node | None, moment: Moment, *, known: bool) -> None:
        supported = {at.name: at.max_supported_version for at in now.features} if now is not None else {}
        level = supported.get(METADATA_VERSION)
        if level is None:
            self._rows.end(key, moment)
        else:
            self._level(key, level, True, moment, known=known)

    def _level(
        self, key: tuple[str, str], level: int, is_release: bool, moment: Moment, *, known: bool
    ) -> None:
        was = self._rows.open.get(key)
        if was is not None and was.value[2] == level:
            return
        self._rows.end(key, moment)
        name = METADATA_VERSION_NAMES.get(level) if is_release else None
        self._rows.start(key, (*key, level, name, self.before.recall(key)), moment, known=known)
        self.before[key] = level

    def learn(self, finalized: Mapping[str, int], nodes: Iterable[tuple[int, Node]], moment: Moment) -> None:
        """Takes the levels in a snapshot."""
        for name, level in finalized.items():
            self.feature(name, level, moment, known=False)
        for node_id, node in nodes:
            self.node(node_id, node, moment, known=False)

    def lose(self, moment: Moment) -> None:
        """Ends all rows at `moment`: the records after it are missing."""
        self._rows.lose(moment)

    def take(self) -> list[Row]:
        return self._rows.take()

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows()

    def context(self) -> Any:
        """What later rows depend on, except the starts of open rows."""
        return sorted((key, at.value[2]) for key, at in self._rows.open.items())

    def adopt(self, left: Upgrades, below: int) -> None:
        """Open rows that began below an offset get their starts from `left`."""
        self._rows.adopt(left._rows, below)
        for key, level in left.before.items():
            self.before.setdefault(key, level)

    def save(self) -> Any:
        return [self._rows.save(), list(self.before.items())]

    def load(self, saved: Any) -> None:
        self._rows.load(saved[0])
        self.before = Memory(((kind, name), level) for (kind, name), level in saved[1])
