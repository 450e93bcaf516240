"""Words that commands read, and lines that they print, by tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE

from metaquorum.cli.admin.configs import _json, _resource
from metaquorum.cli.data.consume import StartType, _as_json
from metaquorum.cli.log.shell.commands import _count
from metaquorum.cli.log.shell.session import ShellError
from metaquorum.cli.log.summary import _COLOURS, _coloured, _Times
from metaquorum.cli.main import main
from metaquorum.cli.pipeline.audit import summary as fleet_summary
from metaquorum.clients.admin.configs import DescribedConfig
from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource
from metaquorum.pipeline.audit.facts import ClusterFacts

NOWHERE = ("--bootstrap", "127.0.0.1:1", "--timeout", "0.2")


@pytest.mark.parametrize(
    ("text", "kind", "at"),
    [
        ("earliest", "EARLIEST", None),
        ("latest", "LATEST", None),
        ("0", "OFFSET", 0),
        ("4321", "OFFSET", 4321),
        ("@1000", "TIME", 1_000),
        ("1970-01-01T00:00:02Z", "TIME", 2_000),
    ],
)
def test_where_to_begin(text: str, kind: str, at: int | None) -> None:
    found = StartType().convert(text, None, None)
    assert found.kind.name == kind
    assert found.value == (at or 0)
    assert StartType().convert(found, None, None) is found


def test_what_is_no_place_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="'soon' is not a position in a topic"):
        StartType().convert("soon", None, None)


@pytest.mark.parametrize(("kind", "time_ms"), [(TIMESTAMP_CREATE_TIME, 55), (TIMESTAMP_NOT_AVAILABLE, -1)])
def test_a_record_as_json(kind: int, time_ms: int) -> None:
    record: Any = SimpleNamespace(
        partition=lambda: 3,
        offset=lambda: 70,
        timestamp=lambda: (kind, 55),
        headers=lambda: [("h", b"1"), ("none", None)],
        key=lambda: b"k",
        value=lambda: None,
    )
    found = _as_json(record)
    assert {name: found[name] for name in ("partition", "offset", "timestampMs", "key", "value")} == {
        "partition": 3,
        "offset": 70,
        "timestampMs": time_ms,
        "key": "k",
        "value": None,
    }
    assert [(each["name"], each["value"]) for each in found["headers"]] == [("h", "1"), ("none", None)]


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [(BROKER_RESOURCE, "", ("broker", "default")), (TOPIC_RESOURCE, "t", ("topic", "t"))],
)
def test_a_resource_as_json_has_a_name(kind: int, name: str, shown: tuple[str, str]) -> None:
    found = _json(DescribedConfig(resource=ConfigResource(kind, name)))
    assert (found["type"], found["name"], found["error"], found["configs"]) == (*shown, "NONE", [])


@pytest.mark.parametrize(("words", "count"), [([], 1), (["5"], 5), (["0"], 0)])
def test_how_many_batches(words: list[str], count: int) -> None:
    assert _count(words) == count


@pytest.mark.parametrize("words", [["x"], ["-1"], ["²"], ["1", "2"], ["1", "x"], ["x", "1"]])
def test_what_is_no_number_of_batches(words: list[str]) -> None:
    with pytest.raises(ShellError, match="is not a number of batches"):
        _count(words)


def test_a_severity_has_its_colour() -> None:
    assert len(set(_COLOURS.values())) == len(_COLOURS) > 0
    for severity, colour in _COLOURS.items():
        assert _coloured("line", severity) == click.style("line", fg=colour) != "line"
    assert _coloured("line", "no severity") == "line"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("configs", "alter", "topic", "t"), 2, "there is nothing to change"),
        (("configs", "alter", "topic", "t", "--set", "retention.ms=1"), 1, ""),
        (("acls", "add", "User:a", "--operation", "read"), 2, "give --resource-name"),
        (("acls", "add", "User:a", "--operation", "read", "--resource-name", "t"), 1, ""),
    ],
)
def test_a_command_line_that_lacks_something_asks_no_broker(
    words: tuple[str, ...], code: int, text: str
) -> None:
    more = ("--resource-type", "topic") if words[0] == "acls" else ()
    result = CliRunner().invoke(main, [*words, *more, *NOWHERE])
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr


def test_the_cluster_needs_no_name() -> None:
    words = ("acls", "add", "User:a", "--operation", "alter", "--resource-type", "cluster")
    assert CliRunner().invoke(main, [*words, *NOWHERE]).exit_code == 1


@pytest.mark.parametrize(
    ("kind", "name", "resource"),
    [
        ("broker", "default", ConfigResource(BROKER_RESOURCE, "")),
        ("broker", "1", ConfigResource(BROKER_RESOURCE, "1")),
        ("topic", "default", ConfigResource(TOPIC_RESOURCE, "default")),
        ("topic", "orders", ConfigResource(TOPIC_RESOURCE, "orders")),
    ],
)
def test_only_a_broker_may_stand_for_all(kind: str, name: str, resource: ConfigResource) -> None:
    assert _resource(kind, name) == resource


@pytest.mark.parametrize(
    ("last_ms", "shown"), [(86_399_999, "00:00:00.001"), (86_400_000, "1970-01-01 00:00:00")]
)
def test_times_of_one_day_have_no_date(last_ms: int, shown: str) -> None:
    row = SimpleNamespace(time_ms=last_ms)
    answer: Any = SimpleNamespace(from_ms=1, to_ms=2, sections=[SimpleNamespace(rows=[row])])
    times = _Times(answer)
    assert times.text(1) == shown and times.width == len(shown)


def test_the_numbers_of_a_fleet_are_exact_to_a_millisecond() -> None:
    facts = [ClusterFacts("a"), ClusterFacts("b")]
    for one in facts:
        one.sums |= {"leaderless_seconds": 0.10062, "under_min_isr_seconds": 7.00026, "unclean_elections": 2}
    found = fleet_summary(facts)
    assert found["leaderlessPartitionSeconds"] == 0.201
    assert found["underMinIsrPartitionSeconds"] == 14.001
    assert (found["clusters"], found["uncleanElections"]) == (2, 4)
