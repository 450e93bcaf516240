"""The command that `log summary` ends with runs, whatever the log is like."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from tests.stories.story import METADATA
from tests.sums.survey import Survey, names, text_of

NEXT = re.compile(r"^next: metaquorum (.*)$", re.MULTILINE)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, [*words], catch_exceptions=False)


def check_next(*words: str) -> None:
    """Runs the command that a summary names, if it names one."""
    for command in NEXT.findall(run("log", "summary", *words).stdout):
        result = run(*shlex.split(command))
        assert result.exit_code in (0, 1, 3, 4, 11, 14, 15), (words, command, result.stderr)
        # What comes before a damaged place may be all that a part of a log needs to be explained.
        assert result.stdout or "--past-corruption" in result.stderr, (words, command, result.stderr)


def ranges(home: Path) -> list[list[str]]:
    """Parts of a log to sum up: from and to a batch in its middle, to the end of each batch near its end."""
    bases = [int.from_bytes(head, "big") for head in heads(home)]
    if len(bases) < 4:
        return []
    middle, near = str(bases[len(bases) // 2]), bases[-3:]
    return [["--from", middle], ["--to", middle], *(["--to", str(base)] for base in near)]


def heads(home: Path) -> list[bytes]:
    found = []
    for path in sorted((home / METADATA).glob("*.log")):
        content, start = path.read_bytes(), 0
        while start + 61 <= len(content):
            found.append(content[start : start + 8])
            start += 12 + int.from_bytes(content[start + 8 : start + 12], "big")
    return found


@pytest.mark.parametrize("name", names())
def test_the_next_command_runs(name: str, tmp_path: Path) -> None:
    """For each node as a story leaves it, trimmed and damaged, of parts of its log, and for all of them."""
    survey = Survey(text_of(name), tmp_path)
    survey.write()
    if (tmp_path / "n").is_dir():
        survey.write_worse()
    homes = sorted(path for path in tmp_path.iterdir() if (path / METADATA).is_dir())
    for home in homes:
        for words in ([], *ranges(home)):
            check_next(str(home), *words)
    for home in homes[1:]:
        check_next(str(homes[0]), str(home))
    check_next(str(tmp_path))
