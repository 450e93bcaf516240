"""What commands refuse before they ask anyone: the option that is wrong is named, and nothing is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.layout import create
from metaquorum.cli.main import main

NOWHERE = "-b 127.0.0.1:1 --timeout 0.2"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("quotas alter --user u --user-default --set a=1", "give --user or --user-default, not both"),
        ("quotas alter --ip i --ip-default --set a=1", "give --ip or --ip-default, not both"),
        ("quotas alter --user u", "there is nothing to change; give --set or --delete"),
        ("quotas alter --set a=1", "give an entity: --user, --client-id or --ip, or a default"),
        ("quotas alter --user u --set a=x", "a=x is not a number"),
        ("quotas alter --user u --set a", "'a' is not a quota; write key=value"),
        ("quotas describe --any-ip --ip i", "give --any-ip or one ip, not both"),
        ("partitions elect --election preferred", "give either --all, or --topic with or without"),
        ("partitions elect --election preferred --all --topic t", "give either --all, or --topic with"),
        ("partitions elect --election preferred --all --partition 1", "--partition needs --topic"),
        ("features upgrade metadata.version=x", "metadata.version=x: "),
        ("features upgrade kraft.version=x", "kraft.version=x: "),
        ("configs describe topic t --truststore x --command-config y", "give the TLS files either in"),
        ("produce t --count 1 --key-separator :", "generated messages have no keys; leave out"),
        ("quorum add-voter 4 --endpoint a:1,b:2", "give one address"),
    ],
)
def test_a_wrong_option(words: str, problem: str) -> None:
    result = CliRunner().invoke(main, [*words.split(), *NOWHERE.split()])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert problem in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("log archive x y --extract z", "--extract takes exactly one PATH"),
        ("log archive x", "give one of --to NAME"),
        ("log archive x --to y --verify", "give one of --to NAME"),
        ("log dump x --follow --type topic y", "--follow takes exactly one PATH"),
        ("log shell x y", "unexpected extra argument"),
        ("completion csh", "'csh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_a_wrong_option_of_a_local_command(words: str, problem: str) -> None:
    result = CliRunner().invoke(main, words.split())
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert problem in result.stderr and result.stderr.count("\n") == 1


def test_a_segment_of_a_partition_has_no_types(tmp_path: Path) -> None:
    segment = tmp_path / "orders-0" / "00000000000000000000.log"
    segment.parent.mkdir()
    segment.touch()
    for option in ("--type topic", "--entity topic/x", "--causes", "--follow"):
        result = CliRunner().invoke(main, ["log", "dump", str(segment), *option.split()])
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--type, --entity, --causes and --follow are only for metadata logs" in result.stderr
    assert CliRunner().invoke(main, ["log", "dump", str(segment)]).exit_code == 0


@pytest.mark.parametrize("words", ["topics list", "quorum describe", "controller status", "brokers list"])
def test_without_a_cluster_there_is_nothing_to_connect_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, words.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith("metaquorum: no cluster to connect to: var/local has none; give --boot")


def test_a_local_cluster_without_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    create(tmp_path / "var" / "local", controllers=1, brokers=0)
    result = CliRunner().invoke(main, ["topics", "list"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "metaquorum: the local cluster in var/local has no brokers; give --bootstrap host:port of one\n"
    )
