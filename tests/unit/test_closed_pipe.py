"""The repository's own tools end quietly where the reader of their output went away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.closed_pipe import EXIT_PIPE

SEGMENTS = Path(__file__).resolve().parents[1] / "data" / "kafka-3.7-upgrade"


def ended(program: str) -> tuple[int, str]:
    """Exit code and standard error of a program with nobody behind its standard output."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("text", ["print('a line')", "print('a line', flush=True)", "print('x' * 100_000)"])
def test_nobody_reads(text: str) -> None:
    program = f"from tests.closed_pipe import end\ndef main():\n    {text}\n    return 0\nend(main)"
    assert ended(program) == (EXIT_PIPE, "")


def test_another_broken_pipe_is_not_hidden() -> None:
    program = (
        "from tests.closed_pipe import end\ndef main():\n    raise BrokenPipeError('a socket')\nend(main)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    code, told = done.returncode, done.stderr
    assert code == 1 and "BrokenPipeError: a socket" in told


@pytest.mark.parametrize("arguments", [["--help"], ["topics", "--help"], ["--version"]])
def test_a_command_ends_quietly_whatever_it_prints(arguments: list[str]) -> None:
    program = f"import sys; sys.argv[1:] = {arguments}; from metaquorum.cli.__main__ import main; main()"
    assert ended(program) == (EXIT_PIPE, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["log dump DATA", "log shell DATA", "topics list"])
def test_a_command_runs_without_a_standard_stream(arguments: str, closed: str) -> None:
    words = arguments.replace("DATA", str(SEGMENTS)).split()
    if "topics" in words:
        words += ["--bootstrap", "127.0.0.1:1", "--timeout", "0.2"]
    program = f"import sys; sys.argv[1:] = {words}; from metaquorum.cli.__main__ import main; main()"
    codes, told = [], []
    for redirect in ("", closed):
        command = ["sh", "-c", f'exec "$0" -c "$1" {redirect}', sys.executable, program]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        codes.append(done.returncode)
        told.append("" if "2>&-" in redirect else done.stderr.partition(" ms (")[0])
    assert codes[1] == codes[0]
    assert told[1] == ("" if "2>&-" in closed else told[0])


@pytest.mark.parametrize(
    "module",
    [
        "metaquorum.wire.stubs",
        "metaquorum.config.docs",
        "metaquorum.observability.metrics.docs",
        "metaquorum.listeners.rights",
    ],
)
def test_a_module_that_prints_a_page_ends_quietly(module: str) -> None:
    program = f"import runpy; runpy.run_module({module!r}, run_name='__main__')"
    assert ended(program) == (-signal.SIGPIPE, "")


def test_a_tool_ends_by_it() -> None:
    code, told = ended(
        "import runpy, sys; sys.argv[1:] = ['--list']; runpy.run_module('tests.planted', run_name='__main__')"
    )
    assert (code, told) == (EXIT_PIPE, "")
