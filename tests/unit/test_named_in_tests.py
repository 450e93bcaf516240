"""What a recipe of docs/contributing.md adds has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.metadata.requests.common import AnsweredByNode, ControllerRequest
from metaquorum.wire.table import API_BY_NAME

UNIT = Path(__file__).parent


def words_of(folder: str) -> set[str]:
    return {
        word
        for path in (UNIT / folder).glob("*.py")
        for word in re.findall(r"[A-Z]\w+", path.read_text(encoding="utf-8"))
    }


def test_a_test_of_decisions_names_every_request_to_the_active_controller() -> None:
    decided = {*get_args(ControllerRequest)} - {*get_args(AnsweredByNode)}
    missing = {kind.__name__ for kind in decided} - words_of("controller")
    assert not missing, f"no test in tests/unit/controller/ asks for {missing}: which records does it write?"


def test_a_test_of_answers_names_every_api() -> None:
    named = words_of("kafka") | words_of("server")
    recorded = FORWARDED.keys()  # test_forwarded_calls.py
    missing = {
        api
        for api in API_BY_NAME.keys() - recorded
        if named.isdisjoint((api, f"{api}Request", f"{api}Response"))
    }
    assert not missing, f"no test in tests/unit/kafka/ or server/ asks for {missing}: what does it answer?"
