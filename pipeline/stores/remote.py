"""Stores through pyarrow: the file system of an address, and its errors in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from metaquorum.pipeline.stores.address import PathError, scheme_of
from metaquorum.storage.disk.interface import parent_of
from metaquorum.storage.errors import DiskError, FileMissingError

CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 60.0
_LOGIN = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws or a role of the machine",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or a service account of the machine",
    "abfs": "AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET, or `az login`",
    "hdfs": "a Kerberos ticket, or HADOOP_USER_NAME",
}
_DENIED = re.compile(
    r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN|"
    r"HTTP status 40[13]|PERMISSION_DENIED|Permission denied|Unauthenticated|AuthenticationFailed|"
    r"authoriz|credential",
    re.IGNORECASE,
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|bucket .*does not exist|ContainerNotFound", re.IGNORECASE)
_UNREACHABLE = re.compile(
    r"curlCode|NETWORK_CONNECTION|Couldn't connect|resolve host|UnknownHost", re.IGNORECASE
)


def opened(address: str) -> tuple[Any, str]:
    """The pyarrow file system of an address, and the path in it."""
    scheme, rest = address.split("://", 1)
    host = rest.partition("/")[0]
    if scheme in ("hdfs", "viewfs"):
        return _hadoop(scheme, host), "/" + rest.partition("/")[2]
    if scheme in ("abfs", "abfss"):
        container, _, account = host.partition("@")
        return _azure(account), f"{container}/{rest.partition('/')[2]}".rstrip("/")
    return (_s3() if scheme == "s3" else _google()), rest


@cache
def _s3() -> Any:
    from pyarrow import fs

    given: dict[str, Any] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        parts = urlsplit(endpoint)
        given |= {"endpoint_override": parts.netloc or endpoint, "scheme": parts.scheme or "https"}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        given["region"] = region
    return fs.S3FileSystem(connect_timeout=CONNECT_TIMEOUT_S, request_timeout=REQUEST_TIMEOUT_S, **given)


@cache
def _google() -> Any:
    from pyarrow import fs

    return fs.GcsFileSystem()


@cache
def _azure(account: str) -> Any:
    from pyarrow import fs

    return fs.AzureFileSystem(account_name=account.partition(".")[0])


@cache
def _hadoop(scheme: str, host: str) -> Any:
    from pyarrow import fs

    return fs.HadoopFileSystem.from_uri(f"{scheme}://{host}")


@contextmanager
def in_one_line(operation: str, address: str) -> Iterator[None]:
    """Turns pyarrow's errors into FileMissingError or DiskError. Raises PathError if pyarrow
    was built without the store."""
    try:
        yield
    except (DiskError, FileMissingError):
        raise
    except FileNotFoundError:
        raise FileMissingError(address) from None
    except (ImportError, NotImplementedError, AttributeError) as error:
        raise PathError(f"{address}: this pyarrow cannot open it ({_first_line(error)})") from error
    except OSError as error:
        raise DiskError(
            parent_of(address), f"{operation} of {address}", reason_of(address, str(error))
        ) from error
    except ValueError as error:  # includes pyarrow's ArrowInvalid
        raise DiskError(parent_of(address), f"{operation} of {address}", _first_line(error)) from error


def reason_of(address: str, said: str) -> str:
    """The meaning of a store's error, and what to do."""
    scheme = scheme_of(address) or ""
    if _NO_BUCKET.search(said):
        bucket = address.split("://", 1)[-1].partition("/")[0]
        return f"there is no bucket {bucket}; check its name"
    if _DENIED.search(said):
        login = _LOGIN.get(scheme.removesuffix("s") if scheme == "abfss" else scheme, _LOGIN["hdfs"])
        return f"access is denied; give the driver and the executors credentials: {login}"
    if _UNREACHABLE.search(said):
        return f"the store cannot be reached ({_first_line(said)}); check the network and its address"
    return f"{_first_line(said)}; check the address and the store"


def _first_line(error: object) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
