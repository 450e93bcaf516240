"""Asks every tool about logs and prints what each said: `python -m tests.systems.tools LOG...`

One line per question, with the exit code and a sum of what was printed: the same on every system.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator

from click.testing import CliRunner

from metaquorum import open_log
from metaquorum.cli.main import main as metaquorum
from metaquorum.platforms import prepare_output

TOOLS: tuple[tuple[str, ...], ...] = (
    ("dump",),
    ("dump", "--json"),
    ("summary",),
    ("summary", "--json"),
    ("timeline",),
    ("timeline", "--json"),
    ("check",),
    ("check", "--json"),
    ("state",),
    ("state", "broker/1", "--json"),
    ("history", "broker/1"),
)
"""Without those that ask about an entity or a time, which `questions` adds."""


def questions(path: str, target: str) -> Iterator[list[str]]:
    log = open_log(path)
    for command, *options in TOOLS:
        yield [command, path, *options]
    middle = (log.start_offset + log.end_offset) // 2
    yield ["diff", path, str(middle), str(log.end_offset - 1)]
    yield ["why", path, "broker/1"]
    yield ["why", path, "quorum", "--json"]
    yield ["bisect", path, "--predicate", "len(violations()) < 1"]
    yield ["shell", path, "--at", str(middle), "--command", "ls"]
    yield ["salvage", path]
    yield ["repair", path, "--drop", str(middle), "--dry-run"]
    yield ["archive", path, "--dry-run"]
    yield ["archive", path, "--to", f"{target}/log.mqa"]
    yield ["summary", f"{target}/log.mqa"]
    yield ["archive", f"{target}/log.mqa", "--verify"]


def main() -> int:
    prepare_output()
    for path in sys.argv[1:]:
        with tempfile.TemporaryDirectory(prefix="tools-") as target:
            for asked in questions(path, target):
                done = CliRunner().invoke(metaquorum, ["log", *asked])
                if done.exception is not None and not isinstance(done.exception, SystemExit):
                    raise done.exception
                said = done.output.replace(target, "TARGET").encode()
                words = " ".join(asked).replace(target, "TARGET")
                print(done.exit_code, hashlib.sha256(said).hexdigest()[:16], len(said), words)
    return 0


if __name__ == "__main__":
    os.environ["COLUMNS"] = "120"
    sys.exit(main())
