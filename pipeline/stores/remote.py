"""Stores through pyarrow: the file system of an address, and its errors in one line."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from metaquorum.pipeline.stores.address import PathError, scheme_of
from metaquorum.platforms import read_at
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


# Read-only files: objects in a store, and files packed in an archive.

READ_AHEAD_BYTES = 8 * 1024 * 1024
_READ_ONLY = "logs in a store or an archive are only read"


class ReadOnlyFile(ABC):
    """A file that is read in pieces of READ_AHEAD_BYTES."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._start, self._buffer = 0, b""

    @property
    def path(self) -> str:
        """The place by which it was opened."""
        return self._address

    @abstractmethod
    def size(self) -> int:
        """Its size in bytes when it was opened."""

    @abstractmethod
    def _load(self, position: int, length: int) -> bytes:
        """`length` bytes from `position`, all of which exist."""

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`."""
        start = position - self._start
        if start < 0 or start + length > len(self._buffer):
            wanted = min(max(length, READ_AHEAD_BYTES), max(0, self.size() - position))
            self._buffer = self._load(position, wanted) if wanted else b""
            self._start, start = position, 0
        return self._buffer[start : start + length]

    def append(self, data: bytes) -> None:
        raise DiskError(parent_of(self._address), f"write of {self._address}", _READ_ONLY)

    def truncate(self, size: int) -> None:
        raise DiskError(parent_of(self._address), f"truncate of {self._address}", _READ_ONLY)

    def sync(self) -> None:
        raise DiskError(parent_of(self._address), f"sync of {self._address}", _READ_ONLY)

    @abstractmethod
    def close(self) -> None:
        """Releases its resources."""


class RemoteFile(ReadOnlyFile):
    """One object. Raises DiskError if it changes meanwhile."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        with in_one_line("open", address):
            self._system, self._path = opened(address)
            self._seen = self._look()
            self._handle = self._system.open_input_file(self._path)

    def _look(self) -> tuple[int, int]:
        info = self._system.get_file_info(self._path)
        if not info.is_file:
            raise FileMissingError(self._address)
        return info.size, info.mtime_ns or 0

    def size(self) -> int:
        return self._seen[0]

    def _load(self, position: int, length: int) -> bytes:
        with in_one_line("read", self._address):
            data = bytes(self._handle.read_at(length, position))
            if self._look() != self._seen:
                raise DiskError(
                    parent_of(self._address),
                    f"read of {self._address}",
                    "the object changed while it was read; run again when its upload is complete",
                )
        return data

    def close(self) -> None:
        self._handle.close()


class PackedFile(ReadOnlyFile):
    """`size` bytes from byte `start` on of an open file, which others share."""

    def __init__(self, address: str, handle: Any, start: int, size: int) -> None:
        super().__init__(address)
        self._handle, self._first, self._size = handle, start, size

    def size(self) -> int:
        return self._size

    def _load(self, position: int, length: int) -> bytes:
        return read_at(self._handle.fileno(), length, self._first + position)

    def close(self) -> None:
        """Does nothing: others still read the open file."""
