"""Every table of busy logs against plain Python over what its command prints: rows, filters, sorts, pages."""

from __future__ import annotations

import csv
import io
import json
import random
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metaquorum.console.partitions import SHOWS
from metaquorum.console.tables import TABLES
from metaquorum.metadata.features import metadata_version_name
from tests.unit.console.asked import Asked
from tests.unit.console.busy_log import busy_log
from tests.unit.console.test_views import log_tool, moments_of

Row = dict[str, Any]
SEEDS = (1, 2)
DEFAULTS = {"min.insync.replicas": "1", "retention.ms": "604800000"}
NOT_HERE = ("changeTimestampMs", "changedBy")
"""Cells that need the events, which test_views.py compares."""


@pytest.fixture(scope="module", params=SEEDS)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(busy_log(tmp_path_factory.mktemp("busy"), request.param))


def partitions(tree: Row) -> list[Row]:
    default = tree["config"].get("broker", {}).get("<default>", {}).get("min.insync.replicas")
    made = []
    for name, topic in sorted(tree["topic"].items()):
        least = tree["config"].get("topic", {}).get(name, {}).get("min.insync.replicas", default or "1")
        for index, fields in sorted(topic["partitions"].items(), key=lambda item: int(item[0])):
            isr, replicas = len(fields["isr"]), len(fields["replicas"])
            holds = {
                "leaderless": fields["leader"] == -1,
                "underMinIsr": isr < min(int(least), replicas),
                "outOfSync": isr < replicas,
                "reassigning": bool({"addingReplicas", "removingReplicas"} & set(fields)),
            }
            words = [name for name, is_so in holds.items() if is_so]
            own = {"path": f"topic/{name}/{index}", "topic": name, "partition": int(index), "state": words}
            made.append({**own, **fields})
    return made


def topics(tree: Row) -> list[Row]:
    rows = partitions(tree)
    made = []
    for name in sorted(tree["topic"]):
        own = [row for row in rows if row["topic"] == name]
        counts = {state: sum(state in row["state"] for row in own) for state in SHOWS[:3]}
        replicas = sum(len(row["replicas"]) for row in own)
        made.append(
            {"path": f"topic/{name}", "topic": name, "partitions": len(own), "replicas": replicas, **counts}
        )
    return made


def listeners(fields: Row) -> list[str]:
    return [f"{name}://{at['host']}:{at['port']}" for name, at in fields["endPoints"].items()]


def brokers(tree: Row) -> list[Row]:
    rows = partitions(tree)
    return [
        {
            "path": f"broker/{broker}",
            "broker": broker,
            "state": "fenced" if at["fenced"] else "shutdown" if at["inControlledShutdown"] else "active",
            "rack": at["rack"],
            "leaders": sum(row["leader"] == broker for row in rows),
            "replicas": sum(broker in row["replicas"] for row in rows),
            "inSync": sum(broker in row["isr"] for row in rows),
            "directories": len(at["logDirs"]),
            "listeners": listeners(at),
            "epoch": at["epoch"],
        }
        for broker, at in sorted((int(number), at) for number, at in tree["broker"].items())
    ]


def racks(tree: Row) -> list[Row]:
    rows = brokers(tree)
    led, made = max(1, sum(row["leaders"] for row in rows)), []
    for rack in sorted({row["rack"] for row in rows}, key=lambda name: name or ""):
        own = [row for row in rows if row["rack"] == rack]
        sums = {name: sum(row[name] for row in own) for name in ("leaders", "replicas", "inSync")}
        counted = {"brokers": len(own), "active": sum(row["state"] == "active" for row in own)}
        share, ids = round(sums["leaders"] / led, 4), [row["broker"] for row in own]
        made.append({"path": None, "rack": rack, **counted, **sums, "ids": ids, "leadersShare": share})
    return made


def configs(tree: Row) -> Iterator[Row]:
    for kind, resources in tree["config"].items():
        for name, entries in resources.items():
            for key, value in entries.items():
                default = DEFAULTS.get(key)
                own = {"path": f"config/{kind}/{name}", "resource": f"{kind}/{name}", "key": key}
                yield {**own, "value": value, "default": default, "differs": value != default}


def features(tree: Row) -> Iterator[Row]:
    for name, level in sorted(tree["feature"].items()):
        if name != "zkMigrationState":
            release = metadata_version_name(level) if name == "metadata.version" else None
            yield {"path": f"feature/{name}", "feature": name, "level": level, "release": release}


def quotas(tree: Row) -> Iterator[Row]:
    for entity, entries in tree["quota"].items():
        for key, value in entries.items():
            yield {"path": f"quota/{entity}", "entity": entity, "key": key, "value": value}


def users(tree: Row) -> Iterator[Row]:
    for mechanism, listed in tree["scram"].items():
        for user, fields in listed.items():
            path = f"scram/{mechanism}/{user}"
            yield {"path": path, "user": user, "mechanism": mechanism, "iterations": fields["iterations"]}


def producer_ids(tree: Row) -> Iterator[Row]:
    following = tree["producerIds"]["nextProducerId"]
    if following >= 0:
        yield {"path": "producer-ids", "producer-ids": "producer-ids", "nextProducerId": following}


def quorum(tree: Row) -> Iterator[Row]:
    leader, voters = tree["quorum"]["leader"], tree["quorum"]["voters"]
    for node in sorted({*voters, *map(int, tree["controller"])}):
        known = tree["controller"].get(str(node))
        yield {
            "path": "quorum" if known is None else f"controller/{node}",
            "controller": node,
            "leads": node == leader,
            "voter": node in voters,
            "listeners": [] if known is None else listeners(known),
        }


def listed(kind: str, name: str, column: str) -> Callable[[Row], list[Row]]:
    return lambda tree: [{"path": f"{kind}/{at}", column: at, **own} for at, own in tree[name].items()]


EXPECTED: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "brokers": ("broker", brokers),
    "racks": ("broker", racks),
    "topics": ("topic", topics),
    "partitions": ("topic", partitions),
    "configs": ("config", configs),
    "features": ("feature", features),
    "acls": ("acl", listed("acl", "acl", "id")),
    "users": ("", users),
    "quotas": ("quota", quotas),
    "tokens": ("delegationToken", listed("token", "delegationToken", "token")),
    "producer-ids": ("producerIds", producer_ids),
    "quorum": ("quorum", quorum),
}
"""By table: the part of the tree that its command prints, and the rows for a whole tree."""


def whole(asked: Asked, kind: str, at: object) -> list[Row]:
    return [
        {name: cell for name, cell in row.items() if name not in NOT_HERE}
        for row in asked.get(f"/api/table?kind={kind}&at={at}&format=json").json()
    ]


def printed(command: str) -> Any:
    """What a command of the page prints as JSON."""
    assert shlex.split(command)[:2] == ["metaquorum", "log"]
    return json.loads(log_tool(*shlex.split(command)[2:]))


def test_rows_are_what_the_table_s_own_command_prints(asked: Asked) -> None:
    assert list(EXPECTED) == list(TABLES)
    for at in moments_of(asked.log, 4):
        tree = printed(asked.view("overview", at=at)["command"])
        for kind, (part, rows) in EXPECTED.items():
            page = asked.view("table", kind=kind, at=at, size=1000)
            own = printed(page["command"])
            if kind == "quorum":
                tree["quorum"] = own
            elif kind == "users":
                assert {row["path"] for row in page["rows"]} <= set(own)
            else:
                assert own == tree[part]
            assert whole(asked, kind, at) == list(rows(tree)), (kind, at)
            assert page["count"] == page["total"] == len(page["rows"]) and page["offset"] == at


def text_of(cell: Any) -> str:
    if isinstance(cell, list):
        return ",".join(text_of(each) for each in cell)
    return "" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell)


def place_of(kind: str, cell: Any) -> Any:
    """Numbers first, by value; of partitions, lists by their length, and states by how bad they are."""
    if kind == "partitions" and isinstance(cell, list):
        return [state in cell for state in SHOWS] if not cell or cell[0] in SHOWS else len(cell)
    if isinstance(cell, int | float):
        return (0, cell)
    parts = text_of(cell).split("/")
    return (1, [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts])


def is_absent(row: Row, column: str) -> bool:
    """Whether the cell has no value: of partitions, also if there is no leader."""
    return row.get(column) is None or (column == "leader" and row[column] == -1)


def fits(kind: str, row: Row, text: str) -> bool:
    if kind in ("partitions", "topics"):
        name, slash, number = text.partition("/") if kind == "partitions" else (text, "", "")
        is_named = row["topic"] == name if slash else name.lower() in row["topic"].lower()
        return is_named and number in ("", str(row.get("partition")))
    return any(text.lower() in text_of(cell).lower() for cell in row.values())


def shown(row: Row, show: str) -> bool:
    name, _, number = show.partition("=")
    if number:
        return bool(row["leader"] == int(number) if name == "leader" else int(number) in row["replicas"])
    return show in ("", row["state"]) or (isinstance(row["state"], list) and show in row["state"])


def test_filters_sorts_and_pages_are_those_of_plain_python(asked: Asked) -> None:
    draw = random.Random(3)
    at = asked.log.end_offset
    every = whole(asked, "partitions", at)
    broker = every[0]["replicas"][0]
    shows = {"brokers": ("active", "fenced", "shutdown", "gone")}
    shows["partitions"] = shows["topics"] = (*SHOWS, f"broker={broker}", f"leader={broker}", "broker=99")
    for kind, (columns, _) in TABLES.items():
        rows = whole(asked, kind, at)
        assert len(set(columns)) == len(columns) and set(columns) - set(NOT_HERE) <= set(rows[0])
        cells = sorted({text_of(cell) for row in rows for cell in row.values()}) or [""]
        texts = [
            "",
            "no such text",
            *(cell[draw.randrange(3) :].upper() for cell in draw.sample(cells, min(4, len(cells)))),
        ]
        if kind == "partitions":
            texts += [
                f"{rows[5]['topic']}/",
                f"{rows[5]['topic']}/{rows[5]['partition']}",
                "a/b",
                rows[5]["topic"][1:],
            ]
        queries = [(text, show, "", False) for text in texts for show in ("", *shows.get(kind, ()))]
        queries += [("", "", column, descends) for column in columns for descends in (False, True)]
        for text, show, sort, descending in queries:
            if (kind == "acls" and text) or sort in NOT_HERE:
                continue  # entries that apply to what a text names fit, too: test_access.py
            if kind == "topics" and show:
                in_trouble = {row["topic"] for row in every if shown(row, show)}
                expected = [row for row in rows if row["topic"] in in_trouble]
            else:
                expected = [row for row in rows if not show or shown(row, show)]
            expected = [row for row in expected if fits(kind, row, text)]
            if sort:
                absent = [row for row in expected if is_absent(row, sort)]
                expected = [row for row in expected if not is_absent(row, sort)]
                expected.sort(key=lambda row: place_of(kind, row[sort]), reverse=descending)
                expected += absent
            start, size = draw.choice(((0, 1000), (0, 1), (1, 3), (4, 50)))
            asking = {"kind": kind, "at": at, "text": text, "show": show, "sort": sort, "start": start}
            order = {"order": "descending"} if descending else {}
            page = asked.view("table", **asking, **order, size=size)
            found = [
                {name: cell for name, cell in row.items() if name not in NOT_HERE} for row in page["rows"]
            ]
            assert found == expected[start : start + size], (kind, text, show, sort, descending, start)
            assert (page["count"], page["total"]) == (len(expected), len(rows)), (kind, text, show)
            assert list(columns) == page["columns"]
            assert set(page["shows"]) == {
                each for each in shows.get(kind, ()) if each not in ("gone",) and "=" not in each
            }


def test_every_table_is_saved_as_csv_with_the_texts_of_its_cells(asked: Asked) -> None:
    for kind, (columns, _) in TABLES.items():
        rows = asked.get(f"/api/table?kind={kind}&format=json").json()
        text = asked.get(f"/api/table?kind={kind}&format=csv").body.decode()
        assert list(csv.reader(io.StringIO(text, newline=""))) == [
            list(columns),
            *([text_of(row.get(name)) for name in columns] for row in rows),
        ]
        assert text.count("\r\n") == len(rows) + 1
