"""`config.providers`: values from the environment, from other files and from folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.config.files import Resolved, resolve
from metaquorum.config.load import load_config
from metaquorum.errors import ConfigError
from tests.unit.config.test_config import BROKER, CONTROLLER, written

CLASSES = "org.apache.kafka.common.config.provider."
PROVIDERS = {
    "config.providers": "env, file,dir",
    "config.providers.env.class": f"{CLASSES}EnvVarConfigProvider",
    "config.providers.file.class": f"{CLASSES}FileConfigProvider",
    "config.providers.dir.class": f"{CLASSES}DirectoryConfigProvider",
}


def test_references_are_looked_up_wherever_they_stand_in_a_value(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("port=9093\npassword = se cret\n")
    (tmp_path / "rack").write_text("r1")
    pairs = {
        **PROVIDERS,
        "listeners": f"PLAINTEXT://${{env:HOST}}:${{file:{tmp_path}/secrets.properties:port}}",
        "broker.rack": f"${{dir:{tmp_path}:rack}}",
        "none": "${CERTS} $${x} ${other:a:b}",
    }
    found = resolve(pairs, {"HOST": "127.0.0.1"})
    assert found.pairs == {
        "listeners": "PLAINTEXT://127.0.0.1:9093",
        "broker.rack": "r1",
        "none": "${CERTS} $${x} ${other:a:b}",
    }


def test_without_providers_a_value_is_left_as_it_is() -> None:
    assert resolve({"a": "${env:HOME}"}, {"HOME": "/root"}).pairs == {"a": "${env:HOME}"}


ALLOWED = {
    "config.providers.env.param.allowlist.pattern": "MQ_A|MQ_C",
    "config.providers.dir.param.allowed.paths": "/a",
    "config.providers.file.param.allowed.paths": "/a, /c/x.properties",
}
WRONG = {
    "an unset variable": ("${env:NOT_SET}", {}, "the environment variable NOT_SET is not set"),
    "a variable that is not allowed": ("${env:HOST}", ALLOWED, "HOST is not in allowlist.pattern"),
    "a longer name than is allowed": ("${env:MQ_AB}", ALLOWED, "MQ_AB is not in allowlist.pattern"),
    "a path for a variable": ("${env:/a:HOST}", {}, "the environment has no folders"),
    "no such file": ("${file:/nowhere/x:key}", {}, "/nowhere/x: cannot be read"),
    "a folder that is not allowed": ("${dir:/b:key}", ALLOWED, "/b is not in allowed.paths"),
    "a folder with a longer name": ("${dir:/ab:key}", ALLOWED, "/ab is not in allowed.paths"),
    "a folder beside": ("${dir:/a/../b:key}", ALLOWED, "/b is not in allowed.paths"),
    "a file with a longer name": ("${file:/c/x.properties2:k}", ALLOWED, "x.properties2 is not in allowed"),
    "a file of an allowed folder": ("${file:/a/none:key}", ALLOWED, "/a/none: cannot be read"),
    "a file in a folder above": ("${dir:/a:../x}", ALLOWED, "is not the name of a file"),
    "no path": ("${file:key}", {}, "the reference names no path"),
    "another class": ("x", {"config.providers.env.class": "a.B"}, "config.providers.env.class=a.B is not"),
    "no class": ("x", {"config.providers": "vault"}, "config.providers.vault.class is missing"),
    "a bad pattern": ("x", {"config.providers.env.param.allowlist.pattern": "("}, "not a regular expression"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_looked_up_is_one_line(name: str) -> None:
    value, more, text = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        resolve({**PROVIDERS, **more, "broker.rack": value}, {"HOST": "h"})
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_an_error_never_shows_what_was_looked_up(tmp_path: Path) -> None:
    (tmp_path / "s.properties").write_text("p=very secret value\n")
    reference = f"${{file:{tmp_path}/s.properties:p}}"
    path = written(tmp_path, {**BROKER, **PROVIDERS, "num.partitions": reference})
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert "secret" not in str(caught.value) and reference in str(caught.value)


def test_a_warning_never_shows_what_was_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_HOST", "10.9.8.7")
    voters = {"controller.quorum.voters": "1@${env:NODE_HOST}:9099"}  # its listener has another port
    config = load_config(written(tmp_path, {**CONTROLLER, **PROVIDERS, **voters}))
    assert config.voters[0].host == "10.9.8.7"
    (warning,) = [each for each in config.warnings if "9099" in each]
    assert "1@${env:NODE_HOST}:9099" in warning and "10.9.8.7" not in warning


def test_a_value_that_is_part_of_another_leaves_nothing_of_that_to_see() -> None:
    values = {"${env:A}": "top", "${env:B}": "top-secret", "${env:C}": "not-top-secret", "${env:D}": ""}
    found = Resolved({}, values)
    assert found.hide("not-top-secret, top-secret, top") == "${env:C}, ${env:B}, ${env:A}"


def test_a_secret_from_a_file_logs_a_listener_in_and_is_in_no_repr(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2hunter2")
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    secret = f"${{dir:{tmp_path}:password}}"
    keys = {
        "listeners": "IN://127.0.0.1:9092",
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.in.plain.sasl.jaas.config": (
            f'{module} username="admin" password="{secret}" user_admin="{secret}";'
        ),
    }
    config = load_config(written(tmp_path, {**BROKER, **PROVIDERS, **keys}))
    assert config.access["IN"].passwords == {"admin": "hunter2hunter2"}
    assert "hunter2" not in repr(config)
