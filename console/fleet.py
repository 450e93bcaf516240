"""A fleet on one axis of time: what the pipeline's tables say about each of its clusters, for the page.

Reads the published tables with pyarrow and without Spark. Facts and findings are those of `pipeline audit`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from typing import Any

from metaquorum.console.tables import TablePage, TableQuery, page_of
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.causes.table import is_orderly
from metaquorum.pipeline.audit.facts import BrokerPeriod, ClusterFacts, Fleet
from metaquorum.pipeline.audit.findings import AuditFinding, AuditLimits, findings
from metaquorum.pipeline.audit.gather import TablesError, TableSource, gather
from metaquorum.pipeline.tables import BROKER_OUT, LEADER_CHANGED, TABLES

Row = dict[str, Any]
COLUMNS: dict[str, tuple[str, ...]] = {
    "clusters": (
        *("cluster", "brokers", "topics", "partitions", "records", "availability", "leaderlessSeconds"),
        *("underMinIsrSeconds", "uncleanElections", "incidents", "fromTime", "toTime"),
    ),
    "incidents": (
        *("fromTime", "cluster", "what", "who", "cause", "partitions", "leaderless", "leaderlessMs"),
        *("lastedMs", "offset"),
    ),
    "findings": (
        *("severity", "kind", "cluster", "subject", "text", "count", "seconds", "fromTime", "offset"),
    ),
}
"""The columns of each table of the fleet's page."""
_SHOWN_BROKERS = 200


class FleetViews:
    """The views of one folder of tables. `within_reach`: the clusters whose logs were given, too."""

    def __init__(self, tables: str, within_reach: Collection[str] = ()) -> None:
        """Raises InspectError for a folder without tables, or with tables that cannot be read."""
        self._tables = tables
        self._within_reach = within_reach
        self._files: dict[str, list[str]] = {}
        self._fleet, self._audit = self._read()

    def _read(self) -> tuple[Fleet, list[AuditFinding]]:
        try:
            source = TableSource(self._tables)
            files = {name: source.places(name) for name in TABLES}
            if files == self._files:
                return self._fleet, self._audit
            fleet = gather(source)
        except TablesError as error:
            raise InspectError(str(error)) from None
        except ValueError as error:  # pyarrow's
            raise InspectError(f"{self._tables} cannot be read: {error}; run the ingest again") from None
        self._files = files
        return fleet, findings(fleet, AuditLimits())

    def fleet(self) -> Row:
        """Every cluster's strip, on one axis. Reads the tables again if there is a newer version of them."""
        self._fleet, self._audit = self._read()
        fleet = self._fleet
        return {
            "name": self._tables,
            "fromMs": fleet.start_ms,
            "toMs": fleet.end_ms,
            "bucketMs": fleet.bucket_ms,
            "missing": list(fleet.missing),
            "numbers": {
                "clusters": len(fleet.clusters),
                "brokers": sum(one.brokers for one in fleet.clusters),
                "partitions": sum(one.partitions for one in fleet.clusters),
                "incidents": sum(len(one.incidents) for one in fleet.clusters),
                "errors": sum(one.severity == "error" for one in self._audit),
            },
            "clusters": [self._strip(number, one) for number, one in enumerate(fleet.clusters)],
            "command": shlex.join(("metaquorum", "pipeline", "audit", self._tables)),
        }

    def _strip(self, number: int, facts: ClusterFacts) -> Row:
        fleet = self._fleet
        return {
            "cluster": facts.cluster,
            "isWithinReach": facts.cluster in self._within_reach,
            "fromMs": facts.start_ms,
            "toMs": facts.end_ms,
            "brokers": facts.brokers,
            "partitions": facts.partitions,
            "leaders": [[row["from_time"], row["leader_id"], row["epoch"]] for row in facts.elections],
            "leaderless": _rounded(fleet.leaderless[number]),
            "underMinIsr": _rounded(fleet.under_min_isr[number]),
            "incidents": [
                [
                    *(row["from_time"], row["to_time"], row["from_offset"], row["what"], row["who"]),
                    *(row["cause"], row["partitions"], row["leaderless"], is_hurting(row)),
                ]
                for row in facts.incidents
                if row["from_time"] is not None
            ],
            "silences": [[span.start_ms, span.end_ms] for span in facts.silences],
            "offs": [[span.start_ms, span.end_ms] for span in facts.offs],
        }

    def lanes(self, cluster: str) -> Row:
        """The states of each broker of one cluster over time."""
        facts = next((one for one in self._fleet.clusters if one.cluster == cluster), None)
        if facts is None:
            raise InspectError(f"there is no cluster {cluster!r} in {self._tables}")
        brokers = sorted(facts.sessions.items())
        return {
            "cluster": cluster,
            "brokers": [
                {"id": broker_id, "rack": facts.racks.get(broker_id), "turns": [_turn(at) for at in listed]}
                for broker_id, listed in brokers[:_SHOWN_BROKERS]
            ],
            "isCut": len(brokers) > _SHOWN_BROKERS,
        }

    def table(
        self, kind: str, query: TableQuery, from_ms: int | None = None, to_ms: int | None = None
    ) -> TablePage:
        """A page of `clusters`, `incidents` or `findings`; `show` selects a cluster, the times (Unix ms) what
        began between them."""
        makers = {"clusters": self._clusters, "incidents": self._incidents, "findings": self._findings}
        if kind not in makers:
            raise InspectError(f"there is no table {kind!r}; known are {', '.join(makers)}")
        rows = [row for row in makers[kind]() if query.show in ("", row["cluster"])]
        if from_ms is not None and to_ms is not None:
            times = ((row["fromTime"], row) for row in rows)
            rows = [row for begun, row in times if begun is not None and from_ms <= begun <= to_ms]
        return page_of(COLUMNS[kind], rows, query)

    def _clusters(self) -> Iterable[Row]:
        for facts in self._fleet.clusters:
            yield {
                "cluster": facts.cluster,
                "brokers": facts.brokers,
                "topics": facts.topics,
                "partitions": facts.partitions,
                "records": facts.records,
                "availability": facts.availability,
                "leaderlessSeconds": round(facts.sums["leaderless_seconds"], 3),
                "underMinIsrSeconds": round(facts.sums["under_min_isr_seconds"], 3),
                "uncleanElections": int(facts.sums["unclean_elections"]),
                "incidents": len(facts.incidents),
                "fromTime": facts.start_ms or None,
                "toTime": facts.end_ms or None,
            }

    def _incidents(self) -> Iterable[Row]:
        listed = [row for one in self._fleet.clusters for row in one.incidents]
        for row in sorted(listed, key=lambda row: -row["partitions"]):
            begun, ended = row["from_time"], row["to_time"]
            yield {
                "fromTime": begun,
                "cluster": row["cluster"],
                "what": row["what"],
                "who": row["who"],
                "cause": row["cause"],
                "partitions": row["partitions"],
                "leaderless": row["leaderless"],
                "leaderlessMs": row["leaderless_ms"],
                "lastedMs": None if begun is None or ended is None else ended - begun,
                "offset": row["from_offset"],
                "isHurting": is_hurting(row),
            }

    def _findings(self) -> Iterable[Row]:
        for finding in self._audit:
            yield {
                "severity": finding.severity,
                "kind": finding.kind,
                "cluster": finding.cluster,
                "subject": finding.subject,
                "text": finding.text,
                "count": finding.count,
                "seconds": finding.seconds,
                "fromTime": finding.time_ms,
                "offset": finding.offset,
            }


def is_hurting(row: Row) -> bool:
    """Whether an incident is more than what operators do on purpose: a clean shutdown, another leader."""
    is_usual = is_orderly(row["cause"]) if row["what"] == BROKER_OUT else row["what"] == LEADER_CHANGED
    return not is_usual or bool(row["leaderless_ms"])


def _turn(period: BrokerPeriod) -> list[Any]:
    return [period.from_offset, period.from_ms, period.to_ms, period.state]


def _rounded(values: Any) -> list[float]:
    return [round(value, 3) for value in values.tolist()]
