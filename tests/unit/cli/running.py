"""Runs commands within the process of a test."""

from __future__ import annotations

from click.testing import CliRunner, Result

from metaquorum.cli.main import main


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def run_log(*words: object) -> Result:
    """Runs `metaquorum log`, which ends with an exit code."""
    result = run("log", *words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result
