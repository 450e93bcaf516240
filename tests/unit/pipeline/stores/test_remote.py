"""How object stores are reached: what the environment says of S3 reaches the client."""

from __future__ import annotations

from typing import Any

import pytest
from pyarrow import fs

from metaquorum.pipeline.stores import remote

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
