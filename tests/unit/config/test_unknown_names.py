"""Names of controllers that do not resolve: said at the start of a node, which goes on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from metaquorum.config.load import load_config
from metaquorum.node import process as module
from tests.unit.config.test_config import BROKER, written


def test_each_unknown_host_is_named_once_with_its_key_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    voters = "1@nowhere.invalid:9093,2@127.0.0.1:9093,3@nowhere.invalid:9094"
    path = written(tmp_path, BROKER, controller__quorum__voters=voters)
    monkeypatch.setattr(module, "_problem", lambda host: "no such name" if "invalid" in host else None)
    with caplog.at_level(logging.WARNING):
        thread = module.warn_of_unknown_names(load_config(path))
        thread.join(10)
    assert not thread.is_alive(), "the names were looked up"
    assert caplog.messages == [
        f"{path}: controller.quorum.voters names nowhere.invalid, which does not resolve (no such name): "
        "correct the name, or the name service"
    ]


def test_a_name_that_cannot_be_one_is_a_reason_not_an_error() -> None:
    assert module._problem("a" * 80 + ".example")
    assert module._problem("127.0.0.1") is None
