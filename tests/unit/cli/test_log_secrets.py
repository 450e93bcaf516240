"""No tool shows a secret unless it is asked to: salts and keys of SCRAM, passwords in settings."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("pyarrow")

import pyarrow as pa

from metaquorum.cli.main import main
from metaquorum.metadata.image import BROKER_RESOURCE, ConfigResource
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.nodes.matching import check_quorum
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.metadata.records.codec import decode_tolerant, encode
from metaquorum.metadata.records.schema import RECORD_SCHEMAS
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.secrets import REDACTED, SECRET_KEYS, Redacted, is_secret_setting, secret_fields
from metaquorum.metadata.text.dump import payload_json
from metaquorum.pipeline.arrow import arrow_schema_of, record_batches
from metaquorum.pipeline.audit.gather import TableSource
from metaquorum.pipeline.intervals.moments import Moment
from metaquorum.pipeline.intervals.state import decode_image, encode_image
from metaquorum.pipeline.intervals.tables.settings import Configs
from metaquorum.pipeline.logs.pieces import Piece, Selection
from metaquorum.pipeline.tables import TABLES
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.types import LogPosition
from tests.unit.cli.running import run_log as run
from tests.unit.metadata.made_logs import STORY, Batch, add_snapshot, make_node
from tests.unit.pipeline.local_tables import write_tables

SALT, STORED, SERVER = b"salt of the earth", b"a stored key " + b"k" * 19, b"a server key " + b"K" * 19
AGAIN = b"another salt here"
PASSWORD, JAAS = "correct-horse-battery", "org.x.Login required password=staple;"
USER = r.UserScramCredentialRecord("alice", 1, SALT, STORED, SERVER, 4096)
ROTATED = r.UserScramCredentialRecord("alice", 1, AGAIN, STORED, SERVER, 8192)
SECRET_BATCHES: list[Batch] = [
    *STORY,
    (2, [USER]),  # 15
    (2, [r.ConfigRecord(4, "1", "listener.name.x.ssl.keystore.password", PASSWORD)]),  # 16
    (2, [r.ConfigRecord(4, "", "sasl.jaas.config", JAAS)]),  # 17
    (2, [ROTATED]),  # 18
    (2, [r.ConfigRecord(4, "1", "listener.name.x.ssl.keystore.password", "x" + PASSWORD)]),  # 19
    (2, [r.RemoveUserScramCredentialRecord("alice", 1)]),  # 20
    (2, [r.NoOpRecord()]),  # 21
]
BINARY, TEXTS = (SALT, STORED, SERVER, AGAIN), (PASSWORD, JAAS, "staple")


def forms() -> Iterator[str]:
    """Each secret as any output may spell it."""
    for secret in BINARY:
        yield secret.hex()
        yield base64.b64encode(secret).decode().rstrip("=")
        yield base64.urlsafe_b64encode(secret).decode().rstrip("=")
        yield secret.decode()
        yield str(list(secret))[1:-1]
    yield from TEXTS


def leaks(text: str) -> list[str]:
    return [secret for secret in forms() if secret.lower() in text.lower()]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    disk: Disk = PosixDisk()
    node = make_node(disk, SECRET_BATCHES, home=str(tmp_path / "node"))
    add_snapshot(node, 19)
    return tmp_path / "node"


SHELL = [
    "at 15", "next", "records", "diff 14 21", "why scram/SCRAM-SHA-256/alice", "history scram", "cat scram",
    "tree config", "timeline 14 21 detail", "at 19", "ls scram", "cat config/broker/1", "find config *",
    "until len(topics) > 99",
]  # fmt: skip
EVERYTHING = "len(image.scram) == 0"
TOOLS: list[tuple[object, ...]] = [
    ("dump",), ("dump", "--json"), ("dump", "--type", "user-scram-credential"),
    ("dump", "--entity", "user/alice"),
    ("dump", "--json", "--entity", "config/broker"), ("dump", "--follow", "--to-offset", 21),
    ("dump", "--json", "--follow", "--to-offset", 21),
    ("state", "--at", 19), ("state", "--json", "--at", 19), ("state", "--format", "table", "--at", 19),
    ("state", "scram", "--at", 19), ("state", "user/alice", "--at", 19),
    ("state", "user/alice", "--at", 19, "--json"),
    ("state", "config", "--at", 19), ("state", "config/broker/1", "--format", "table"),
    ("history",), ("history", "--json"), ("history", "config"), ("history", "scram", "--json"),
    ("timeline", "--severity", "detail"), ("timeline", "--severity", "detail", "--json"),
    *(("why", what, *how)
      for what in ("user/alice", "scram/SCRAM-SHA-256/alice", "config/broker/1", "config/broker")
      for how in ((), ("--json",), ("--at", "19"), ("--at", "19", "--json"))),
    ("bisect", "--predicate", EVERYTHING), ("bisect", "--predicate", EVERYTHING, "--json"),
    ("bisect", "--predicate", "config('broker/1', 'listener.name.x.ssl.keystore.password') is None"),
    ("bisect", "--predicate", "image.scram.nothing"),
    ("check", "--all"), ("check", "--json", "--all"),
    ("repair", "--dry-run", "--drop", 15), ("repair", "--dry-run", "--drop", 18, "--json"),
    ("salvage",), ("salvage", "--json"), ("summary", "--all"), ("summary", "--all", "--json"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", TOOLS, ids=lambda arguments: " ".join(map(str, arguments)))
def test_no_tool_shows_a_secret(home: Path, arguments: tuple[object, ...]) -> None:
    command, *rest = arguments
    result = run(command, home, *rest)
    assert result.output, "it says something"
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert leaks(result.output) == []


def test_diffs_and_the_shell_show_none(home: Path) -> None:
    for arguments in (
        ("diff", home, 14, 22), ("diff", home, 16, 20, "--json"), ("diff", home, 14, 19, "--json"),
        ("diff", f"{home}@16", f"{home}@20"),
        ("shell", home, *(part for line in SHELL for part in ("-c", line))),
    ):  # fmt: skip
        result = run(*arguments)
        assert len(result.output) > 50, arguments
        assert leaks(result.output) == [], arguments


def test_a_secret_that_is_another_one_is_a_difference(home: Path) -> None:
    shown = run("diff", home, 16, 19, "scram").stdout
    assert f"salt: {REDACTED} -> {REDACTED}" in shown and "storedKey" not in shown
    assert "iterations: 4096 -> 8192" in shown


@pytest.mark.parametrize(
    ("arguments", "secrets"),
    [
        (("dump", "--secrets"), [base64.b64encode(SALT).decode(), PASSWORD]),
        (("dump", "--json", "--secrets"), [base64.b64encode(STORED).decode(), PASSWORD]),
        (("state", "--at", "19", "--secrets"), [AGAIN.hex(), PASSWORD]),
        (("state", "user/alice", "--at", "19", "--json", "--secrets"), [AGAIN.hex()]),
        (("state", "config", "--format", "table", "--secrets"), ["x" + PASSWORD]),
        (("history", "scram", "--secrets"), [SALT.hex()]),
        (("why", "scram/SCRAM-SHA-256/alice", "--at", "19", "--json", "--secrets"), [AGAIN.hex()]),
        (("bisect", "--predicate", EVERYTHING, "--secrets"), [base64.b64encode(SALT).decode()]),
        (("shell", "--secrets", "-c", "records 15 16"), [base64.b64encode(SALT).decode()]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_they_are_shown_to_who_asks(home: Path, arguments: tuple[str, ...], secrets: list[str]) -> None:
    command, *rest = arguments
    result = run(command, home, *rest)
    assert [secret for secret in secrets if secret not in result.output] == [], result.output


def test_nodes_that_differ_in_a_secret_are_told_without_it(home: Path, tmp_path: Path) -> None:
    other = [(epoch, [ROTATED] if records == [USER] else records) for epoch, records in SECRET_BATCHES]
    make_node(PosixDisk(), other, home=str(tmp_path / "other"), node_id=3001)
    result = run("check", home, tmp_path / "other")
    assert f"salt {REDACTED} and {REDACTED}" in result.output
    assert leaks(result.output) == []
    assert check_quorum([open_log(PosixDisk(), str(path)) for path in (home, tmp_path / "other")]).divergences


def test_a_snapshot_that_differs_in_a_secret_is_found_and_told_without_it(home: Path, tmp_path: Path) -> None:
    other = [(epoch, [USER] if records == [ROTATED] else records) for epoch, records in SECRET_BATCHES]
    wrong = make_node(PosixDisk(), other, home=str(tmp_path / "wrong"))
    add_snapshot(wrong, 19)
    for snapshot in (tmp_path / "wrong").rglob("*.checkpoint"):
        shutil.copy(snapshot, home / "__cluster_metadata-0" / snapshot.name)
    result = run("check", home)
    assert "snapshot-agrees" in result.output and f"salt {REDACTED} -> {REDACTED}" in result.output
    assert leaks(result.output) == []


def test_a_record_type_with_secrets_is_hidden_in_versions_of_the_future() -> None:
    raw = bytearray(encode(USER, 0))
    assert raw[2] == 0
    raw[2] = 9  # the version, behind frame version and api key
    version, record = decode_tolerant(bytes(raw), 0, len(raw))
    assert isinstance(record, r.UnknownRecord) and record.api_key in SECRET_KEYS
    assert payload_json(record, version)["data"]["body"] == REDACTED
    assert payload_json(record, version, secrets=True)["data"]["body"] != REDACTED
    plain = r.UnknownRecord(99, 7, b"\x00\xff")
    assert payload_json(plain, 7)["data"]["body"] == "AP8="


def test_the_schema_says_what_is_secret() -> None:
    marked = {
        (schema.type_name, field.name)
        for schema in RECORD_SCHEMAS
        for field in schema.body.fields
        if field.secret
    }
    assert marked == {
        *(("USER_SCRAM_CREDENTIAL_RECORD", name) for name in ("salt", "stored_key", "server_key")),
        ("CONFIG_RECORD", "value"),
    }
    assert secret_fields(r.UserScramCredentialRecord) == {"salt", "stored_key", "server_key"}
    assert secret_fields(r.ConfigRecord) == frozenset(), "it depends on the name"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ssl.keystore.password", True),
        ("listener.name.internal.ssl.key.password", True),
        ("listener.name.x.scram-sha-256.sasl.jaas.config", True),
        ("ssl.keystore.key", True),
        ("delegation.token.secret.key", True),
        ("my.plugin.admin.Secret", True),
        ("password.encoder.iterations", False),
        ("ssl.keystore.location", False),
        ("retention.ms", False),
        ("sasl.login.class", False),
    ],
)
def test_settings_are_secret_by_their_names(name: str, secret: bool) -> None:
    assert is_secret_setting(name) == secret
    shown = payload_json(r.ConfigRecord(4, "", name, PASSWORD), 0)["data"]["value"]
    assert shown == (REDACTED if secret else PASSWORD)
    assert payload_json(r.ConfigRecord(4, "", name, None), 0)["data"]["value"] is None, "a removal says so"


def test_a_redacted_value_cannot_be_formatted_by_accident() -> None:
    hidden = Redacted(PASSWORD)
    ways = (f"{hidden}", str(hidden), repr(hidden), f"{hidden:>10}", "".join([hidden]))
    assert {way.encode() for way in ways} == {REDACTED.encode()}
    assert json.dumps({"a": hidden}) == f'{{"a": "{REDACTED}"}}'
    assert hidden == Redacted(PASSWORD) and hidden != Redacted(JAAS) and hidden != REDACTED


def segments(home: Path) -> list[Path]:
    return sorted((home / "__cluster_metadata-0").glob("*.log"))


@pytest.mark.parametrize("kind", ["all", "USER_SCRAM_CREDENTIAL_RECORD", "CONFIG_RECORD"])
def test_the_pipelines_records_have_none(home: Path, kind: str) -> None:
    def rows(secrets: bool) -> str:
        found: list[object] = []
        for file in segments(home):
            piece = Piece(cluster="c", node_id=1, file=str(file))
            made = list(record_batches(kind, piece, Selection(secrets=secrets)))
            found += pa.Table.from_batches(made, arrow_schema_of(kind)).to_pylist()
        assert found
        return str(found)

    assert leaks(rows(False)) == []
    assert leaks(rows(True))


def test_the_pipelines_settings_have_none_and_still_change() -> None:
    configs, resource = Configs(), ConfigResource(BROKER_RESOURCE, "1")
    name = "ssl.keystore.password"
    at = [Moment(place, place, place) for place in range(4)]
    configs.changed(resource, {name: at[0]}, {name: PASSWORD})
    configs.changed(resource, {name: at[1]}, {name: "x" + PASSWORD})
    configs.learn([(resource, {name: "x" + PASSWORD})], at[2])
    closed, opened = configs.take(), configs.open_rows()
    assert (len(closed), len(opened)) == (1, 1), "a rotation ends a row, a snapshot does not"
    assert leaks(str([closed, opened, configs.save()])) == []


CAUSED: list[Batch] = [
    (2, [cause_record(BatchCause("AlterUserScramCredentials", None, "User:root")), USER]),
    (2, [r.RemoveUserScramCredentialRecord("nobody", 1)]),  # refused by the replay
    (2, [r.ConfigRecord(4, "1", "sasl.jaas.config", JAAS), r.RemoveTopicRecord(b"n" * 16)]),
    (2, [r.NoOpRecord()] * 30),
]


def test_no_table_no_report_and_no_saved_state_has_one(tmp_path: Path) -> None:
    """Every table of the pipeline, what `ingest` keeps to go on from, and what is made of the tables."""
    node = tmp_path / "node"
    make_node(PosixDisk(), [*SECRET_BATCHES, *CAUSED], home=str(node))
    write_tables([node], out := tmp_path / "tables")
    source, filled = TableSource(out), set()
    for table in sorted(TABLES):
        rows = source.dataset(table).to_table().to_pylist()
        filled |= {table} if rows else set()
        assert leaks(str(rows)) == [], table
    assert {"configs", "violations", "audit_trail", "broker_sessions"} <= filled
    page = str(tmp_path / "report.html")
    for words in (["report", str(out), "--out", page], ["audit", str(out)], ["audit", str(out), "--json"]):
        result = CliRunner().invoke(main, ["pipeline", *words])
        assert len(result.output) > 50 and leaks(result.output) == [], words
    assert leaks(Path(page).read_text()) == []


def test_what_a_run_keeps_to_go_on_from_has_none(home: Path) -> None:
    engine = Replayer(ReplayState())
    for file in segments(home):
        for batch in iter_batches(file.read_bytes(), file=str(file)):
            if batch.header.base_offset < 20:
                engine.apply_batch(batch)
    image = engine.state().image
    assert leaks(repr(image.scram.items_sorted()) + repr(image.configs.items_sorted()))
    kept = encode_image(image)
    assert [secret for secret in forms() if secret.encode() in kept] == []
    again = decode_image(kept, LogPosition(0, 20), image.features.finalized)
    assert len(again.scram) == len(image.scram) > 0
    assert [*dict(again.configs.items_sorted())] == [*dict(image.configs.items_sorted())]
