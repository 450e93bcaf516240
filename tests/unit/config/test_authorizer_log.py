"""The authorizer's decisions as lines: which are written, where, how many bytes, what cannot be in them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaquorum.config.load import load_config
from metaquorum.errors import ConfigError
from metaquorum.metadata.authorizer import Caller
from metaquorum.metadata.settings.acls import Operation, ResourceType
from metaquorum.observability import authorizer_log
from metaquorum.observability.authorizer_log import (
    DENIALS_S,
    FILES_KEPT,
    LINES_MAX,
    note_decision,
    set_up_authorizer_log,
)

ALICE = Caller("User:alice", "10.0.0.7")
BOB = Caller("User:bob", "10.0.0.8")
LOGGER = logging.getLogger("metaquorum.authorizer")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        handler.close()
    LOGGER.propagate = True
    LOGGER.setLevel(logging.NOTSET)


def set_up(folder: Path, **keys: object) -> Path:
    path = folder / "authorizer.log"
    lines = {
        "process.roles": "broker",
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "controller.quorum.voters": "2@127.0.0.1:9093",
        "log.dirs": str(folder),
        "authorizer.log.path": str(path),
        **{name.replace("_", "."): str(value) for name, value in keys.items()},
    }
    file = folder / "broker.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    set_up_authorizer_log(load_config(file, "broker"))
    return path


def decide(allowed: bool, name: str = "orders", caller: Caller = ALICE) -> None:
    note_decision(allowed, caller, Operation.READ, ResourceType.TOPIC, name, "Fetch")


def told(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_denials_always_and_permissions_where_they_are_asked_for(tmp_path: Path) -> None:
    path = set_up(tmp_path)
    decide(False)
    decide(True)
    (line,) = told(path)
    del line["time"]
    assert line == {
        "level": "info",
        "message": "User:alice from 10.0.0.7 may not READ TOPIC orders, which Fetch needs",
        "decision": "denied",
        "principal": "User:alice",
        "client": "10.0.0.7",
        "operation": "READ",
        "resource": "TOPIC:orders",
        "api": "Fetch",
    }
    set_up(tmp_path, authorizer_log_allowed="true")
    decide(True)
    assert [line["decision"] for line in told(path)] == ["denied", "allowed"]
    assert told(path)[1]["message"] == "User:alice from 10.0.0.7 may READ TOPIC orders, for Fetch"


def test_the_file_is_its_owners_alone_and_bounded(tmp_path: Path) -> None:
    path = set_up(tmp_path, authorizer_log_max_bytes=4096)
    for number in range(300):
        decide(False, "x" * 100, Caller(f"User:{number}", "10.0.0.7"))
    files = sorted(tmp_path.glob("authorizer.log*"))
    assert len(files) == 1 + FILES_KEPT
    assert all(each.stat().st_mode & 0o777 == 0o600 and each.stat().st_size <= 4096 for each in files)
    assert all(line["decision"] == "denied" for line in told(path))


def test_many_denials_of_one_principal_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(tmp_path, authorizer_log_path="")
    now_s = 1_000.0
    counted = authorizer_log.Denials(lambda: now_s)
    monkeypatch.setattr(authorizer_log, "denials", counted)
    with caplog.at_level(logging.INFO):
        for _ in range(2_000):
            decide(False, "")
        decide(False, "", BOB)
        assert len(caplog.messages) == LINES_MAX + 1
        now_s += DENIALS_S
        decide(False, "", BOB)
    assert caplog.messages[-2:] == [
        "User:alice: 1995 more denials in the last 30 s are not listed",
        "User:bob from 10.0.0.8 may not READ TOPIC , which Fetch needs",
    ]


def test_a_long_name_is_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_up(tmp_path, authorizer_log_path="")
    with caplog.at_level(logging.INFO):
        decide(False, "x" * 32_000)
    (text,) = caplog.messages
    assert len(text) < 400 and "(32000 characters)" in text


def test_nothing_that_a_client_says_ends_a_line(tmp_path: Path) -> None:
    path = set_up(tmp_path)
    decide(False, "a\nb\x1b[2J", Caller("User:m\u202e", "::1"))
    (line,) = told(path)
    assert line["resource"] == r"TOPIC:a\nb\x1b[2J" and line["principal"] == r"User:m\u202e"
    assert "\n" not in line["message"]


def test_without_a_file_it_is_the_nodes_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_up(tmp_path, authorizer_log_path="")
    with caplog.at_level(logging.INFO):
        decide(False, "a\nb")
        decide(True)
    assert caplog.messages == [r"User:alice from 10.0.0.7 may not READ TOPIC a\nb, which Fetch needs"]


def test_a_file_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"authorizer\.log\.path=.*no/such cannot be written .No such file"
    ) as error:
        set_up(tmp_path, authorizer_log_path=tmp_path / "no" / "such")
    assert "\n" not in str(error.value)


def test_a_full_disk_stops_no_one_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_up(tmp_path)
    (handler,) = LOGGER.handlers

    def full(text: str) -> int:
        raise OSError(28, "No space left on device")

    assert isinstance(handler, logging.StreamHandler)
    monkeypatch.setattr(handler.stream, "write", full, raising=False)
    decide(False)
    decide(False)
    assert [text for text in caplog.messages if "No space left" in text] == [
        f"lines of the authorizer log {tmp_path}/authorizer.log are lost, because it cannot be written: "
        "[Errno 28] No space left on device"
    ]
