"""`storage format --add-scram`: texts that are taken, texts that are refused, and what is written of them."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.errors import Failure
from metaquorum.cli.format import first_credentials
from metaquorum.cli.main import main
from metaquorum.controller.active.steps import first_records
from metaquorum.metadata.records.types import FeatureLevelRecord, UserScramCredentialRecord
from metaquorum.metadata.settings.scram import Mechanism, salted_password, stored_keys
from metaquorum.node.replica import read_bootstrap
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.cli.test_storage_format import CLUSTER, DIRECTORY_ID, OTHER_CLUSTER

SECRET = "Xy7-secret"
SALT = b"1lv4pdnw4fwq7notcxm0yy1k7q"
SALT_TEXT = base64.b64encode(SALT).decode()
SALTED_TEXT = base64.b64encode(salted_password(Mechanism.SCRAM_SHA_256, SECRET, SALT, 4096)).decode()
LEVEL = 19
SALTED = f'name=a,salt="{SALT_TEXT}",saltedpassword="{SALTED_TEXT}"'

RIGHT = {
    "SCRAM-SHA-256=[name=alice,password=%s]": ("alice", 1, None, 4096),
    f'SCRAM-SHA-256=[name=alice,iterations=8192,salt="{SALT_TEXT}",password=%s]': ("alice", 1, SALT, 8192),
    f"SCRAM-SHA-512=[password=%s,salt={SALT_TEXT},name=b]": ("b", 2, SALT, 4096),
    'SCRAM-SHA-512=[name="c d=e",iterations="16384",password="%s"]': ("c d=e", 2, None, 16384),
    f"  SCRAM-SHA-256=[{SALTED}]  ": ("a", 1, SALT, 4096),
}
WRONG = {
    SECRET: "no '='",
    f"PLAIN=[name=a,password={SECRET}]": "begin with",
    f"scram-sha-256=[name=a,password={SECRET}]": "begin with",
    f"[name=a,password={SECRET}]": "begin with",
    f"SCRAM-SHA-256=name=a,password={SECRET}": "no [",
    f"SCRAM-SHA-256=[name=a,password={SECRET}": "no [",
    f"SCRAM-SHA-256=name=a,password={SECRET}]": "no [",
    "SCRAM-SHA-256=[": "no [",
    "SCRAM-SHA-256=": "no [",
    "SCRAM-SHA-256=[]": "part 1",
    f"SCRAM-SHA-256=[password={SECRET}]": "no name",
    f"SCRAM-SHA-256=[name=,password={SECRET}]": "name is empty",
    f'SCRAM-SHA-256=[name="",password={SECRET}]': "name is empty",
    "SCRAM-SHA-256=[name=a]": "one of password and saltedpassword",
    "SCRAM-SHA-256=[name=a,password=]": "password is empty",
    f"SCRAM-SHA-256=[{SALTED},password={SECRET}]": "one of password and saltedpassword",
    f"SCRAM-SHA-256=[name=a,saltedpassword={SALTED_TEXT}]": "needs the salt",
    f"SCRAM-SHA-256=[name=a,salt={SALT_TEXT},saltedpassword={SECRET}!]": "saltedpassword is not base64",
    f"SCRAM-SHA-256=[name=a,salt=%,password={SECRET}]": "salt is not base64",
    f"SCRAM-SHA-256=[name=a,salt=,password={SECRET}]": "salt is empty",
    f"SCRAM-SHA-256=[name=a,iterations=4095,password={SECRET}]": "not from 4096 to 16384",
    f"SCRAM-SHA-256=[name=a,iterations=16385,password={SECRET}]": "not from 4096 to 16384",
    f"SCRAM-SHA-256=[name=a,iterations=-1,password={SECRET}]": "iterations is not a number",
    f"SCRAM-SHA-256=[name=a,iterations=\u0665,password={SECRET}]": "iterations is not a number",
    f"SCRAM-SHA-256=[name=a,iterations={'9' * 5000},password={SECRET}]": "not from 4096 to 16384",
    f"SCRAM-SHA-256=[name=a,password=p,{SECRET}]": "part 3",
    f"SCRAM-SHA-256=[name=a,password=p,{SECRET}=1]": "part 3",
    f"SCRAM-SHA-256=[name=a,name=b,password={SECRET}]": "name is given twice",
}


def format_one(directory: Path, *texts: str, release: str = "3.7") -> Result:
    words = ["storage", "format", "-t", CLUSTER, "-d", str(directory), "--node-id", "3000", "-r", release]
    for text in texts:
        words += ["--add-scram", text]
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize("form", RIGHT)
def test_a_text_becomes_the_keys_that_its_password_has(form: str) -> None:
    user, mechanism, salt, iterations = RIGHT[form]
    (found,) = first_credentials([form % SECRET if "%s" in form else form], LEVEL)
    assert (found.name, found.mechanism, found.iterations) == (user, mechanism, iterations)
    assert found.salt == salt if salt else len(found.salt) == 24
    salted = salted_password(Mechanism(mechanism), SECRET, found.salt, iterations)
    assert (found.stored_key, found.server_key) == stored_keys(Mechanism(mechanism), salted)


def test_salts_are_drawn_anew() -> None:
    text = f"SCRAM-SHA-256=[name=a,password={SECRET}]"
    assert first_credentials([text], LEVEL)[0].salt != first_credentials([text], LEVEL)[0].salt


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_text_is_refused_in_one_line_that_repeats_no_secret(tmp_path: Path, text: str) -> None:
    result = format_one(tmp_path / "data", text)
    assert result.exit_code == 1 and WRONG[text] in result.output, result.output
    assert len(result.output.splitlines()) == 1
    assert SECRET not in result.output and SALTED_TEXT not in result.output
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("release", "works"), [("3.5-IV1", False), ("3.5-IV2", True), ("4.0-IV3", True)])
def test_a_release_without_scram_records_takes_none(tmp_path: Path, release: str, works: bool) -> None:
    result = format_one(tmp_path / "data", f"SCRAM-SHA-512=[name=a,password={SECRET}]", release=release)
    assert (result.exit_code == 0) == works, result.output
    assert works or "3.5-IV2" in result.output


def test_one_user_has_one_credential_of_a_mechanism() -> None:
    texts = [f"SCRAM-SHA-{bits}=[name=a,password=p]" for bits in (256, 512)]
    assert [each.mechanism for each in first_credentials(texts, LEVEL)] == [1, 2]
    with pytest.raises(Failure, match=re.escape("SCRAM-SHA-256 of user 'a' twice")):
        first_credentials([*texts, texts[0]], LEVEL)


def test_credentials_are_first_records_of_the_cluster_and_the_password_is_nowhere(tmp_path: Path) -> None:
    config = tmp_path / "node.properties"
    config.write_text(
        "process.roles=controller\nnode.id=3000\nlisteners=CONTROLLER://127.0.0.1:9093\n"
        f"controller.quorum.voters=3000@127.0.0.1:9093:{DIRECTORY_ID}\nlog.dirs={tmp_path / 'data'}\n"
    )
    words = ["storage", "format", "-t", OTHER_CLUSTER, "--config", str(config)]
    logins = ["-S", f"SCRAM-SHA-256=[name=alice,password={SECRET}]", "-S", f"SCRAM-SHA-512=[{SALTED}]"]
    result = CliRunner().invoke(main, [*words, *logins])
    assert result.exit_code == 0, result.output
    begun = first_records(read_bootstrap(PosixDisk(), str(tmp_path / "data")))
    kinds = [type(each) for each in begun]
    assert kinds.index(FeatureLevelRecord) < kinds.index(UserScramCredentialRecord)
    assert [each.name for each in begun if isinstance(each, UserScramCredentialRecord)] == ["alice", "a"]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    derived = base64.b64decode(SALTED_TEXT)
    assert not any(
        secret in data for data in [*written, result.output.encode()] for secret in (SECRET.encode(), derived)
    )
