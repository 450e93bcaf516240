"""An S3 endpoint on loopback, as a store of these tests."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metaquorum.pipeline.stores import remote

BUCKET = "fleet"
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
}


@contextmanager
def s3_endpoint() -> Iterator[dict[str, str]]:
    """Starts the server with an empty bucket; gives the environment in which clients find it, which is set
    here too."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    environment = {**SETTINGS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    # All servers of one process share their objects.
    urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    remote._s3.cache_clear()
    try:
        client().create_bucket(Bucket=BUCKET)
        yield environment
    finally:
        server.stop()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        remote._s3.cache_clear()


def client() -> Any:
    """A client of the endpoint that is no part of the project."""
    import boto3

    return boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])


def upload(folder: Path, prefix: str) -> None:
    """Every file below a folder as an object."""
    s3 = client()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            s3.upload_file(str(file), BUCKET, f"{prefix}/{file.relative_to(folder)}")
