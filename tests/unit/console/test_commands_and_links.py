"""Every command line that the page copies prints what the view shows; every link leads to what is meant."""

from __future__ import annotations

import json
import random
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

from metaquorum.cli.main import main
from metaquorum.console import views
from metaquorum.console.app import application
from metaquorum.console.tables import GROUP_COLUMNS, TABLES
from metaquorum.console.views import Views
from metaquorum.metadata.inspect.log.entities import is_below
from metaquorum.metadata.inspect.log.points import utc_text
from tests.unit.console.asked import PORT, TOKEN, Asked, AskedPage
from tests.unit.console.busy_log import busy_log
from tests.unit.console.test_tables import partitions, printed
from tests.unit.console.test_views import log_tool, moments_of


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(busy_log(tmp_path_factory.mktemp("a busy log"), 1))


def lines_of(command: str) -> list[dict[str, Any]]:
    """The answers among the lines that a command of the page prints; the last line is a summary."""
    words = shlex.split(command)
    assert words[:2] == ["metaquorum", "log"], command
    return [json.loads(line) for line in log_tool(*words[2:]).splitlines()]


def test_the_command_of_an_entity_prints_its_fields(asked: Asked) -> None:
    draw = random.Random(5)
    for at in moments_of(asked.log, 2):
        paths = {"quorum", "feature/metadata.version"}
        for kind in TABLES:
            rows = asked.get(f"/api/table?kind={kind}&at={at}&format=json").json()
            paths |= {row["path"] for row in draw.sample(rows, min(2, len(rows))) if row["path"]}
        for path in paths:
            answer = asked.view("entity", path=path, at=at)
            first, *below = answer["entities"]
            assert answer["exists"] and first["path"] == path and answer["hint"] == ""
            own = printed(answer["command"])
            own = {"level": own} if path.startswith("feature/") else own
            if not path.count("/") == 1 or not path.startswith("topic/"):
                below = [each for each in below if each["path"].startswith(f"{path}/")]
                fields = {name: value for name, value in first["fields"].items() if value != "(redacted)"}
                assert (own, below) == (fields, []), path
                continue
            indexes = {each["path"].rpartition("/")[2]: each["fields"] for each in below}
            assert own == {**first["fields"], "partitions": indexes}


def test_the_command_of_a_question_prints_its_answer(asked: Asked) -> None:
    low, high = moments_of(asked.log, 2)
    window = {"from": low, "to": high}
    times = {name: utc_text(asked.view("moment", at=at)["timeMs"]) for name, at in window.items()}
    first, *_, last = asked.view("table", kind="topics", at=high)["rows"]
    setting = asked.view("table", kind="configs", at=high)["rows"][0]["path"]
    for target in ("broker/1", f"{first['path']}/0.leader", last["path"], setting):
        answer = asked.view("why", target=target, at=high, last=3)
        (own,) = lines_of(answer.pop("command"))
        assert {**own, "headline": answer["headline"], "records": own["records"][::-1]} == answer
        history = asked.view("history", target=target, at=high)
        spans = [line for line in lines_of(history["command"]) if line.pop("kind") == "state"]
        assert sorted(spans, key=lambda span: -span["fromOffset"]) == history["spans"] != []
    for ends in ({}, window, times):
        for show in ("", "broker/1", last["path"]):
            events = asked.view("events", severity="info", show=show, size=1000, **ends)
            # The tool also says what is still so where its window ends.
            own = [line for line in lines_of(events["command"]) if "severity" in line]
            own = [line for line in own if not ends or not line["kind"].startswith("still ")]
            assert events["events"] == own
            assert events["count"] == len(events["events"]) > 0
            reverse = asked.view(
                "events", severity="info", show=show, size=3, start=1, order="descending", **ends
            )
            assert reverse["events"] == events["events"][::-1][1:4] and reverse["count"] == events["count"]
        bisected = asked.view("bisect", predicate="leaderless() < 2", **ends)
        (own,) = lines_of(bisected["command"])
        assert {name: bisected[name] for name in own} == own
    events = asked.view("events", size=1000)
    assert events["events"] == [line for line in lines_of(events["command"]) if "severity" in line]
    assert {each["severity"] for each in events["events"]} == {"warning", "critical"}
    for text in ("Broker 1 ", "leader changed"):
        found = asked.view("events", severity="info", text=text, size=1000)["events"]
        every = asked.view("events", severity="info", size=1000)["events"]
        assert found == [
            each for each in every if text.lower() in each["text"].lower() or text in each["kind"]
        ]
        assert 0 < len(found) < len(every)
    for entity in ("", first["path"], "broker/1"):
        differs = asked.view("diff", entity=entity, size=1000, **window)
        changes = [line for line in lines_of(differs["command"]) if line.pop("kind") == "change"]
        assert changes == differs["changes"] and differs["count"] == differs["total"] == len(changes)
        for kind in ("added", "changed", "removed"):
            some = asked.view("diff", entity=entity, show=kind, text="TOPIC", start=1, size=2, **window)
            expected = [each for each in changes if each["change"] == kind and "topic" in each["entity"]]
            assert (some["changes"], some["count"]) == (expected[1:3], len(expected))


def test_long_answers_are_cut(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {
        "overview": asked.view("overview")["problems"],
        "records": asked.view("records", size=50)["records"],
        "history": asked.view("history", target="broker/1")["spans"],
        "entity": asked.view("entity", path="broker")["entities"],
    }
    for name in ("_PROBLEMS_MAX", "RECORDS_MAX", "SPANS_MAX", "ENTITIES_MAX", "SEARCHED_MAX"):
        monkeypatch.setattr(views, name, 3)
    assert asked.view("overview")["problems"] == whole["overview"][:3]
    assert asked.view("records", size=50)["records"] == whole["records"][:3]
    assert asked.view("records", size=2)["records"] == whole["records"][:2]
    spans = asked.view("history", target="broker/1")["spans"]
    assert len(spans) == 3 and all(span in whole["history"] for span in spans)
    entities = asked.view("entity", path="broker")
    assert entities["entities"] == whole["entity"][:3] and entities["isCut"]
    monkeypatch.setattr(views, "ENTITIES_MAX", len(whole["entity"]))
    assert not asked.view("entity", path="broker")["isCut"]
    assert len(asked.view("search", text="a")["entities"]) == 3


def test_the_command_of_records_dumps_them(asked: Asked) -> None:
    names = ("offset", "type", "version", "data")
    topic = asked.view("table", kind="topics")["rows"][0]["path"]
    about = (100, 50, "broker/1"), (0, 200, topic)
    for start, size, entity in ((0, 9, ""), (5, 1, ""), (133, 40, ""), *about, (460, 50, "")):
        answer = asked.view("records", start=start, size=size, entity=entity)
        dumped = lines_of(answer["command"])
        rows = answer["records"]
        assert [[row[name] for name in names] for row in rows] == [
            [line[name] for name in names] for line in dumped[:size]
        ]
        for row, line in zip(rows, dumped, strict=False):
            assert (row["timeMs"], row["epoch"]) == (line["createTime"], line["leaderEpoch"])
            assert row["batchOffset"] == line["batchBaseOffset"]
            assert not entity or any(is_below(path, entity) for path in row["entities"])
        assert len(rows) == min(size, len(dumped)) and answer["endOffset"] == asked.log.end_offset
        assert rows[0]["offset"] >= start and (entity or rows[0]["offset"] == start)
        for row in rows[:3]:
            record = asked.view("record", offset=row["offset"])
            (line,) = lines_of(record["command"])
            assert record["record"] == {name: line[name] for name in names[1:]}
            assert record["batch"]["baseOffset"] == line["batchBaseOffset"]
            assert (record["batch"]["file"], record["batch"]["compression"]) == (line["file"], "none")


def test_a_path_in_an_answer_names_something_that_its_records_are_about(asked: Asked) -> None:
    """Of records and events: `why` at the moment behind one shows it. Of searches: it is there."""
    draw = random.Random(6)
    records = asked.view("records", start=0, size=200)["records"]
    for row in draw.sample(records, 25):
        for path in row["entities"]:
            why = asked.view("why", target=path, at=f"{row['offset']}+", last=50)
            assert row["offset"] in [each["offset"] for each in why["records"]], (path, row)
    for event in draw.sample(asked.view("events", severity="info", size=1000)["events"], 12):
        for path in event["entities"][:3]:
            why = asked.view("why", target=path, at=f"{event['offset']}+", last=50)
            offsets = [each["offset"] for each in why["records"]]
            assert offsets and (event["offset"] in offsets or not path.startswith("topic/")), (path, event)
    at = asked.log.end_offset - 20
    for text in ("orders", "u1", "broker", "insync", "3000", "scram", "token"):
        found = asked.view("search", text=text, at=at)
        paths = [each["path"] for kind in ("entities", "acls", "settings") for each in found[kind]]
        assert paths and all(asked.view("entity", path=path, at=at)["exists"] for path in paths), text


WORDS = {
    "leaderless": ("critical", "is without a leader", "partitions without a leader", ".leader"),
    "underMinIsr": ("warning", "is under min ISR", "partitions under min ISR", ".isr"),
    "outOfSync": ("info", "with replicas out of the ISR", "partitions with replicas out of the ISR", ".isr"),
    "reassigning": ("info", "is being reassigned", "partitions being reassigned", ""),
}
"""Of each kind of trouble: severity, what is said of one partition and of several, the field for `why`."""


def test_what_is_wrong_has_a_line_for_each_topic_and_broker_that_leads_to_it(asked: Asked) -> None:
    seen: Counter[str] = Counter()
    for at in moments_of(asked.log, 6):
        overview = asked.view("overview", at=at)
        tree, lines = printed(overview["command"]), overview["problems"]
        settings, expected = tree["config"], []
        for show, (severity, one, several, field) in WORDS.items():
            rows = [row for row in partitions(tree) if show in row["state"]]
            for topic in {row["topic"] for row in rows}:
                numbers = [row["partition"] for row in rows if row["topic"] == topic]
                first, is_one = f"topic/{topic}/{numbers[0]}", len(numbers) == 1
                text = f"{topic}-{numbers[0]} {one}" if is_one else f"{topic}: {len(numbers)} {several}"
                place, setting = f"topic/{topic}", settings.get("topic", {}).get(topic, {})
                if "min.insync.replicas" not in setting:
                    place, setting = "broker/<default>", settings.get("broker", {}).get("<default>", {})
                value, also = setting.get("min.insync.replicas"), ""
                if show == "underMinIsr" and value is not None:
                    text, also = (
                        f"{text} (min.insync.replicas={value})",
                        f"config/{place}/min.insync.replicas",
                    )
                path = first if is_one else f"topic/{topic}"
                line = {
                    "severity": severity,
                    "text": text,
                    "path": path,
                    "target": first + field,
                    "also": also,
                }
                expected.append({**line, "show": show, "count": len(numbers), "at": ""})
            seen[show] += len(rows)
            page = asked.view("table", kind="partitions", show=show, at=at)
            (number,) = [each for each in overview["numbers"] if each["show"] == show]
            assert (number["value"], number["of"]) == (len(rows), page["total"]) and number[
                "table"
            ] == "partitions"
        shown = [line for line in lines if line["show"] in WORDS]
        assert sorted(shown, key=str) == sorted(expected, key=str), at
        out = {
            f"broker/{number}"
            for number, each in tree["broker"].items()
            if each["fenced"] or each["inControlledShutdown"]
        }
        assert {line["path"] for line in lines if line["show"] == "active"} - {"broker"} == out
        active = overview["numbers"][0]
        assert (active["value"], active["of"]) == (len(tree["broker"]) - len(out), len(tree["broker"]))
        severities = ["critical", "warning", "info"]
        ranks = [(severities.index(line["severity"]), line["at"] != "", -line["count"]) for line in lines]
        assert ranks == sorted(ranks)
        for line in lines:
            moment = line["at"] or at
            if line["path"] not in ("broker", "topic", "events"):
                assert asked.view("entity", path=line["path"], at=at)["exists"], line
            why = asked.view("why", target=line["target"], at=moment, last=1)
            assert [each["offset"] < at for each in why["records"]] == [True], line
            if line["at"]:
                assert f"{why['records'][0]['offset']}+" == moment
    assert min(seen.values()) > 0


def live(asked: Asked, *words: str) -> AskedPage:
    """The page of a running cluster that was given with these words, which has one group."""
    row = {**dict.fromkeys(GROUP_COLUMNS), "group": "billing", "lag": 7}
    rows = [row, {**row, "group": "audit", "lag": 0}, {**row, "lag": 11}]
    return AskedPage(application(Views(asked.strip, words, lambda: rows), token=TOKEN, port=PORT))


def test_groups_are_those_that_the_cluster_names_and_of_files_it_is_said_what_to_do(asked: Asked) -> None:
    page = live(asked, "--bootstrap", "h:9092")
    answer = page.view("groups", sort="lag", order="descending", text="bill")
    assert [(row["group"], row["lag"]) for row in answer["rows"]] == [("billing", 11), ("billing", 7)]
    assert (answer["count"], answer["total"], answer["hint"]) == (2, 3, "")
    assert page.view("log")["name"] == "h:9092"
    files = asked.view("groups")
    assert "--bootstrap HOST:PORT" in files["hint"] and files["command"] == ""


QUESTIONS: dict[str, dict[str, object]] = {
    "overview": {},
    "groups": {},
    "table": {"kind": "partitions"},
    "entity": {"path": "broker/1"},
    "why": {"target": "broker/1"},
    "history": {"target": "broker/1"},
    "events": {"severity": "critical", "from": 3, "show": "broker/1"},
    "records": {"start": 3, "entity": "broker/1"},
    "record": {"offset": 5},
    "diff": {"from": 100, "to": 200},
    "bisect": {"predicate": "len(brokers) < 2", "to": "end"},
    "access": {"principal": "User:u1", "operation": "READ", "resource": "topic/pay"},
}


@pytest.mark.parametrize("view", QUESTIONS)
def test_the_commands_of_a_running_cluster_s_page_are_commands(asked: Asked, view: str) -> None:
    words = ("--bootstrap", "h:9092,i:9092", "--command-config", "a file.conf")
    name, *given = shlex.split(live(asked, *words).view(view, **QUESTIONS[view])["command"])
    assert name == "metaquorum"
    command: click.Command = main
    context = click.Context(command, info_name=name)
    while isinstance(command, click.Group):
        found = command.get_command(context, given.pop(0))
        assert found is not None
        command = found
    parsed = command.make_context(name, given).params
    assert (parsed["bootstrap"], str(parsed["command_config"])) == ("h:9092,i:9092", "a file.conf")


def test_with_several_paths_the_tools_that_read_several_get_all(asked: Asked, tmp_path: Path) -> None:
    (first,) = asked.words
    page = AskedPage(application(Views(asked.strip, (first, str(tmp_path))), token=TOKEN, port=PORT))
    for view, params in QUESTIONS.items():
        words = shlex.split(page.view(view, **params)["command"])
        assert (str(tmp_path) in words) == (view == "events"), view
    assert page.view("log")["name"] == f"{first}, {tmp_path}"
