"""Groups the logs of a fleet into clusters, and separates clusters that share one id.

Which logs are read as one history, and the names of clusters that share an id: the id itself, then `ID~2` and
so on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import msgspec

from metaquorum.pipeline.logs.identity import Facts, Relation, by_bytes, by_facts
from metaquorum.pipeline.logs.merged import SHARED_ID, Conflict, MergedHistory, merge_logs
from metaquorum.pipeline.logs.survey import LogSurvey

FactsOf = Callable[[list[LogSurvey]], list[Facts]]
"""Reads the facts of logs. Called only if the bytes do not decide."""
_Said = tuple[Relation, str]


class _Cluster:
    """Logs of one cluster, and why they are of no other."""

    def __init__(self, first: list[LogSurvey], why: str) -> None:
        self.logs = first
        self.why = why


def merge_histories(surveys: Iterable[LogSurvey], facts_of: FactsOf) -> list[MergedHistory]:
    """One history per cluster, sorted by name."""
    by_id: dict[str, list[LogSurvey]] = {}
    for one in surveys:
        by_id.setdefault(one.place.cluster, []).append(one)
    return [merged for name, logs in sorted(by_id.items()) for merged in _of_one_id(name, logs, facts_of)]


def _of_one_id(name: str, logs: list[LogSurvey], facts_of: FactsOf) -> list[MergedHistory]:
    parts = _same_bytes(logs)
    if len(parts) == 1:
        found = [_Cluster(logs, "")]
    else:
        flat = [log for part in parts for log in part]
        known = iter(facts_of(flat))
        found = _told_apart(parts, [[next(known) for _ in part] for part in parts])
    names = _names(name, found)
    first = found[names.index(name) if name in names else 0]
    return [_merged(name, told, one, first) for told, one in zip(names, found, strict=True)]


def _same_bytes(logs: list[LogSurvey]) -> list[list[LogSurvey]]:
    """Groups of logs that share bytes or a directory, those with most records first."""
    parts: list[list[LogSurvey]] = []
    for log in logs:
        joined = [part for part in parts if any(_together(log, other) for other in part)]
        merged = [log, *(one for part in joined for one in part)]
        parts = [part for part in parts if part not in joined] + [merged]
    return sorted(
        parts,
        key=lambda part: (-len(part), -sum(at.records for at in part), min(at.place.path for at in part)),
    )


def _together(one: LogSurvey, other: LogSurvey) -> bool:
    return one.place.path == other.place.path or by_bytes(one, other)[0] is Relation.SAME


def _told_apart(parts: list[list[LogSurvey]], facts: list[list[Facts]]) -> list[_Cluster]:
    clusters: list[_Cluster] = []
    members: list[list[int]] = []
    for at in range(len(parts)):
        said = [_relation([_between(parts, facts, at, other) for other in listed]) for listed in members]
        fitting = [n for n, (relation, _) in enumerate(said) if relation is Relation.SAME] or [
            n for n, (relation, _) in enumerate(said) if relation is Relation.OPEN
        ]
        if fitting:
            clusters[fitting[0]].logs += parts[at]
            members[fitting[0]].append(at)
        else:
            clusters.append(_Cluster(list(parts[at]), said[0][1] if said else ""))
            members.append([at])
    return clusters


def _relation(said: list[_Said]) -> _Said:
    """The relation of two groups from those of their pairs: one proof that they are one
    cluster outweighs the rest."""
    for wanted in (Relation.SAME, Relation.OTHER):
        for one in said:
            if one[0] is wanted:
                return one
    return Relation.OPEN, ""


def _between(parts: list[list[LogSurvey]], facts: list[list[Facts]], at: int, other: int) -> _Said:
    said: list[_Said] = []
    for mine, my_facts in zip(parts[at], facts[at], strict=True):
        for theirs, their_facts in zip(parts[other], facts[other], strict=True):
            bytes_say = by_bytes(mine, theirs)
            overlap = mine.start_offset < theirs.end_offset and theirs.start_offset < mine.end_offset
            facts_say = by_facts(my_facts, their_facts, overlap=overlap)
            said.append(facts_say if facts_say[0] is Relation.SAME else bytes_say)
            said.append(facts_say)
            said.append(_in_order(mine, theirs))
    return _relation(said)


def _in_order(one: LogSurvey, other: LogSurvey) -> _Said:
    """Whether epochs rise with offsets from one log (or snapshot) to the other."""
    low, high = (one, other) if one.end_offset <= other.start_offset else (other, one)
    if low.end_offset > high.start_offset:
        return Relation.OPEN, ""
    epoch = high.epochs[0][0] if high.epochs else high.last_epoch
    if low.last_epoch <= epoch or epoch < 0:
        return Relation.OPEN, ""
    said = (
        f"epoch {epoch} at offset {high.start_offset}, after epoch {low.last_epoch} at {low.end_offset - 1}"
    )
    return Relation.OTHER, said


def _names(name: str, found: list[_Cluster]) -> list[str]:
    """The name of each cluster: the one in its tables if it has one, otherwise the first that is free."""
    told = [next((log.place.told for log in one.logs if log.place.told), None) for one in found]
    taken = {at for at in told if at} | {log.place.told for one in found for log in one.logs}
    names: list[str] = []
    for known in told:
        free = (name if number == 1 else f"{name}~{number}" for number in itertools.count(1))
        chosen = known if known is not None and known not in names else None
        names.append(chosen or next(at for at in free if at not in taken and at not in names))
    return names


def _merged(name: str, told: str, one: _Cluster, first: _Cluster) -> MergedHistory:
    logs = []
    for log in one.logs:
        place = msgspec.structs.replace(log.place, cluster=told)
        logs.append(msgspec.structs.replace(log, place=place))
    merged = merge_logs(told, logs)
    if one is first:
        return merged
    paths = sorted({log.place.path for log in first.logs})
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    why = one.why or first.why
    reason = (
        f"{paths[0]}{more} has the same cluster id {name} but is another cluster ({why}); this one is "
        f"named {told}"
    )
    shared = Conflict(merged.logs[0], merged.start_offset, SHARED_ID, reason)
    return msgspec.structs.replace(merged, conflicts=[shared, *merged.conflicts])
