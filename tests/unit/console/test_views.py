"""What a view shows is what the log tools print, at any moment."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metaquorum.cli.local.demo_checks import KAFKA_DATA
from metaquorum.cli.main import main
from metaquorum.console.app import application
from metaquorum.console.views import Views
from metaquorum.metadata.authorizer import Authorizer, Caller
from metaquorum.metadata.features import parse_metadata_version
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.timeline.spans import under_min_isr
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records import types as r
from metaquorum.metadata.settings.acls import Operation, ResourceType
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.uuids import uuid_to_text
from tests.conftest import shared_data_path
from tests.unit.console.asked import PORT, TOKEN, Asked, AskedPage
from tests.unit.metadata.made_logs import STORY, Batch, leads, make_node

MOMENTS = 50
UPGRADE = Path(__file__).resolve().parents[2] / "data" / "kafka-3.7-upgrade"
SHARED = shared_data_path()
GOLDEN = [KAFKA_DATA, UPGRADE, *([SHARED / "kafka-3.7" / "controller-3000"] if SHARED else [])]
WILD = sorted(path for path in (SHARED / "kraft-wild").iterdir() if path.is_dir()) if SHARED else []


@pytest.fixture(scope="module", params=GOLDEN, ids=[path.name for path in GOLDEN])
def asked(request: pytest.FixtureRequest) -> Asked:
    return Asked(request.param)


def log_tool(tool: str, *words: object) -> str:
    """What `metaquorum log` prints as JSON."""
    done = CliRunner().invoke(main, ["log", tool, *map(str, words), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return str(done.stdout)


def ends(log: MetadataLog) -> list[int]:
    return [item.batch.header.next_offset for item in log.items() if hasattr(item, "batch")]


def moments_of(log: MetadataLog, count: int = MOMENTS) -> list[int]:
    """Random moments, always the same ones."""
    every = ends(log)
    return sorted(random.Random(log.path.rpartition("/")[2]).choices(every, k=count))


def test_the_state_at_random_moments_is_that_of_log_state(asked: Asked) -> None:
    """In the order of a person who drags the handle back and forth, with few states kept."""
    (path,) = asked.words
    moments = moments_of(asked.log)
    random.Random(1).shuffle(moments)
    few = Asked(path, memory_bytes=1)
    for offset in moments:
        expected = state_at(asked.log, Point(offset=offset))
        for console in (asked, few):
            state = console.moments.state(Point(offset=offset))
            assert state.image == expected.image and state.end_offset == offset
    for offset in moments[:5]:
        printed = json.loads(log_tool("state", path, "--at", offset))
        shown = {}
        for kind in ("broker", "topic"):
            for entity in asked.view("entity", path=kind, at=offset)["entities"]:
                shown[entity["path"]] = entity["fields"]
        brokers = {f"broker/{number}": fields for number, fields in printed["broker"].items()}
        assert brokers == {name: fields for name, fields in shown.items() if name.startswith("broker/")}
        for name, topic in printed["topic"].items():
            for index, fields in topic["partitions"].items():
                assert shown.get(f"topic/{name}/{index}", fields) == fields


def test_tables_at_random_moments_have_the_values_of_log_state(asked: Asked) -> None:
    (path,) = asked.words
    for offset in moments_of(asked.log, 8):
        printed = json.loads(log_tool("state", path, "--at", offset))
        rows = asked.view("table", kind="partitions", at=offset, size=1000)["rows"]
        partitions = {
            f"topic/{name}/{index}": fields
            for name, topic in printed["topic"].items()
            for index, fields in topic["partitions"].items()
        }
        own = {"path", "topic", "partition", "state"}
        assert {row["path"]: {k: v for k, v in row.items() if k not in own} for row in rows} == partitions
        brokers = asked.view("table", kind="brokers", at=offset)["rows"]
        assert {row["broker"]: row["epoch"] for row in brokers} == {
            int(number): fields["epoch"] for number, fields in printed["broker"].items()
        }
        for row in brokers:
            assert row["leaders"] == sum(each["leader"] == row["broker"] for each in partitions.values())
            assert row["inSync"] == sum(row["broker"] in each["isr"] for each in partitions.values())
            assert row["replicas"] == sum(row["broker"] in each["replicas"] for each in partitions.values())
        settings = asked.view("table", kind="configs", at=offset, size=1000)["rows"]
        assert {(row["resource"], row["key"]): row["value"] for row in settings} == {
            (f"{kind}/{name}", key): value
            for kind, resources in printed["config"].items()
            for name, entries in resources.items()
            for key, value in entries.items()
        }
        numbers = {each["name"]: each["value"] for each in asked.view("overview", at=offset)["numbers"]}
        assert numbers["leaderless"] == sum(each["leader"] == -1 for each in partitions.values())
        image = state_at(asked.log, Point(offset=offset)).image
        assert numbers["under min ISR"] == len(under_min_isr(image))


def test_why_and_diff_answer_as_the_tools(asked: Asked) -> None:
    (path,) = asked.words
    moments = moments_of(asked.log, 4)
    for offset, other in zip(moments[:2], moments[2:], strict=True):
        lines = [json.loads(line) for line in log_tool("diff", path, offset, other).splitlines()]
        shown = asked.view("diff", **{"from": offset, "to": other, "size": 10_000})["changes"]
        assert [{"kind": "change", **line} for line in shown] == [line for line in lines if "entity" in line]
        for change in lines[:3]:
            printed = json.loads(log_tool("why", path, change["entity"], "--at", other, "--last", 4))
            answer = asked.view("why", target=change["entity"], at=other, last=4)
            del answer["headline"], answer["command"]
            if "readFrom" in printed:  # the tool began at a snapshot; the console need not
                assert printed.pop("readFrom") and answer.pop("earlierRecords") is not None
                del printed["earlierRecords"]
            assert answer == {**printed, "records": printed["records"][::-1]}


def test_events_are_those_of_log_timeline(asked: Asked) -> None:
    (path,) = asked.words
    for severity in ("info", "warning", "critical"):
        lines = [json.loads(line) for line in log_tool("timeline", path, "--severity", severity).splitlines()]
        shown = asked.view("events", severity=severity, size=10_000)
        assert shown["events"] == [line for line in lines if "kind" in line]
        assert shown["count"] == len(shown["events"])


def test_a_lane_shows_a_broker_that_registers_again_as_the_state_has_it(tmp_path: Path) -> None:
    """A process that registers again at a new leader of the quorum stays unfenced; a new one is fenced, also
    if it shuts down at once."""
    first, second = b"1" * 16, b"2" * 16
    records = [
        r.BrokerRecord(1, first, 2),
        r.UnfenceBrokerRecord(1, 2),
        r.BrokerRecord(1, first, 2, fenced=False),
        r.BrokerRegistrationChangeRecord(1, 2, in_controlled_shutdown=1),
        r.BrokerRecord(1, first, 2, fenced=False, in_controlled_shutdown=True),
        r.BrokerRecord(1, second, 7),
        r.BrokerRecord(1, second, 7),
        r.UnregisterBrokerRecord(1, 7),
        r.BrokerRecord(1, second, 10),
        r.BrokerRegistrationChangeRecord(1, 10, in_controlled_shutdown=1),
    ]
    batches: list[Batch] = [(1, [leads(3000)]), (1, [r.FeatureLevelRecord("metadata.version", 19)])]
    make_node(PosixDisk(), [*batches, *((1, [record]) for record in records)], home=str(tmp_path / "node"))
    asked = Asked(tmp_path / "node")
    (lane,) = asked.view("strip", width=8000)["brokers"]
    for offset in range(3, 13):
        rows = asked.view("table", kind="brokers", at=offset)["rows"]
        shown = [turn[2] for turn in lane["turns"] if turn[0] < offset][-1]
        assert shown == (rows[0]["state"] if rows else "gone"), offset


def test_the_strip_at_random_moments_shows_the_state(asked: Asked) -> None:
    """Leaders, brokers and partitions in trouble, as the line of each says for a moment."""
    strip = asked.view("strip", width=8000)
    for offset in moments_of(asked.log):
        state = asked.moments.state(Point(offset=offset))
        leaders = [turn for turn in strip["leaders"] if turn[0] < offset]
        if state.quorum.has_leader:
            assert leaders[-1][2:] == [state.quorum.leader_id, state.quorum.epoch]
        lanes = {}
        for broker in strip["brokers"]:
            turns = [turn for turn in broker["turns"] if turn[0] < offset]
            if turns and turns[-1][2] != "gone":
                lanes[broker["id"]] = turns[-1][2]
        rows = asked.view("table", kind="brokers", at=offset)["rows"]
        assert lanes == {row["broker"]: row["state"] for row in rows}, offset
    last = strip["area"][-1]
    image = asked.moments.state().image
    assert last[1:] == [len(image.topics.rows_without_leader()), len(under_min_isr(image))]


@pytest.mark.parametrize("path", WILD, ids=[path.name for path in WILD])
def test_every_view_answers_about_logs_of_other_people(path: Path) -> None:
    asked = Asked(path)
    assert asked.strip.is_complete
    log = asked.view("log")
    tables = log["tables"]
    for kind in tables:
        assert asked.view("table", kind=kind)["columns"]
    every: dict[str, dict[str, object]] = {
        "strip": {},
        "overview": {},
        "events": {"severity": "info"},
        "records": {"start": 0},
        "search": {"text": "a"},
        "diff": {"from": log["startOffset"], "to": "end"},
    }
    for name, params in every.items():
        assert asked.view(name, **params)
    rows = asked.view("records", start=0, size=20)["records"]
    first = next(row for row in rows if "damage" not in row)
    assert asked.view("record", offset=first["offset"])["parts"]


def test_a_record_is_shown_down_to_its_bytes(asked: Asked) -> None:
    """The parts of each record are its bytes, and every field of its JSON is one of them or is tagged."""
    kinds = set()
    for row in asked.view("records", start=asked.log.start_offset, size=100)["records"]:
        answer = asked.view("record", offset=row["offset"])
        assert answer["record"] == {name: row[name] for name in ("type", "version", "data")}
        names = {part["name"]: part for part in answer["parts"]}
        if "(redacted)" in json.dumps(answer):
            continue
        batch = next(asked.log.batches(row["offset"] or None))
        assert bytes.fromhex("".join(part["hex"] for part in answer["parts"])) in batch.data  # type: ignore[union-attr]
        for field, value in row["data"].items():
            assert names.get(field, {"meaning": value})["meaning"] == value
        kinds.add((row["type"], len(names) > 1))
    assert kinds and all(is_split for _, is_split in kinds)


def test_tags_of_a_newer_release_are_the_last_bytes_of_their_record(tmp_path: Path) -> None:
    tags = ((9, b"new"), (11, b""))
    records = [r.TopicRecord("a", bytes(15) + b"\x01", tags), r.TopicRecord("b", bytes(15) + b"\x02")]
    make_node(PosixDisk(), [*STORY, (2, records)], home=str(tmp_path))
    tagged, plain = (Asked(tmp_path).view("record", offset=at)["parts"] for at in (15, 16))
    assert [part["name"] for part in tagged] == [part["name"] for part in plain]
    assert (tagged[-1]["name"], tagged[-1]["hex"], plain[-1]["hex"]) == (
        *("tagged fields", "02" + "0903" + b"new".hex() + "0b00"),
        "00",
    )
    assert [part["meaning"] for part in tagged[3:5]] == ["a", uuid_to_text(records[0].topic_id)]


def test_secrets_are_nowhere(asked: Asked) -> None:
    """Not in a table, a record, its bytes, a difference, or what a search finds."""
    printed = CliRunner().invoke(main, ["log", "dump", asked.words[0], "--json", "--secrets"]).stdout
    secrets = {
        value
        for line in printed.splitlines()
        for name, value in json.loads(line).get("payload", {}).get("data", {}).items()
        if name in ("salt", "storedKey", "serverKey")
    }
    texts = [asked.get(f"/api/table?kind={kind}&size=1000").body.decode() for kind in ("users", "configs")]
    texts.append(asked.get("/api/diff?from=0&to=end&size=1000").body.decode())
    for row in asked.view("records", start=0, entity="user/bootuser", size=200)["records"]:
        texts.append(asked.get(f"/api/record?offset={row['offset']}").body.decode())
    assert not [secret for secret in secrets for text in texts if secret in text]


def test_a_table_is_sorted_filtered_and_cut_by_the_server(asked: Asked) -> None:
    whole = asked.view("table", kind="partitions", size=1000)
    names = [(row["topic"], row["partition"]) for row in whole["rows"]]
    assert names == sorted(names) and whole["count"] == whole["total"] == len(names)
    second = asked.view("table", kind="partitions", start=5, size=5)
    assert second["rows"] == whole["rows"][5:10] and second["count"] == whole["count"]
    by_leader = asked.view("table", kind="partitions", sort="leader", order="descending", size=1000)["rows"]
    assert [row["leader"] for row in by_leader] == sorted(
        (row["leader"] for row in whole["rows"]), reverse=True
    )
    one = whole["rows"][3]
    found = asked.view("table", kind="partitions", text=f"{one['topic']}/{one['partition']}")["rows"]
    assert found == [one]
    part = asked.view("table", kind="partitions", text=one["topic"][:2].upper(), size=1000)["rows"]
    assert part == [row for row in whole["rows"] if one["topic"][:2] in row["topic"]]
    held = asked.view("table", kind="partitions", show="broker=1", size=1000)["rows"]
    assert held == [row for row in whole["rows"] if 1 in row["replicas"]]
    for show in ("leaderless", "outOfSync", "underMinIsr", "reassigning"):
        some = asked.view("table", kind="partitions", show=show, size=1000)["rows"]
        assert some == [row for row in whole["rows"] if show in row["state"]]
        topics = asked.view("table", kind="topics", show=show, size=1000)["rows"]
        assert [row["topic"] for row in topics] == sorted({row["topic"] for row in some})
    topics = asked.view("table", kind="topics", sort="partitions", order="descending", size=1000)["rows"]
    assert [row["partitions"] for row in topics] == sorted(
        (row["partitions"] for row in topics), reverse=True
    )
    assert sum(row["partitions"] for row in topics) == whole["total"]


def test_a_table_is_saved_whole_as_csv_and_json(asked: Asked) -> None:
    answer = asked.get("/api/table?kind=partitions&format=csv&size=2")
    assert answer.headers["content-disposition"].startswith('attachment; filename="partitions-')
    lines = list(csv.DictReader(io.StringIO(answer.body.decode())))
    rows = asked.get("/api/table?kind=partitions&format=json&size=2").json()
    assert len(lines) == len(rows) == asked.view("table", kind="partitions")["total"]
    assert [line["topic"] for line in lines] == [row["topic"] for row in rows]
    assert lines[0]["replicas"] == ",".join(map(str, rows[0]["replicas"]))


def test_who_may_do_what_is_the_authorizers_answer(asked: Asked) -> None:
    image = asked.moments.state().image
    authorizer = Authorizer()
    for row in asked.view("table", kind="acls", size=1000)["rows"]:
        for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER):
            kind, name = row["resourceType"], row["resourceName"]
            answer = asked.view(
                "access",
                principal=row["principal"],
                operation=operation.name,
                resource=f"{kind.lower()}/{name}",
                host="10.0.0.1",
            )
            caller = Caller(row["principal"], "10.0.0.1")
            allowed = authorizer.allows(image, caller, operation, ResourceType[kind], name)
            assert answer["allowed"] == allowed, (row, operation)
            if allowed:
                assert {each["permissionType"] for each in answer["entries"]} == {"ALLOW"}


def test_each_setting_has_its_last_change_up_to_the_moment(asked: Asked) -> None:
    lines = log_tool("timeline", asked.words[0], "--severity", "info").splitlines()
    changes = [each for each in map(json.loads, lines) if each.get("kind") == "config changed"]
    for offset in moments_of(asked.log, 20):
        for row in asked.view("table", kind="configs", at=offset, size=1000)["rows"]:
            path = f"{row['path']}/{row['key']}"
            before = [each for each in changes if path in each["entities"] and each["offset"] < offset]
            assert row["changeTimestampMs"] == (before[-1]["createTime"] if before else None)
            named = before[-1].get("askedBy") if before else None
            assert (row["changedBy"] is None) == (named is None)


def test_the_level_of_metadata_version_has_its_release(asked: Asked) -> None:
    rows = {row["feature"]: row for row in asked.view("table", kind="features")["rows"]}
    version = rows.pop("metadata.version")
    assert parse_metadata_version(version["release"]) == version["level"]
    assert all(row["release"] is None for row in rows.values())


def test_a_search_finds_entities_settings_events_and_moments(asked: Asked) -> None:
    row: dict[str, Any] = asked.view("table", kind="topics")["rows"][0]
    found = asked.view("search", text=row["topic"])
    assert {"path": row["path"]} in found["entities"]
    assert asked.view("search", text="broker/1")["entities"][0] == {"path": "broker/1"}
    middle = ends(asked.log)[len(ends(asked.log)) // 2]
    assert asked.view("search", text=str(middle))["moments"][0]["offset"] == middle
    setting = asked.view("table", kind="configs")["rows"]
    if setting:
        assert asked.view("search", text=setting[0]["key"])["settings"]
    assert asked.view("search", text="registered")["events"]


def test_the_query_box_answers_as_bisect(asked: Asked) -> None:
    predicate = "len(brokers) < 2"
    printed = json.loads(log_tool("bisect", asked.words[0], "--predicate", predicate))
    answer = asked.view("bisect", predicate=predicate)
    assert {name: answer[name] for name in printed} == printed


def test_each_answer_has_the_command_that_prints_the_same(asked: Asked) -> None:
    (path,) = asked.words
    answer = asked.view("entity", path="broker/1", at="end")
    assert answer["command"] == f"metaquorum log state {path} broker/1 --at {asked.log.end_offset}"
    done = CliRunner().invoke(main, [*answer["command"].split()[1:], "--json"])
    assert json.loads(done.stdout) == answer["entities"][0]["fields"]


def test_the_voters_of_a_cluster_are_asked_once_for_several_pages() -> None:
    asked, rows = Asked(KAFKA_DATA), [{"controller": 3000, "answers": True}]
    assert "--bootstrap" in asked.view("voters")["hint"] and not asked.view("voters")["rows"]
    calls: list[int] = []

    def voters() -> list[dict[str, Any]]:
        calls.append(1)
        return rows

    live = AskedPage(
        application(Views(asked.strip, ("--bootstrap", "a:1"), None, voters), token=TOKEN, port=PORT)
    )
    assert [live.view("voters") for _ in range(3)] == [{"hint": "", "rows": rows}] * 3
    assert len(calls) == 1
