"""`produce` and `consume` against librdkafka's own brokers in memory, with real descriptors."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from metaquorum.cli.client import TlsOptions
from metaquorum.cli.cluster import ClusterOptions
from metaquorum.cli.data.cluster import KafkaCluster
from metaquorum.cli.data.produce import ProduceTotals, _Interruptions
from metaquorum.cli.data.rates import Latencies, rate_text
from metaquorum.cli.errors import Failure
from metaquorum.cli.interrupts import quiet_interrupts
from metaquorum.cli.main import main
from tests.e2e.processes import running
from tests.unit.server.nodes import silent_port


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: bytes
    err: str

    @property
    def line(self) -> str:
        """The one line on standard error."""
        assert self.err.startswith("metaquorum: ") and self.err.count("\n") == 1, self.err
        return self.err


Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A cluster of librdkafka's: topics of four partitions appear when they are asked for."""
    quiet = logging.Logger("mock")
    quiet.addHandler(logging.NullHandler())
    settings = {"bootstrap.servers": "none", "test.mock.num.brokers": 2}
    owner = confluent_kafka.Producer(settings, logger=quiet)
    found = owner.list_topics("any", 20).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in found)
    del owner


@pytest.fixture
def run(
    bootstrap: str,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Run:
    """Runs a command in this process, its input from a file or (`piped`) a pipe."""

    def run_it(*args: str, given: bytes = b"", piped: bool = False) -> Ended:
        if piped:
            reading, writing = os.pipe()
            os.write(writing, given)
            os.close(writing)
        else:
            (tmp_path / "input").write_bytes(given)
            reading = os.open(tmp_path / "input", os.O_RDONLY)
        named = [] if "--bootstrap" in args else ["--bootstrap", bootstrap]
        with open(reading) as stdin, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            capfdbinary.readouterr()
            with pytest.raises(SystemExit) as ended:
                main.main([*args, *named])
        out, err = capfdbinary.readouterr()
        return Ended(int(ended.value.code or 0), out, err.decode())

    return run_it


@pytest.mark.parametrize("piped", [True, False])
def test_lines_go_in_and_come_out_in_order(run: Run, piped: bool) -> None:
    topic = f"lines-{piped}"
    text = b"".join(b"line %d\n" % number for number in range(3_000)) + b"\nlast without end"
    ended = run("produce", topic, "--partition", "2", given=text, piped=piped)
    assert ended.code == 0 and ended.err == ""
    assert ended.out.startswith(b"3,002 messages (") and b"latency p50" in ended.out
    read = run("consume", topic, "--until-end")
    assert (read.code, read.err) == (0, "")
    assert read.out == text + b"\n"


class Asked:
    """A consumer that is asked what a group committed: raises these in turn, the last for good."""

    def __init__(self, *codes: int | None) -> None:
        self._codes = list(codes)

    def committed(self, places: list[confluent_kafka.TopicPartition], timeout: float) -> None:
        code = self._codes.pop(0) if len(self._codes) > 1 else self._codes[0]
        if code is not None:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(code))

    def poll(self, timeout: float) -> None:
        """Nothing is reported."""


@pytest.mark.parametrize(
    ("codes", "problem"),
    [
        ((KafkaError._WAIT_COORD, KafkaError.NOT_COORDINATOR, None), None),
        ((KafkaError._TIMED_OUT,), "group g has no coordinator; `metaquorum groups describe g` shows why"),
        ((KafkaError.GROUP_AUTHORIZATION_FAILED,), "GROUP_AUTHORIZATION_FAILED: group g: "),
    ],
)
def test_a_group_without_a_coordinator_is_told(
    codes: tuple[int | None, ...], problem: str | None, bootstrap: str
) -> None:
    tls = TlsOptions()
    cluster = KafkaCluster(ClusterOptions(bootstrap=bootstrap, timeout_s=5.0, tls=tls), ())
    cluster.timeout_s = 0.05
    with nullcontext() if problem is None else pytest.raises(Failure, match=problem):
        cluster.look_for_coordinator(Asked(*codes), "g", confluent_kafka.TopicPartition("t", 0))


def test_keys_offsets_and_partitions(run: Run) -> None:
    given = b"a:=1\nb:=2\nc:=x:=y\n"
    assert run("produce", "keys", "--key-separator", ":=", "--partition", "1", given=given).code == 0
    read = run("consume", "keys", "--until-end", "--key", "--offsets", "--partition", "1")
    assert read.out == b"1:0\ta\t1\n1:1\tb\t2\n1:2\tc\tx:=y\n"
    assert run("consume", "keys", "--until-end", "--partition", "0").out == b""
    assert run("consume", "keys", "--until-end", "--from", "1", "--partition", "1").out == b"2\nx:=y\n"
    assert run("consume", "keys", "--max-messages", "2", "--partition", "1").out == b"1\n2\n"
    assert run("consume", "keys", "--from", "latest", "--idle-timeout", "0.1").out == b""
    beyond = run("consume", "keys", "--from", "9", "--partition", "1")
    assert "OFFSET_OUT_OF_RANGE: offset 9 is not in the log of keys-1, which has 0 to 3" in beyond.line


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_json_keeps_what_is_no_text_in_every_codec(run: Run, codec: str) -> None:
    options = ("--key-separator", "=", "--compression", codec, "--json")
    summary = json.loads(run("produce", codec, *options, given=b"k=\xff\xfe\n").out)
    assert (summary["messages"], summary["failed"], summary["problem"]) == (1, 0, None)
    assert summary["latencyMs"]["p99"] > 0
    (line,) = run("consume", codec, "--until-end", "--json").out.splitlines()
    record = json.loads(line)
    assert record.pop("timestampMs") > 1_500_000_000_000
    assert (record["key"], record["valueBase64"], record["headers"]) == ("k", "//4=", [])


def test_a_group_reads_to_the_end(run: Run) -> None:
    assert run("produce", "grouped", "--count", "5", "--size", "12").code == 0
    assert len(run("consume", "grouped", "--group", "g", "--until-end").out.splitlines()) == 5


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["consume", "t", "--group", "g", "--partition", "1"], "members of a group share the partitions"),
        (["consume", "t", "--group", "g", "--from", "7"], "a group continues where it committed"),
        (["consume", "t", "--from", "noon"], "is not a position in a topic"),
        (["consume", "t", "--property", "nonsense"], "write KEY=VALUE"),
        (["produce", "t", "--size", "3"], "add --count"),
    ],
)
def test_a_wrong_command_line_is_told_apart(run: Run, command: list[str], text: str) -> None:
    ended = run(*command)
    assert ended.code == 2 and text in ended.err


def test_what_cannot_be_done_is_said_in_one_line(run: Run) -> None:
    assert "and no partition 9" in run("produce", "some", "--partition", "9", given=b"x\n").line
    assert "and no partition 9" in run("consume", "some", "--partition", "9").line
    assert "correct --property" in run("consume", "some", "--property", "no.such.key=1").line
    with silent_port() as port:
        for command in ("produce", "consume"):
            ended = run(command, "some", "--bootstrap", f"127.0.0.1:{port}", "--timeout", "1")
            assert f"no node at 127.0.0.1:{port} answered within 1000 ms" in ended.line
            assert "connection refused" in ended.line


def test_a_line_without_key_ends_it_after_what_came_before_was_sent(run: Run) -> None:
    ended = run("produce", "half", "--key-separator", ":", given=b"a:1\nno key\nb:2\n")
    assert ended.code == 1 and "line 2 of the input has no key separator ':'" in ended.line
    assert ended.out.startswith(b"1 message ")
    assert run("consume", "half", "--until-end").out == b"1\n"


def test_a_reader_who_goes_away_ends_consume_quietly(run: Run, bootstrap: str) -> None:
    assert run("produce", "gone", "--count", "30000", "--partition", "0").code == 0
    with running("consume", "gone", "--bootstrap", bootstrap) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == b"%012d" % 0 + b"." * 88 + b"\n"
        child.stdout.close()
        assert child.wait(timeout=90) == 141
        assert child.stderr.read() == b""


def test_an_interrupted_produce_flushes_and_says_how_many_were_acknowledged(bootstrap: str) -> None:
    command = ("produce", "interrupted", "--rate", "1000", "--count", "1000000")
    with running(*command, "--progress", "--bootstrap", bootstrap) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stderr.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=90) == 130
        said = child.stdout.read()
        acknowledged, _, of = said.partition(b" messages")[0].partition(b" of ")
        assert acknowledged == of != b"0"


def test_two_interrupts_at_once_give_up_too() -> None:
    """Both arrive before the input is left: the wait for acknowledgements does not begin."""

    async def main() -> tuple[Exception | None, bool]:
        account = ProduceTotals(taken=1)
        ended = False

        async def flush() -> None:
            nonlocal ended
            await asyncio.sleep(0)
            ended = True

        with _Interruptions(account) as interruptions:
            feeding = asyncio.ensure_future(interruptions.run(asyncio.Event().wait(), feeding=True))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            for _ in range(2):
                interruptions._arrived(signal.SIGINT)
            await feeding
            return await interruptions.run(flush(), feeding=False), ended

    assert asyncio.run(main()) == (None, False)


def test_an_interrupt_while_modules_are_loaded_is_quiet() -> None:
    """A module that takes any failure of an import for its own cannot swallow it either."""
    script = (
        "import importlib, os, signal, sys\n"
        "from metaquorum.cli.main import main\n"
        "def load(name):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "importlib.import_module = load\n"
        "main.main(['topics', 'list'])\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, b"", b"")


IMPORTED = (
    *("signal", "metaquorum.platforms", "socket", "click", "metaquorum.cli.main"),
    *("metaquorum.cli.cluster", "asyncio", "msgspec", "grpc", "ssl", "metaquorum.wire.messages"),
)


@pytest.mark.parametrize("module", IMPORTED)
def test_an_interrupt_while_the_command_itself_is_loaded_is_quiet(module: str) -> None:
    """From the first statement of the entry point on."""
    script = (
        "import os, signal, sys\n"
        "from metaquorum.cli.__main__ import main\n"
        "sys.modules.pop('signal')\n"
        "def look(event, given, kill=os.kill, own=os.getpid(), SIGINT=signal.SIGINT):\n"
        "    if event == 'import' and given[0] == sys.argv[-1]:\n"
        "        kill(own, SIGINT)\n"
        "sys.addaudithook(look)\n"
        "main()\n"
    )
    # The last word tells the hook, and is a topic for the command.
    command = [sys.executable, "-c", script, "topics", "list", "--bootstrap", "127.0.0.1:1", module]
    ended = subprocess.run(command, check=False, capture_output=True, timeout=60)
    quiet = (-signal.SIGINT, 130) if module == "signal" else (-signal.SIGINT,)
    assert ended.returncode in quiet and (ended.stdout, ended.stderr) == (b"", b"")


def test_an_interrupt_that_is_ignored_stays_so_and_the_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler in (signal.SIG_IGN, signal.default_int_handler):
            signal.signal(signal.SIGINT, handler)
            with quiet_interrupts():
                inside = signal.getsignal(signal.SIGINT)
            assert inside is (signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_latencies_and_rates_are_readable_at_any_size() -> None:
    slow = Latencies()
    slow.note(0.0000004)
    slow.note(1.39e3, 99)
    assert slow.text() == "p50 1,390,000, p95 1,390,000, p99 1,390,000, max 1,390,000 ms"
    assert rate_text(3, 30, 60.0) == "0 messages/s, under 0.001 MB/s"
    assert rate_text(10**6, 10**9, 2.0) == "500,000 messages/s, 500 MB/s"
    assert rate_text(100, 4_120_000, 1.0) == "100 messages/s, 4.12 MB/s"
