"""`produce`, `consume` and `log-dirs` against brokers in memory over real sockets, with real descriptors."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaquorum.cli.data.produce import ProduceTotals, _Interruptions
from metaquorum.cli.data.rates import Latencies, rate_text
from metaquorum.cli.interrupts import quiet_interrupts
from metaquorum.cli.main import main
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import (
    FetchedPartition,
    FetchPartition,
    LogDirDescription,
    ReplicaDescription,
)
from metaquorum.runtime.data_client.producing.batches import BatchBuilder
from metaquorum.storage.uuids import random_uuid, uuid_to_text
from tests.e2e.processes import running
from tests.unit.cli.data_server import Served, served
from tests.unit.runtime.fake_broker import FakePartition, Faults


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


@pytest.fixture
def brokers() -> Iterator[Served]:
    with served() as cluster:
        yield cluster


@pytest.fixture
def run(
    brokers: Served,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Run:
    """Runs a command on the brokers in this process, its input from a file or (`piped`) a pipe."""

    def run_it(*args: str, given: bytes = b"", piped: bool = False) -> Ended:
        if piped:
            reading, writing = os.pipe()
            os.write(writing, given)
            os.close(writing)
        else:
            (tmp_path / "input").write_bytes(given)
            reading = os.open(tmp_path / "input", os.O_RDONLY)
        with open(reading) as stdin, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            capfdbinary.readouterr()
            with pytest.raises(SystemExit) as ended:
                main.main([*args, "--bootstrap", brokers.bootstrap])
        out, err = capfdbinary.readouterr()
        return Ended(int(ended.value.code or 0), out, err.decode())

    return run_it


@pytest.mark.parametrize("piped", [True, False])
def test_lines_go_in_and_come_out_in_order(brokers: Served, run: Run, piped: bool) -> None:
    brokers.cluster.add_topic("t", 1)
    text = b"".join(b"line %d\n" % number for number in range(3_000)) + b"\nlast without end"
    ended = run("produce", "t", given=text, piped=piped)
    assert ended.code == 0 and ended.err == ""
    assert ended.out.startswith(b"3,002 messages (") and b"latency p50" in ended.out
    read = run("consume", "t", "--until-end")
    assert (read.code, read.err) == (0, "")
    assert read.out == text + b"\n"


def test_keys_offsets_and_partitions(brokers: Served, run: Run) -> None:
    brokers.cluster.add_topic("t", 2)
    given = b"a:=1\nb:=2\nc:=x:=y\n"
    assert run("produce", "t", "--key-separator", ":=", "--partition", "1", given=given).code == 0
    read = run("consume", "t", "--until-end", "--key", "--offsets", "--partition", "1")
    assert read.out == b"1:0\ta\t1\n1:1\tb\t2\n1:2\tc\tx:=y\n"
    assert run("consume", "t", "--until-end", "--partition", "0").out == b""
    assert run("consume", "t", "--until-end", "--from", "1", "--partition", "1").out == b"2\nx:=y\n"
    assert run("consume", "t", "--max-messages", "2", "--partition", "1").out == b"1\n2\n"
    assert run("consume", "t", "--from", "latest", "--idle-timeout", "0.1").out == b""


def test_json_keeps_what_is_no_text(brokers: Served, run: Run) -> None:
    brokers.cluster.add_topic("t", 1)
    ended = run(
        "produce", "t", "--key-separator", "=", "--compression", "gzip", "--json", given=b"k=\xff\xfe\n"
    )
    summary = json.loads(ended.out)
    assert (summary["messages"], summary["failed"], summary["problem"], summary["batches"]) == (1, 0, None, 1)
    assert summary["latencyMs"]["p99"] > 0
    (line,) = run("consume", "t", "--until-end", "--json").out.splitlines()
    record = json.loads(line)
    assert record.pop("timestampMs") > 1_500_000_000_000
    assert record == {"partition": 0, "offset": 0, "key": "k", "valueBase64": "//4=", "headers": []}


def test_generated_messages_have_their_size_and_their_rate(brokers: Served, run: Run) -> None:
    (partition,) = brokers.cluster.add_topic("t", 1)
    ended = run("produce", "t", "--count", "50", "--size", "30", "--rate", "2000", "--progress")
    assert ended.code == 0 and ended.out.startswith(b"50 messages")
    values = brokers.cluster.values(partition)
    assert values == [b"%012d" % number + b"." * 18 for number in range(50)]
    assert run("produce", "t", "--count", "3", "--size", "0").code == 0
    assert brokers.cluster.values(partition)[50:] == [b""] * 3


def test_lost_requests_and_answers_change_nothing(brokers: Served, run: Run) -> None:
    (partition,) = brokers.cluster.add_topic("t", 1)
    brokers.cluster.faults = Faults(lose_request=0.1, lose_answer=0.1, move_leader=0.1)
    ended = run("produce", "t", "--count", "2000", "--batch-bytes", "4096", "--size", "50")
    assert ended.code == 0, ended.err
    assert brokers.cluster.values(partition) == [b"%012d" % number + b"." * 38 for number in range(2_000)]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["produce", "absent"], "no topic absent; create it (metaquorum topics create absent)"),
        (["consume", "absent"], "no topic absent; create it"),
        (["produce", "t", "--partition", "7"], "no partition 7: give one from 0 to 1"),
        (["consume", "t", "--partition", "7"], "no partition 7: give one from 0 to 1"),
        (["consume", "t", "--from", "99"], "offset 99 is not in the log of t-"),
        (["log-dirs", "describe", "--broker", "9"], "broker 9 is not registered"),
        (["log-dirs", "describe", "--topic", "absent"], "topic absent does not exist"),
        (["log-dirs", "mark-offline", "--broker", "9", "/x"], "broker 9 is not registered"),
        (["log-dirs", "mark-offline", "--broker", "0", "nonsense"], "'nonsense' is neither a directory id"),
        (["log-dirs", "mark-offline", "--broker", "0", "/x", "--yes"], "LOG_DIR_NOT_FOUND"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_cannot_be_done_is_said_in_one_line(
    brokers: Served, run: Run, command: list[str], text: str
) -> None:
    brokers.cluster.add_topic("t", 2)
    ended = run(*command, given=b"x\n")
    assert ended.code == 1 and ended.out == b""
    assert text in ended.line


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["consume", "t", "--from", "yesterday"], "'yesterday' is not a place in a topic"),
        (["produce", "t", "--size", "5"], "add --count"),
        (["produce", "t", "--count", "5", "--key-separator", "x"], "generated messages have no keys"),
        (["produce", "t", "--key-separator", ""], "--key-separator is empty"),
        (["produce", "t", "--acks", "2"], "'2' is not one of 'all', '1', '0'"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_wrong_command_line_is_told_apart(run: Run, command: list[str], text: str) -> None:
    ended = run(*command)
    assert ended.code == 2 and text in ended.line


def test_a_line_without_key_ends_it_after_what_came_before_was_sent(brokers: Served, run: Run) -> None:
    (partition,) = brokers.cluster.add_topic("t", 1)
    ended = run("produce", "t", "--key-separator", ":", given=b"a:1\nb:2\nnone\nd:4\n")
    assert ended.code == 1 and "line 3 of the input has no key separator ':'" in ended.line
    assert ended.out.startswith(b"2 messages")
    assert brokers.cluster.values(partition) == [b"1", b"2"]


def test_messages_that_are_refused_are_counted_and_the_reason_is_given(brokers: Served, run: Run) -> None:
    (partition,) = brokers.cluster.add_topic("t", 1)
    brokers.cluster.script = [(ErrorCode.MESSAGE_TOO_LARGE, "over max.message.bytes; lower the batch size")]
    ended = run("produce", "t", given=b"one\ntwo\n")
    assert ended.code == 1 and ended.out.startswith(b"0 of 2 messages")
    assert "2 messages were not acknowledged: MESSAGE_TOO_LARGE: over max.message.bytes" in ended.line
    assert brokers.cluster.values(partition) == []


def test_a_message_too_long_for_any_batch_is_refused_before_it_is_sent(brokers: Served, run: Run) -> None:
    (partition,) = brokers.cluster.add_topic("t", 1)
    ended = run("produce", "t", given=b"short\n" + b"x" * (7 * 1024 * 1024 + 1) + b"\n")
    assert ended.code == 1 and "line 2 of the input is longer than" in ended.line
    assert len(brokers.cluster.values(partition)) <= 1


def test_a_cut_log_ends_the_reading_with_the_offset(brokers: Served, run: Run) -> None:
    (partition,) = brokers.cluster.add_topic("t", 1)
    assert (
        run("produce", "t", "--batch-bytes", "100", given=b"".join(b"%04d\n" % n for n in range(60))).code
        == 0
    )

    def cut_when_read(broker_id: int, each: object) -> object:
        found = read(broker_id, each)
        if found.records and found.high_watermark == 60:
            partition.truncate(30)
            brokers.cluster.move(partition, partition.leader)
        return found

    read = brokers.cluster._read
    brokers.cluster._read = cut_when_read  # type: ignore[method-assign]
    ended = run("consume", "t")
    assert ended.code == 1
    assert f"the log of t-0 was truncated at offset {partition.end_offset}" in ended.line
    assert ended.out.splitlines() == [b"%04d" % n for n in range(60)]


def test_a_start_behind_the_end_is_treated_alike_with_and_without_an_end(brokers: Served, run: Run) -> None:
    brokers.cluster.add_topic("t", 2)
    run("produce", "t", "--partition", "1", given=b"a\nb\n")
    for end in ((), ("--until-end",)):
        refused = run("consume", "t", "--partition", "1", "--from", "3", *end)
        assert refused.code == 1 and refused.out == b""
        assert "OFFSET_OUT_OF_RANGE: offset 3 is not in the log of t-1" in refused.line
    assert "t-0, which ends at 0" in run("consume", "t", "--from", "2", "--until-end").line
    at = ("consume", "t", "--from", "3", "--until-end", "--out-of-range")
    assert run(*at, "earliest").out == b"a\nb\n"
    assert run(*at, "latest").out == b""
    assert run("consume", "t", "--partition", "1", "--from", "2", "--until-end").code == 0


def test_a_partition_that_is_added_while_reading_is_read_from_its_beginning(
    brokers: Served, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaquorum.runtime.data_client.cluster_view.MAX_AGE_MS", 20)
    (first,) = brokers.cluster.add_topic("t", 1)
    run("produce", "t", given=b"old\n")
    read = brokers.cluster._read
    grown: list[FakePartition] = []

    def grow_when_read(broker_id: int, each: FetchPartition) -> FetchedPartition:
        if not grown and each.fetch_offset == first.end_offset:
            grown.append(FakePartition(leader=0))
            message = BatchBuilder(0, 1000)
            message.append(b"new", timestamp_ms=0)
            assert not isinstance(grown[0].append(message.payload().sealed()), tuple)
            brokers.cluster.topics["t"][1].append(grown[0])
        return read(broker_id, each)

    monkeypatch.setattr(brokers.cluster, "_read", grow_when_read)
    assert run("consume", "t", "--max-messages", "2", "--offsets").out == b"0:0\told\n1:0\tnew\n"
    one = ("consume", "t", "--partition", "0", "--idle-timeout", "0.1")
    assert run(*one).out == b"old\n"


# --- signals and pipes, in processes of their own


def test_an_interrupted_produce_flushes_and_says_how_many_were_acknowledged(brokers: Served) -> None:
    (partition,) = brokers.cluster.add_topic("t", 1)
    args = ("produce", "t", "--bootstrap", brokers.bootstrap, "--linger-ms", "60000")
    with running(*args, stdin=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stderr is not None
        child.stdin.write(b"one\n" + b"x" * 70_000 + b"\nthree\n")
        child.stdin.flush()
        while not brokers.cluster.values(partition):
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=90)
    assert child.returncode == 130, err
    assert out.startswith(b"3 of 3 messages"), out
    assert brokers.cluster.values(partition) == [b"one", b"x" * 70_000, b"three"]


def test_a_second_interrupt_gives_up_and_counts_what_is_unknown(brokers: Served) -> None:
    brokers.cluster.add_topic("t", 1)
    brokers.cluster.silent.add(0)
    args = ("produce", "t", "--bootstrap", brokers.bootstrap, "--json")
    with running(*args, stdin=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stderr is not None
        child.stdin.write(b"one\ntwo\n")
        child.stdin.flush()
        while not brokers.services[0].waiting:
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        assert b"interrupt again" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=90)
    summary = json.loads(out)
    assert (summary["messages"], summary["failed"], summary["interrupted"]) == (0, 2, True)
    assert child.returncode == 1
    assert b"2 messages were not acknowledged" in err and b"may be stored nevertheless" in err


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


def test_a_reader_who_goes_away_ends_consume_quietly(brokers: Served, run: Run) -> None:
    brokers.cluster.add_topic("t", 1)
    assert run("produce", "t", "--count", "30000").code == 0
    with running("consume", "t", "--bootstrap", brokers.bootstrap) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == b"%012d" % 0 + b"." * 88 + b"\n"
        child.stdout.close()
        assert child.wait(timeout=90) == 141
        assert child.stderr.read() == b""


# --- log directories


def directory(path: str, seed: int, *, offline: str | None = None) -> LogDirDescription:
    replica = ReplicaDescription(
        key=(b"t" + b"." * 15, 1),
        topic="t",
        size_bytes=500,
        start_offset=2,
        end_offset=9,
        high_watermark=7,
        lag=0,
        leads=offline is None,
    )
    return LogDirDescription(
        path=path,
        directory_id=random_uuid(random.Random(seed)),
        error=ErrorCode.NONE if offline is None else ErrorCode.KAFKA_STORAGE_ERROR,
        message=offline,
        total_bytes=1000,
        usable_bytes=-1 if offline else 400,
        replicas=(replica,),
    )


def test_log_directories_are_listed_with_their_replicas(brokers: Served, run: Run) -> None:
    brokers.cluster.add_topic("t", 1)
    good, bad = directory("/d/a", 1), directory("/d/b", 2, offline="it gave EIO; replace the disk")
    brokers.services[0].directories = (good, bad)
    ended = run("log-dirs", "describe", "--broker", "0", "--topic", "t")
    rows = [line.split() for line in ended.out.decode().splitlines() if line]
    assert ended.code == 0
    ids = [uuid_to_text(each.directory_id or b"") for each in (good, bad)]
    assert rows[1] == ["0", "/d/a", ids[0], "online", "1", "1", "500", "400", "1000"]
    assert rows[2] == ["0", "/d/b", ids[1], "offline", "1", "0", "-", "-", "1000"]
    assert rows[4] == ["0", "/d/a", "t-1", "leader", "500", "2", "7", "9", "0"]
    assert rows[5][3] == "offline"
    assert ended.err == "broker 0: /d/b is offline: it gave EIO; replace the disk\n"
    found = json.loads(run("log-dirs", "describe", "--json").out)
    assert [each["brokerId"] for each in found] == [0, 1]
    assert found[0]["directories"][1]["online"] is False
    assert found[0]["directories"][0]["replicas"][0]["highWatermark"] == 7


def test_of_a_directory_without_identity_nobody_says_what_it_holds(brokers: Served, run: Run) -> None:
    lost = LogDirDescription(
        path="/d/c",
        directory_id=None,
        error=ErrorCode.KAFKA_STORAGE_ERROR,
        message="no meta.properties",
        total_bytes=-1,
        usable_bytes=-1,
        replicas=(),
    )
    brokers.services[0].directories = (lost,)
    rows = run("log-dirs", "describe", "--broker", "0").out.decode().splitlines()
    assert rows[1].split() == ["0", "/d/c", "-", "offline", "-", "-", "-", "-", "-"]


def test_a_silent_broker_hides_no_other(brokers: Served, run: Run) -> None:
    brokers.services[1].directories = (directory("/d/a", 1),)
    brokers.cluster.silent.add(0)
    ended = run("log-dirs", "describe")
    assert ended.code == 1 and b"/d/a" in ended.out
    assert "broker 0 did not answer" in ended.line


def test_a_directory_is_given_up_only_when_that_is_meant(brokers: Served, run: Run) -> None:
    good = directory("/d/a", 1)
    brokers.services[0].directories = (good, directory("/d/b", 2, offline="gone"))
    path = ("log-dirs", "mark-offline", "--broker", "0", "/d/a")
    asked = run(*path, given=b"n\n")
    assert asked.code == 1 and "Take /d/a of broker 0 offline?" in asked.err
    for refused in (asked, run(*path, given=b"")):
        assert refused.code == 1
        assert refused.err.endswith("metaquorum: nothing was done; use --yes to skip the question\n")
    assert brokers.services[0].marked == []
    assert run(*path, given=b"y\n").out == b"broker 0: /d/a is now offline\n"
    by_id = ("log-dirs", "mark-offline", "--broker", "0", uuid_to_text(good.directory_id or b""), "--yes")
    assert json.loads(run(*by_id, "--json").out)["wasOffline"] is False
    assert b"was already offline" in run(*path[:-1], "/d/b", "--yes").out
    assert [each.path for each in brokers.services[0].marked] == ["/d/a", None, "/d/b"]


def test_the_input_ends_at_the_first_message_that_failed(brokers: Served) -> None:
    (partition,) = brokers.cluster.add_topic("t", 1)
    brokers.cluster.script = [(ErrorCode.INVALID_RECORD, "not so")]
    args = (
        "produce",
        "t",
        "--bootstrap",
        brokers.bootstrap,
        "--count",
        "1000000000",
        "--rate",
        "1000",
    )
    with running(*args) as child:
        out, err = child.communicate(timeout=90)
    assert child.returncode == 1
    assert b"INVALID_RECORD: not so" in err
    assert b"%012d" % 0 + b"." * 88 not in brokers.cluster.values(partition)
    assert out.startswith(f"{len(brokers.cluster.values(partition)):,} of".encode())
