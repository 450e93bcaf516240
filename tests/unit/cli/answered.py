"""Commands of administration with the functions that ask the cluster replaced."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.clients.admin.topics import DescribedPartition, DescribedTopic

NOWHERE = ("-b", "127.0.0.1:1", "--timeout", "0.2")


class Ran(NamedTuple):
    out: list[str]
    err: list[str]
    code: int
    asked: dict[str, tuple[tuple[Any, ...], dict[str, Any]]]


Run = Callable[..., Ran]


@pytest.fixture(name="run")
def fixture_run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command whose module has these functions: each gives its value, or raises it."""

    def run_it(module: ModuleType, words: str, **answers: Any) -> Ran:
        asked: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

        def answering(name: str, answer: Any) -> Any:
            async def ask(client: Any, *args: Any, **named: Any) -> Any:
                asked[name] = (args, named)
                if isinstance(answer, Exception):
                    raise answer
                return answer(*args) if callable(answer) else answer

            return ask

        for name, answer in answers.items():
            monkeypatch.setattr(module, name, answering(name, answer))
        result = CliRunner().invoke(main, [*words.split(), *NOWHERE])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Ran(result.stdout.splitlines(), result.stderr.splitlines(), result.exit_code, asked)

    return run_it


def topic(name: str, *replicas: tuple[int, ...]) -> DescribedTopic:
    parts = tuple(
        DescribedPartition(index=at, replicas=each, isr=each, leader=each[0], leader_epoch=0)
        for at, each in enumerate(replicas)
    )
    return DescribedTopic(name=name, topic_id=bytes(16), partitions=parts, configs={})


def cells(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]
