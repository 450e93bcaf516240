"""Compares what was done to a cluster with what `log timeline`, `log why` and `log summary` say of it.

A cause is right if it is what was done, or if the tool says that the log does not show which, and names what
was done among the possibilities.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from metaquorum.cli.main import main
from tests.ways.ways import BOUNCED, DIED, RESIGNED, SILENT, STOPPED, TOPIC, Deed

_FENCES = {
    SILENT: ("session-expired",),
    STOPPED: ("shutdown-finished", "stopped-idle"),
    BOUNCED: ("broker-restarted", "session-expired"),
}
"""Rules that are right about a broker's fence."""
_NAMED = {
    SILENT: "it sent no heartbeat in time",
    STOPPED: "it shut down cleanly",
    BOUNCED: "it sent no heartbeat in time",
    DIED: "it failed, hung or was cut off",
    RESIGNED: "it resigned",
}
"""What must be among the possibilities, where a tool cannot decide."""
_LOSSES = {
    SILENT: ("broker-fenced",),
    STOPPED: ("controlled-shutdown", "broker-fenced"),
    BOUNCED: ("broker-restarted", "broker-fenced"),
}
"""Rules that are right about a leadership that a broker lost."""
_WORDS = {
    SILENT: ("no heartbeat", "unclear", "fenced early", "probably shut down cleanly"),
    STOPPED: ("shut down cleanly", "unclear"),
    BOUNCED: ("restarted", "no heartbeat", "unclear", "fenced early"),
}
"""Words that are right in a summary."""
_BUSY = ("session-expired", "fenced-early")
"""What a machine may do to brokers of short sessions while it is busy with something else."""
_UNDECIDED = "the log does not show which"


def judge(deeds: list[Deed], home: Path) -> list[str]:
    """Every answer that is wrong, as a line; empty if all are right."""
    events = _lines("timeline", home)
    wrong = [line for deed in deeds for line in _of_deed(deed, events, home)]
    undue = [one for one in events if one["severity"] in ("warning", "critical") and not _is_due(one, deeds)]
    if not any(event["rule"] in _BUSY for event in undue if event["kind"] == "broker fenced"):
        wrong += [f"nothing was done, but: {_shown(event)}" for event in undue]
    return wrong + list(_of_summary(deeds, home))


def _of_deed(deed: Deed, events: list[dict[str, Any]], home: Path) -> Iterator[str]:
    own = [one for one in events if deed.from_offset <= one["offset"] < deed.to_offset]
    if deed.broker is not None:
        fences = [one for one in own if _is_fence(one, deed.node)]
        if not fences:
            yield f"{deed.text}: no fence of broker {deed.node} in {deed.from_offset} to {deed.to_offset}"
        for event in fences[:1]:
            yield from _of_fence(deed, deed.broker, event, home)
        for event in own:
            if event["kind"] in ("leader changed", "leaderless") and event["rule"] is not None:
                yield from _of_loss(deed, deed.broker, event, home)
    if deed.controller is not None:
        elections = [one for one in own if one["kind"] == "election"]
        if not elections:
            yield f"{deed.text}: no election in {deed.from_offset} to {deed.to_offset}"
        for event in elections[:1]:
            yield from _of_election(deed, deed.controller, event, home)


def _is_fence(event: dict[str, Any], broker: int) -> bool:
    if event["entity"] != f"broker/{broker}":
        return False
    return event["kind"] == "broker fenced" or (
        event["kind"] == "broker registered" and "(was unfenced)" in event["text"]
    )


def _of_fence(deed: Deed, how: str, event: dict[str, Any], home: Path) -> Iterator[str]:
    link = _why(home, f"broker/{deed.node}.fenced", event["offset"])
    cause = link["causes"][0]
    right = _FENCES[how]
    if event["rule"] not in right and not _leaves_open(event["text"], how):
        yield f"{deed.text}: timeline: {_shown(event)}"
    if cause["rule"] not in right and not (not cause["certain"] and _leaves_open(cause["text"], how)):
        yield f"{deed.text}: why: {cause['rule']}: {cause['text']}"
    if event["rule"] != cause["rule"]:
        yield f"{deed.text}: timeline says {event['rule']}, why says {cause['rule']}"


def _of_loss(deed: Deed, how: str, event: dict[str, Any], home: Path) -> Iterator[str]:
    """What is said of a leadership that the broker lost."""
    for path in event["entities"]:
        if not path.startswith(f"topic/{TOPIC}/"):
            continue
        link = _why(home, f"{path}.leader", event["offset"])
        before = [one["before"] for one in link["changes"] if one["field"] == "leader"]
        if before != [deed.node]:
            continue
        causes = [one for one in link["causes"] if one["broker"] == deed.node] or link["causes"]
        rules = [one["rule"] for one in causes]
        if not set(rules) & set(_LOSSES[how]):
            yield f"{deed.text}: why {path}: {[one['text'] for one in link['causes']]}"
        for cause in causes:
            wrong = _NAMED[STOPPED if how != STOPPED else SILENT].removeprefix("it ")
            if wrong in cause["text"] and _NAMED[how].removeprefix("it ") not in cause["text"]:
                yield f"{deed.text}: why {path}: {cause['text']}"


def _of_election(deed: Deed, how: str, event: dict[str, Any], home: Path) -> Iterator[str]:
    link = _why(home, "quorum", event["offset"])
    texts = {"timeline": event["text"], "why": " ".join(one["text"] for one in link["causes"])}
    for tool, text in texts.items():
        lost = "stopped writing and did not vote" in text
        if not (_leaves_open(text, how) or (how == DIED and lost)):
            yield f"{deed.text}: {tool}: {text}"


def _leaves_open(text: str, how: str) -> bool:
    return _UNDECIDED in text and _NAMED[how] in text


def _is_due(event: dict[str, Any], deeds: list[Deed]) -> bool:
    """Whether something was done just before a warning that can explain it."""
    return any(one.from_offset <= event["offset"] < one.to_offset for one in deeds)


def _of_summary(deeds: list[Deed], home: Path) -> Iterator[str]:
    answer = _lines("summary", home)[0]
    rows = next((one["rows"] for one in answer["sections"] if one["name"] == "brokers"), [])
    ways: dict[int, set[str]] = {}
    for deed in deeds:
        if deed.broker is not None:
            ways.setdefault(deed.node, set()).add(deed.broker)
    for node, how in ways.items():
        own = [one["text"] for one in rows if one["entity"] == f"broker/{node}"]
        right = {word for one in how for word in _WORDS[one]}
        if not any(word in text for text in own for word in right):
            yield f"summary: broker {node}, which {', '.join(sorted(how))}: {own}"
    stopped_only = all(one.broker in (None, STOPPED) and one.controller is None for one in deeds)
    if stopped_only and answer["severity"] != "info":
        yield f"summary: {answer['severity']}, but brokers were only stopped"


def _why(home: Path, target: str, offset: int) -> dict[str, Any]:
    """The link of a record in a chain, or the last one of its batch."""
    answer = _lines("why", home, target, "--at", f"{offset}+", "--last", "3")[0]
    links = answer["records"]
    return next((one for one in links if one["offset"] == offset), links[-1])


def _lines(command: str, home: Path, *arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["log", command, str(home), *arguments, "--json"])
    if not result.stdout.strip():
        raise AssertionError(f"log {command} {arguments}: {result.output}")
    return [json.loads(line) for line in result.stdout.splitlines()]


def _shown(event: dict[str, Any]) -> str:
    return f"{event['offset']} {event['kind']} {event['text']} [{event['rule']}]"
