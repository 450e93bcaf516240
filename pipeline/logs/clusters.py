"""Groups the logs of a fleet into clusters, and separates clusters that share one id.

Which logs are read as one history, and the names of clusters that share an id: the id itself, then `ID~2` and
so on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from metaquorum.pipeline.logs.identity import Facts, Relation, by_bytes, by_facts, by_order
from metaquorum.pipeline.logs.merged import SHARED_ID, Conflict, MergedHistory, merge_logs
from metaquorum.pipeline.logs.survey import LogSurvey, nothing_of

FactsOf = Callable[[list[LogSurvey]], list[Facts]]
"""Reads the facts of logs. Called only if the bytes do not decide."""
_Said = tuple[Relation, str]
_NOTHING = "nothing shows that they are one cluster: no bytes, topic, broker or log directory in common"


class _Known(NamedTuple):
    log: LogSurvey
    facts: Facts


class _Cluster:
    """Logs of one cluster, and why they are of no other."""

    def __init__(self, logs: list[_Known]) -> None:
        self.members = logs
        self.why = ""

    @property
    def logs(self) -> list[LogSurvey]:
        return [at.log for at in self.members]

    @property
    def name_in_tables(self) -> str:
        """Its name in the tables; of several, the shortest; "" without one."""
        names = {at.log.location.name_in_tables for at in self.members if at.log.location.name_in_tables}
        return min(names, key=lambda name: (len(name), name), default="")

    @property
    def has_entities(self) -> bool:
        """Whether it has topics or brokers of its own."""
        return any(at.facts.has_entities for at in self.members)

    @property
    def place(self) -> tuple[bool, str]:
        """Where it stands among those that share an id: its order does not change when logs grow."""
        return min((at.log.location.is_retained, at.log.location.path) for at in self.members)


def merge_histories(surveys: Iterable[LogSurvey], facts_of: FactsOf) -> list[MergedHistory]:
    """One history per cluster, sorted by name."""
    by_id: dict[str, list[LogSurvey]] = {}
    for one in surveys:
        by_id.setdefault(one.location.cluster, []).append(one)
    return [merged for name, logs in sorted(by_id.items()) for merged in _of_one_id(name, logs, facts_of)]


def _of_one_id(name: str, logs: list[LogSurvey], facts_of: FactsOf) -> list[MergedHistory]:
    empty = [log for log in logs if not log.has_records and not log.snapshots]
    parts = _same_bytes([log for log in logs if log not in empty])
    if len(parts) < 2:
        clusters = [_Cluster([_Known(log, Facts()) for log in logs])]
    else:
        facts = iter(facts_of([log for part in parts for log in part]))
        known = [[_Known(log, next(facts)) for log in part] for part in parts]
        unread = [part for part in known if all(at.facts.problem is not None for at in part)]
        clusters = _distinguished([_Cluster(part) for part in known if part not in unread])
        empty += [nothing_of(at.log.location, at.facts.problem or "") for part in unread for at in part]
        # What cannot be compared counts as the first's.
        clusters = clusters or [_Cluster([])]
        clusters[0].members += [_Known(log, Facts()) for log in empty]
    names = _names(name, clusters)
    first = clusters[names.index(name) if name in names else 0]
    for one in clusters:
        one.why = _relation(one, first)[1] or _NOTHING
    return [_merged(name, own_name, one, first) for own_name, one in zip(names, clusters, strict=True)]


def _same_bytes(logs: list[LogSurvey]) -> list[list[LogSurvey]]:
    """Groups of logs that share bytes or a directory, those with most records first."""
    parts: list[list[LogSurvey]] = []
    for log in logs:
        joined = [part for part in parts if any(_together(log, other) for other in part)]
        merged = [log, *(one for part in joined for one in part)]
        parts = [part for part in parts if part not in joined] + [merged]
    return sorted(
        parts,
        key=lambda part: (-len(part), -sum(at.records for at in part), min(at.location.path for at in part)),
    )


def _together(log: LogSurvey, other: LogSurvey) -> bool:
    of_one_run = (
        bool(log.location.name_in_tables) and log.location.name_in_tables == other.location.name_in_tables
    )
    return of_one_run or log.location.path == other.location.path or by_bytes(log, other)[0] is Relation.SAME


def _distinguished(parts: list[_Cluster]) -> list[_Cluster]:
    """Clusters, in an order that does not depend on how long the logs are. What is proven to be one cluster
    is one. What is only likely so joins if it fits one cluster: logs with topics or brokers first."""
    proven: list[_Cluster] = []
    for part in parts:
        same = [one for one in proven if _relation(part, one)[0] is Relation.SAME]
        proven = [one for one in proven if one not in same]
        proven.append(_Cluster([*(at for one in same for at in one.members), *part.members]))
    clusters: list[_Cluster] = []
    for part in sorted(proven, key=lambda group: (not group.has_entities, group.place)):
        fitting = [one for one in clusters if _may_join(part, one)]
        if len(fitting) == 1:
            fitting[0].members += part.members
        else:
            clusters.append(part)
    return sorted(clusters, key=lambda group: group.place)


def _may_join(part: _Cluster, cluster: _Cluster) -> bool:
    """Whether a group is likely of a cluster. Two with tables of their own stay apart without a proof."""
    own, known = part.name_in_tables, cluster.name_in_tables
    return not (own and known and own != known) and _relation(part, cluster)[0] is Relation.LIKELY


def _relation(cluster: _Cluster, other: _Cluster) -> _Said:
    """The relation of two groups from those of their pairs: one proof that they are one
    cluster outweighs the rest."""
    said = [found for mine in cluster.members for theirs in other.members for found in _between(mine, theirs)]
    for wanted in (Relation.SAME, Relation.OTHER, Relation.LIKELY):
        for at in said:
            if at[0] is wanted:
                return at
    return Relation.OPEN, ""


def _between(mine: _Known, theirs: _Known) -> Iterator[_Said]:
    log, other = mine.log, theirs.log
    overlap = log.start_offset < other.end_offset and other.start_offset < log.end_offset
    yield by_bytes(log, other)
    yield by_facts(mine.facts, theirs.facts, overlap=overlap)
    yield by_order(log, mine.facts, other, theirs.facts)
    if log.location.path in other.location.read or other.location.path in log.location.read:
        yield Relation.LIKELY, ""


def _names(name: str, clusters: list[_Cluster]) -> list[str]:
    """The name of each cluster: the one in its tables if it has one, otherwise the first that is free."""
    earlier = [one.name_in_tables or None for one in clusters]
    taken = {at for at in earlier if at} | {
        log.location.name_in_tables for one in clusters for log in one.logs
    }
    names: list[str] = []
    for known in earlier:
        free = (name if number == 1 else f"{name}~{number}" for number in itertools.count(1))
        chosen = known if known is not None and known not in names else None
        names.append(chosen or next(at for at in free if at not in taken and at not in names))
    return names


def _merged(name: str, own_name: str, cluster: _Cluster, first: _Cluster) -> MergedHistory:
    logs = []
    for log in cluster.logs:
        place = msgspec.structs.replace(log.location, cluster=own_name)
        logs.append(msgspec.structs.replace(log, place=place))
    merged = merge_logs(own_name, logs)
    if cluster is first:
        return merged
    paths = sorted({log.location.path for log in first.logs})
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    reason = (
        f"another cluster has the id {name}, too ({cluster.why}); this one is named {own_name}, the other "
        f"one is {paths[0]}{more}"
    )
    present = min(merged.logs, key=lambda log: log.location.is_retained)
    shared = Conflict(present, merged.start_offset, SHARED_ID, reason)
    return msgspec.structs.replace(merged, conflicts=[shared, *merged.conflicts])
