"""Scripts for state machines and a partition's log: commands, and all that followed, recorded.

A line that starts with `> ` is a command, the lines below it are its recorded output, `# ` is a comment.
`pytest tests/scripts --rewrite` writes the output anew: the difference is reviewed like code. The folder says
what is driven, the commands are the methods of its player.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.controller_player import ControllerPlayer
from tests.scripts.directory_player import DirectoryPlayer
from tests.scripts.groups_player import GroupsPlayer
from tests.scripts.log_player import LogPlayer
from tests.scripts.player import Player, play
from tests.scripts.replicas_player import ReplicasPlayer
from tests.scripts.session_player import SessionPlayer
from tests.scripts.transactions_player import TransactionsPlayer

PLAYERS: dict[str, Callable[[], Player]] = {
    "controller": ControllerPlayer,
    "directory": DirectoryPlayer,
    "groups": GroupsPlayer,
    "log": LogPlayer,
    "replicas": ReplicasPlayer,
    "session": SessionPlayer,
    "transactions": TransactionsPlayer,
}
HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.glob("*/*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    recorded = path.read_text(encoding="utf-8")
    actual = play(recorded, PLAYERS[path.parent.name]().run)
    if request.config.getoption("--rewrite"):
        path.write_text(actual, encoding="utf-8")
        return
    assert actual == recorded, f"{path.name} differs; review: pytest tests/scripts --rewrite && git diff"


def test_every_player_has_scripts() -> None:
    assert {path.parent.name for path in SCRIPTS} == set(PLAYERS)


def test_a_changed_output_is_noticed() -> None:
    text = "> session\n  something that never happens\n"
    assert play(text, SessionPlayer().run) != text
