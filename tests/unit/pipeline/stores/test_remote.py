"""How object stores are reached: what the environment says of S3 reaches the client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from metaquorum.pipeline.stores import remote
from metaquorum.pipeline.stores.address import PathError
from metaquorum.storage.errors import DiskError, FileMissingError

VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION")


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({}, {}),
        ({"AWS_REGION": "eu-1"}, {"region": "eu-1"}),
        ({"AWS_DEFAULT_REGION": "eu-2"}, {"region": "eu-2"}),
        ({"AWS_REGION": "eu-1", "AWS_DEFAULT_REGION": "eu-2"}, {"region": "eu-1"}),
        ({"AWS_ENDPOINT_URL": "http://h:9"}, {"endpoint_override": "h:9", "scheme": "http"}),
        (
            {"AWS_ENDPOINT_URL_S3": "https://s", "AWS_ENDPOINT_URL": "http://h:9"},
            {"endpoint_override": "s", "scheme": "https"},
        ),
        (
            {"AWS_ENDPOINT_URL": "h", "AWS_REGION": "eu-1"},
            {"endpoint_override": "h", "scheme": "https", "region": "eu-1"},
        ),
    ],
)
def test_s3_is_where_the_environment_says(
    environment: dict[str, str], given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(fs, "S3FileSystem", lambda **options: found.append(options))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    remote._s3.__wrapped__()
    times = {"connect_timeout": remote.CONNECT_TIMEOUT_S, "request_timeout": remote.REQUEST_TIMEOUT_S}
    assert found == [{**times, **given}]


@pytest.mark.parametrize(
    ("place", "made", "path"),
    [
        ("s3://bucket/a/b", ("s3",), "bucket/a/b"),
        ("gs://bucket/a", ("google",), "bucket/a"),
        ("hdfs://host:9000/a/b", ("hadoop", "hdfs", "host:9000"), "/a/b"),
        ("viewfs://mount/a", ("hadoop", "viewfs", "mount"), "/a"),
        ("abfs://box@account.dfs.core/a/b", ("azure", "account.dfs.core"), "box/a/b"),
        ("abfss://box@account/", ("azure", "account"), "box"),
        ("abfss://box@account", ("azure", "account"), "box"),
    ],
)
def test_an_address_is_a_store_and_a_path(
    monkeypatch: pytest.MonkeyPatch, place: str, made: tuple[str, ...], path: str
) -> None:
    for name in ("s3", "google", "azure", "hadoop"):
        monkeypatch.setattr(remote, f"_{name}", lambda *args, name=name: (name, *args))
    assert remote.opened(place) == (made, path)


def test_what_stores_are_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs, "GcsFileSystem", lambda: "google", raising=False)
    monkeypatch.setattr(fs, "AzureFileSystem", lambda account_name: account_name, raising=False)
    monkeypatch.setattr(fs, "HadoopFileSystem", SimpleNamespace(from_uri=lambda uri: uri), raising=False)
    assert remote._google.__wrapped__() == "google"
    assert remote._azure.__wrapped__("account.dfs.core.windows.net") == "account"
    assert remote._hadoop.__wrapped__("hdfs", "h:9") == "hdfs://h:9"


@pytest.mark.parametrize(
    ("place", "said", "reason"),
    [
        ("s3://b/x", "When reading: NO_SUCH_BUCKET, ACCESS_DENIED", "there is no bucket b; check its name"),
        ("gs://b", "bucket b does not exist", "there is no bucket b; check its name"),
        ("s3://b/x", "AWS Error ACCESS_DENIED during HeadObject", "AWS_ACCESS_KEY_ID"),
        ("gs://b/x", "HTTP status 403", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("abfs://b@a/x", "AuthenticationFailed", "AZURE_CLIENT_ID"),
        ("abfss://b@a/x", "not Authorized", "AZURE_CLIENT_ID"),
        ("hdfs://h/x", "Permission denied: user=x", "a Kerberos ticket"),
        ("viewfs://h/x", "Permission denied: user=x", "a Kerberos ticket"),
        (
            "s3://b/x",
            "curlCode: 7, Couldn't connect.\nmore",
            "the store cannot be reached (curlCode: 7, Couldn't connect); check the network and its address",
        ),
        ("s3://b/x", " odd.\nmore", "odd; check the address and the store"),
    ],
)
def test_what_a_stores_error_means(place: str, said: str, reason: str) -> None:
    found = remote.reason_of(place, said)
    if "; check" not in reason:
        assert found.startswith(f"access is denied; give the driver and the executors credentials: {reason}")
    else:
        assert found == reason


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (FileMissingError("s3://b/other"), FileMissingError, "s3://b/other"),
        (DiskError("d", "look", "why"), DiskError, "disk error in d during look: why"),
        (FileNotFoundError("gone"), FileMissingError, "s3://b/x/y"),
        (
            NotImplementedError("built without.\nmore"),
            PathError,
            "cannot open it (built without)",
        ),
        (AttributeError(""), PathError, "this pyarrow cannot open it (AttributeError)"),
        (
            OSError("odd"),
            DiskError,
            "during read of s3://b/x/y: odd; check the address and the store",
        ),
        (ValueError("bad.\nmore"), DiskError, "s3://b/x during read of s3://b/x/y: bad"),
    ],
)
def test_every_error_of_a_store_is_one_line(error: Exception, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as raised, remote.in_one_line("read", "s3://b/x/y"):
        raise error
    assert text in str(raised.value) and "\n" not in str(raised.value)
