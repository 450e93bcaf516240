"""How long something lasted, as events say it: by a number and in their text, which agree in every story."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.timeline.event_groups import duration
from metaquorum.metadata.inspect.timeline.story import events
from metaquorum.storage.disk.posix import PosixDisk
from tests.stories.story import METADATA
from tests.sums.survey import Survey, names, text_of

DURATION = re.compile(
    r"(?:at least |at most |perhaps )?\b\d+(?:\.\d)? (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)?"
)
OF_CLOCKS = ("clock jumped", "time ran backwards")
"""They tell by how much a clock is wrong, which is no time that passed."""


@pytest.mark.parametrize("name", names())
def test_a_number_is_the_duration_that_the_text_tells(name: str, tmp_path: Path) -> None:
    survey = Survey(text_of(name), tmp_path)
    survey.write()
    for node in sorted(path.name for path in tmp_path.iterdir()):
        log = MetadataLog(PosixDisk(), str(tmp_path / node / METADATA))
        for event in events(log, lambda line: None):
            told = DURATION.findall(event.text)
            if event.kind in (*OF_CLOCKS, "election"):
                assert event.span_ms is None or event.kind == "election"
            elif event.span_ms is None:
                assert told == [] or event.rule == "idle-fenced-early", event
            else:
                assert f"{event.bound}{duration(event.span_ms)}" in told, event
