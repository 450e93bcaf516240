"""Logs that are damaged, trimmed, odd or gone, and what people mistype: a sentence each, no empty page."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metaquorum.cli.local.demo_checks import KAFKA_DATA, KAFKA_SEGMENT
from metaquorum.cli.main import main
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records import types as r
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.batches.encode import encode_batch
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.console.asked import Asked
from tests.unit.metadata.made_logs import STORY, Batch, encoded, leads, make_node, topic

VIEWS = ("overview", "strip", "events", "records", "log")


def made(directory: Path, batches: list[Batch], per_segment: int = 100) -> Path:
    make_node(PosixDisk(), batches, home=str(directory), per_segment=per_segment)
    return directory


def segment_of(directory: Path) -> Path:
    return min(directory.rglob("*.log"))


def cut_out(directory: Path, batch: int, batches: list[Batch] = STORY) -> None:
    """Removes one batch from the log's only segment."""
    parts = encoded(batches)
    segment_of(directory).write_bytes(b"".join(parts[:batch] + parts[batch + 1 :]))


def test_lost_records_are_said_and_the_states_are_those_of_the_tools(tmp_path: Path) -> None:
    log = made(tmp_path / "node", STORY)
    cut_out(log, 6)
    asked = Asked(log)
    answer = asked.view("log")
    assert "these records are lost here" in answer["uncovered"][0]["text"]
    gaps = asked.view("strip")["gaps"]
    assert [gap["reason"] for gap in gaps] == ["missing"] and gaps[0]["fromMs"] <= gaps[0]["toMs"]
    for offset in (3, 7, 12, 15):
        state = state_at(asked.log, Point(offset=offset), past_corruption=True)
        shown = asked.view("overview", at=offset)
        assert asked.moments.state(Point(offset=offset)).image == state.image
        assert set(state.problems) <= set(shown["notes"])
    assert asked.view("overview", at=12)["notes"] and not asked.view("overview", at=7)["notes"]


def test_a_damaged_byte_is_said(tmp_path: Path) -> None:
    log = made(tmp_path / "node", STORY)
    data = bytearray(segment_of(log).read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment_of(log).write_bytes(data)
    asked = Asked(log)
    assert any("CRC" in line or "crc" in line for line in asked.view("log")["problems"])
    rows = asked.view("records", start=0, size=100)["records"]
    assert any("damage" in row for row in rows) and rows[-1]["offset"] == 14
    for view in VIEWS:
        assert asked.view(view)


def test_a_log_without_its_beginning_says_what_is_unknown(tmp_path: Path) -> None:
    log = made(tmp_path / "node", STORY, per_segment=5)
    segment_of(log).unlink()
    asked = Asked(log)
    said = asked.refusal("overview")
    assert "no snapshot" in said and "Events and Records" in said and "--past-corruption" not in said
    assert "begins at offset" in asked.view("log")["uncovered"][0]["text"]
    assert asked.view("records", start=0)["records"] and asked.view("strip")["endOffset"] == 15
    assert asked.view("events", severity="info")["events"]
    long_ago = asked.view("events", severity="info", **{"from": "1999-01-01T00:00:00Z"})
    assert long_ago["events"] == asked.view("events", severity="info")["events"]


def test_a_single_snapshot_is_one_moment() -> None:
    (checkpoint, *_) = sorted(KAFKA_DATA.glob("*.checkpoint"))
    asked = Asked(checkpoint)
    assert asked.view("log")["isState"] and asked.view("overview")["numbers"]
    assert asked.strip.trouble == ""
    assert asked.view("table", kind="brokers")["total"] > 0
    assert "single state" in asked.refusal("diff", **{"from": "0", "to": "1"})
    assert "single state" in asked.refusal("history", target="broker/1")


@pytest.mark.parametrize(
    ("view", "given", "meant"),
    [
        ("records", {}, {"start": 0, "size": 50}),
        ("record", {}, {"offset": 0}),
        ("strip", {"width": 1_000_000}, {"width": 8192}),
    ],
)
def test_what_is_not_given_or_too_large(tmp_path: Path, view: str, given: Any, meant: Any) -> None:
    asked = Asked(made(tmp_path / "node", STORY))
    assert asked.view(view, **given) == asked.view(view, **meant)


def test_a_log_without_records_is_shown(tmp_path: Path) -> None:
    log = made(tmp_path / "node", STORY)
    segment_of(log).write_bytes(b"")
    asked = Asked(log)
    for view in VIEWS:
        assert asked.view(view)
    assert asked.view("table", kind="brokers")["rows"] == []


def test_a_log_that_is_deleted_is_said_and_shown_again_when_it_is_back(tmp_path: Path) -> None:
    log = made(tmp_path / "node", STORY)
    asked = Asked(log)
    segment = segment_of(log)
    kept = segment.read_bytes()
    before = asked.view("log")
    shutil.rmtree(log)
    asked.strip.follow(None)
    assert asked.strip.trouble
    assert "was deleted" in asked.refusal("overview")
    gone = asked.view("log")
    assert "was deleted while the log was read" in gone["trouble"]
    assert gone["endOffset"] == before["endOffset"]
    make_node(PosixDisk(), STORY, home=str(log))
    segment.write_bytes(kept)
    asked.strip.follow(None)
    assert asked.strip.trouble == "" and asked.view("overview")["numbers"]


def test_a_log_that_grows_is_followed(tmp_path: Path) -> None:
    log = made(tmp_path / "node", STORY[:8])
    asked = Asked(log)
    before = asked.view("log")
    more = [*STORY, (3, [leads(3000)]), (3, [r.FenceBrokerRecord(1, 2)])]
    segment_of(log).write_bytes(b"".join(encoded(more)))
    assert asked.view("overview")["offset"] == 17, "also before the strip is"
    asked.strip.follow(None)
    after = asked.view("log")
    assert after["version"] > before["version"] and after["endOffset"] == 17
    strip = asked.view("strip")
    assert strip["leaders"][-1][2:] == [3000, 3] and strip["brokers"][0]["turns"][-1][2] == "fenced"
    assert asked.view("events", severity="critical")["events"][-1]["kind"] in (
        "total outage",
        "still no broker",
    )
    assert after["critical"]["kind"] == "total outage"


def test_a_refresh_that_fails_is_said(tmp_path: Path) -> None:
    asked = Asked(made(tmp_path / "node", STORY))

    def refuse() -> None:
        raise OSError("no controller answers")

    asked.strip.follow(refuse)
    assert asked.view("log")["trouble"] == "no controller answers"
    assert asked.view("overview")["numbers"], "what was read is still shown"


def test_a_clock_that_jumps_by_years_is_hatched(tmp_path: Path) -> None:
    log = made(tmp_path / "node", STORY)
    year_ms = 365 * 86_400_000
    parts = encoded(STORY)
    late = encoded(STORY[5:6], base_offset=7)[0]
    (batch,) = iter_batches(late)
    records = batch.records()
    parts[5] = encode_batch(
        base_offset=batch.header.base_offset,
        leader_epoch=1,
        timestamp_ms=batch.header.base_timestamp_ms + 20 * year_ms,
        values=[record.value or b"" for record in records],
    )
    segment_of(log).write_bytes(b"".join(parts))
    asked = Asked(log)
    strip = asked.view("strip")
    assert strip["toMs"] - strip["fromMs"] < year_ms, "the axis is not with_jitter by it"
    assert "clock jumped" in [gap["reason"] for gap in strip["gaps"]]


def test_names_and_values_are_texts_whatever_they_hold(tmp_path: Path) -> None:
    """HTML, a formula, right-to-left text, and the longest names: as they are in JSON, harmless in CSV."""
    html, formula, hebrew = "<img src=x onerror=alert(1)>", '=HYPERLINK("http://evil")', "\u202eשלום"
    longest = [f"{'x' * 240}{number:09d}" for number in range(10_000)]
    ids = [number.to_bytes(16, "big") for number in range(1, 10_001)]
    batches: list[Batch] = [(1, [leads(3000)]), (1, [r.FeatureLevelRecord("metadata.version", 14)])]
    batches += [(1, [r.TopicRecord(name, at) for name, at in zip(longest, ids, strict=True)])]
    for number, name in enumerate((html, formula, hebrew)):
        batches.append((1, topic(name, bytes([200 + number]) * 16)))
        batches.append((1, [r.ConfigRecord(2, name, "retention.ms", html)]))
    asked = Asked(made(tmp_path / "node", batches))
    page = asked.view("table", kind="topics", size=100)
    assert page["total"] == 10_003 and len(page["rows"]) == 100
    assert asked.view("table", kind="topics", text=longest[777])["rows"][0]["topic"] == longest[777]
    answer = asked.get("/api/table?kind=topics&text=%3Cimg")
    assert answer.json()["rows"][0]["topic"] == html and answer.headers["content-type"] == "application/json"
    assert asked.view("entity", path=f"config/topic/{hebrew}")["entities"][0]["fields"] == {
        "retention.ms": html
    }
    text = asked.get("/api/table?kind=configs&format=csv").body.decode()
    assert f"topic/{formula}".replace('"', '""') in text
    assert "'=HYPERLINK" in asked.get("/api/table?kind=topics&text=HYPER&format=csv").body.decode()


@pytest.mark.parametrize(
    ("view", "params", "sentence"),
    [
        ("overview", {"at": "yesterday"}, "is neither a time nor an offset"),
        ("overview", {"at": "999999"}, "ends at offset 15, before 999999; give 15 or less"),
        ("overview", {"at": "1999-01-01"}, "begins at"),
        ("table", {"kind": "nothing"}, "there is no table 'nothing'; known are brokers"),
        ("table", {"kind": "brokers", "sort": "nothing"}, "there is no column 'nothing'; known are broker"),
        ("table", {"kind": "partitions", "show": "nothing"}, "there is no state 'nothing'"),
        ("table", {"kind": "partitions", "show": "broker=x"}, "'x' is not a broker id"),
        ("table", {"kind": "brokers", "start": "-1"}, "is not a number"),
        ("table", {"kind": "brokers", "size": "1e99"}, "is not a number"),
        ("table", {"kind": "brokers", "format": "xml"}, "there is no format 'xml'; known are csv and json"),
        ("entity", {"path": "brokr/1"}, "did you mean broker/1?"),
        ("why", {"target": "topic/orders/1.lader"}, "has no field 'lader'; did you mean leader?"),
        ("record", {"offset": "999"}, "has no readable record at offset 999"),
        ("events", {"severity": "bad"}, "'bad' is not one of detail"),
        ("bisect", {"predicate": "leaderles() == 0"}, "leaderles"),
        ("bisect", {"predicate": "__import__('os')"}, "__import__"),
        ("bisect", {"predicate": ""}, "the expression is empty"),
        ("access", {"principal": "alice", "operation": "READ", "resource": "topic/x"}, "User:alice"),
        ("access", {"principal": "User:a", "operation": "FLY", "resource": "topic/x"}, "'FLY' is not one of"),
        ("access", {"principal": "User:a", "operation": "READ", "resource": "x"}, "'x' is not one of"),
    ],
)
def test_what_is_mistyped_gets_one_sentence(
    story: Asked, view: str, params: dict[str, str], sentence: str
) -> None:
    assert sentence in story.refusal(view, **params)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(made(tmp_path_factory.mktemp("story") / "node", STORY))


def test_the_command_says_what_prevents_it(tmp_path: Path) -> None:
    def line(*words: object) -> str:
        done = CliRunner().invoke(main, ["console", "--no-browser", *map(str, words)])
        assert done.exit_code != 0 and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    assert "does not exist" in line(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "holds no metadata log" in line(tmp_path / "empty")
    assert "Missing argument" in line()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = line(KAFKA_DATA / KAFKA_SEGMENT, "--port", port)
    assert f"port {port} of 127.0.0.1 cannot be used" in said and "--port" in said
