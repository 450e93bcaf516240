"""`log summary` at the terminal: one screen, exit codes by the worst, ranges, several nodes, JSON."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.errors import EXIT_CRITICAL, EXIT_WARNING
from metaquorum.cli.log import summary as log_summary
from metaquorum.cli.main import main
from metaquorum.metadata.inspect.log.points import parse_span_ms
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import shared_data_path
from tests.unit.metadata.made_logs import ORDERS, START_MS, STORY, Batch, encoded, make_node

GOLDEN = (shared_data_path() or Path("absent")) / "kafka-3.7" / "controller-3000"
CALM: list[Batch] = [*STORY[:7], *((1, [r.NoOpRecord()]) for _ in range(20))]
"""Nothing but a topic or two."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["log", "summary", *map(str, arguments)])


def made(home: Path, story: list[Batch], **more: int) -> Path:
    make_node(PosixDisk(), story, home=str(home), **more)
    return home


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_summary, "terminal_width", lambda: 80)


@pytest.mark.usefixtures("narrow", "shared_data")
def test_the_recorded_scenario_fits_on_one_screen() -> None:
    result = run(GOLDEN)
    assert result.exit_code == EXIT_CRITICAL
    lines = [click.unstyle(line) for line in result.stdout.splitlines()]
    assert 24 <= len(lines) <= 44
    told = [line for line in lines if not line.startswith(("/", "next:"))]
    assert max(map(len, told)) <= 80
    assert lines[4] == "worst: critical: leaderless (7), unclean elections (1)"
    rows = [line for line in told if re.match(r"  \d\d:\d\d:\d\d\.\d{3} +\d+  \S", line)]
    assert len(rows) == 19
    assert "  03:14:35.365      1921  topic/unclean/0: 2 leads after 14.4 s, not in the ISR" in rows
    assert lines[-2] == f"next: metaquorum log why {shlex.quote(str(GOLDEN))} topic/unclean/0 --at 1921+"


@pytest.mark.usefixtures("shared_data")
def test_the_next_command_answers() -> None:
    command = shlex.split(run(GOLDEN).stdout.splitlines()[-2])[2:]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.stderr
    assert "unclean-election" in result.stdout


@pytest.mark.usefixtures("shared_data")
def test_a_pipe_gets_whole_lines_and_all_rows_if_it_asks() -> None:
    few, everything = run(GOLDEN).stdout, run(GOLDEN, "--all").stdout
    assert "…" not in few and "…" not in everything
    assert few.splitlines()[-1] == "      use --all to show all rows"
    assert len(everything.splitlines()) > len(few.splitlines())
    assert "all rows" not in everything


def test_a_calm_log_is_info_and_exits_with_0(tmp_path: Path) -> None:
    result = run(made(tmp_path / "n", CALM))
    assert result.exit_code == 0, result.stderr
    assert "worst: info" in result.stdout.splitlines()


def test_exit_codes_follow_the_worst(tmp_path: Path) -> None:
    change = r.PartitionChangeRecord(0, ORDERS, leader=-1)
    assert run(made(tmp_path / "c", [*CALM, (1, [change])])).exit_code == EXIT_CRITICAL
    aborted: list[Batch] = [
        *CALM,
        (1, [r.BeginTransactionRecord("t")]),
        (1, [r.AbortTransactionRecord("gave up")]),
    ]
    assert run(made(tmp_path / "w", aborted)).exit_code == EXIT_WARNING


def test_last_counts_back_from_the_logs_end(tmp_path: Path) -> None:
    change = r.PartitionChangeRecord(0, ORDERS, leader=-1)
    back = r.PartitionChangeRecord(0, ORDERS, leader=1)
    idle: list[Batch] = [(1, [r.NoOpRecord()]) for _ in range(60)]
    home = made(
        tmp_path / "n",
        [*CALM, (1, [change]), (1, [back]), *idle, (1, [r.TopicRecord("x", bytes(15) + b"x")])],
    )
    assert run(home).exit_code == EXIT_CRITICAL
    assert run(home, "--last", "30s").exit_code == 0
    assert run(home, "--last", "2min").exit_code == EXIT_CRITICAL
    report = json.loads(run(home, "--last", "30s", "--json").stdout)
    assert report["toTime"] - report["fromTime"] <= 30_000
    assert report["events"] == {"topic created": 1}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("12h", 43_200_000),
        ("90min", 5_400_000),
        ("1d12h", 129_600_000),
        ("45s", 45_000),
        ("5m", 300_000),
        ("7ms", 7),
        ("P1DT12H", 129_600_000),
        ("PT5M", 300_000),
    ],
)
def test_lengths_of_time(text: str, ms: int) -> None:
    assert parse_span_ms(text) == ms


@pytest.mark.parametrize("text", ["", "12", "h", "12 h", "-1h", "1h30", "1x", "P1M", "PT", "p1d"])
def test_what_is_no_length_of_time_is_refused(tmp_path: Path, text: str) -> None:
    result = run(tmp_path, "--last", text)
    assert result.exit_code == 2
    assert "is not a duration; write 12h" in result.stderr


def test_last_and_from_exclude_each_other(tmp_path: Path) -> None:
    result = run(made(tmp_path / "n", CALM), "--last", "1h", "--from", "1")
    assert result.exit_code == 2
    assert "give --last or --from, not both" in result.stderr


def test_several_nodes_are_summed_up_as_one(tmp_path: Path) -> None:
    for at in range(3):
        made(tmp_path / "q" / f"c{at}", CALM[: 20 + at], node_id=3000 + at)
    report = json.loads(run(tmp_path / "q", "--json").stdout)
    assert [node["behind"] for node in report["nodes"]["nodes"]] == [2, 1, 0]
    assert report["cluster"] == "3Db5QLSqSZieL3rJBUUegA"
    assert not any("compare the other nodes" in line for line in report["cannotTell"])
    alone = json.loads(run(tmp_path / "q" / "c2", "--json").stdout)
    assert alone["sections"] == report["sections"]
    assert alone["nodes"] is None


def test_what_the_log_cannot_tell_is_said(tmp_path: Path) -> None:
    lines = run(made(tmp_path / "n", STORY[:9])).stdout.splitlines()
    unsaid = lines[lines.index("the log does not show:") + 1 :]
    assert "  whether there were times without a leader: idle controllers wrote nothing" in unsaid
    assert "  who asked for a change; heartbeats, lag, and what clients saw" in unsaid


@pytest.mark.usefixtures("shared_data")
def test_a_checkpoint_is_no_history() -> None:
    (checkpoint, *_) = (GOLDEN / "__cluster_metadata-0").glob("*.checkpoint")
    result = run(checkpoint)
    assert result.exit_code == 1
    assert "is a single state, not a history" in result.stderr


@pytest.mark.parametrize(
    ("name", "code", "sections"),
    [
        ("kafka-3.6-epoch-gap", EXIT_CRITICAL, {"total outages", "gaps in time"}),
        ("kafka-3.3-three-nodes-lagging", 0, set()),
        ("epochs-only-no-broker", 0, {"quorum"}),
    ],
)
def test_logs_of_other_people(shared_data: Path, name: str, code: int, sections: set[str]) -> None:
    result = run(shared_data / "kraft-wild" / name, "--json")
    report = json.loads(result.stdout)
    assert sections <= {section["name"] for section in report["sections"]}
    assert result.exit_code == code


def test_the_next_command_names_one_log(tmp_path: Path) -> None:
    story = [*CALM, (1, [r.PartitionChangeRecord(0, ORDERS, leader=-1)])]
    paths = [made(tmp_path / f"c {at}", story[: 27 + at], node_id=3000 + at) for at in range(2)]
    both = run(*paths).stdout.splitlines()
    assert both[0] == f"2 nodes in {paths[0]}, {paths[1]}"
    (command,) = [line.removeprefix("next: metaquorum ") for line in both if line.startswith("next:")]
    assert command == f"log why '{paths[1]}/__cluster_metadata-0' topic/orders/0 --at 31+"
    result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code == 0, result.stderr


def test_one_batch_of_a_clock_far_ahead_moves_neither_the_end_nor_a_range(tmp_path: Path) -> None:
    home = made(tmp_path / "n", CALM)
    straight = json.loads(run(home, "--json").stdout)
    segment = home / "__cluster_metadata-0" / f"{0:020}.log"
    batches = encoded(CALM)
    at = 12
    base = int.from_bytes(batches[at][:8], "big")
    ahead = START_MS + 6 * 365 * 86_400_000
    idle = encode(r.NoOpRecord(), 0)
    batches[at] = encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=ahead, values=[idle])
    segment.write_bytes(b"".join(batches))
    report = json.loads(run(home, "--json").stdout)
    assert (report["fromTime"], report["toTime"]) == (straight["fromTime"], straight["toTime"])
    (section,) = [one for one in report["sections"] if one["name"] == "clock jumps"]
    assert [row["offset"] for row in section["rows"]] == [base]
    last = json.loads(run(home, "--last", "5s", "--json").stdout)
    assert 0 <= last["toTime"] - last["fromTime"] <= 5_000
    assert "clock jumps" not in [one["name"] for one in last["sections"]]


def test_a_log_without_a_record_says_so_and_shows_no_times(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.log").write_bytes(b"")
    result = run(tmp_path / "00000000000000000000.log")
    assert result.exit_code == 1
    assert "the log holds no readable record" in result.stdout
    assert "1970" not in result.stdout and "Traceback" not in result.output


@pytest.mark.usefixtures("shared_data")
def test_the_longest_silence_is_one_of_those_in_the_sum() -> None:
    assert "quorum: 3 elections, 4.1 s without writes before them, 3.2 s at most" in run(GOLDEN).stdout
    last = json.loads(run(GOLDEN, "--from", 2000, "--json").stdout)
    quorum = next(section for section in last["sections"] if section["name"] == "quorum")
    assert quorum["figures"]["longestMs"] <= quorum["figures"]["silenceMs"]


@pytest.mark.usefixtures("shared_data")
def test_a_range_that_begins_before_the_log_is_all_of_the_log() -> None:
    lines = run(GOLDEN, "--last", "10min").stdout.splitlines()
    assert lines[1].endswith("offsets 0 to 4757")
    assert lines[2].startswith("2026-11-21T03:08:15.918Z to 03:16:58.108Z (8 min 42 s)")
    idle = run(GOLDEN, "--last", "1s").stdout.splitlines()
    assert re.search(r"offsets 475\d to 4757$", idle[1]), idle[1]
