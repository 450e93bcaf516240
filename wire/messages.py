"""The classes of requests, responses and stored records by name, made from the table at their first use.

`FetchRequest` is a frozen class, `FetchRequest.FetchTopic` a structure in it; `OffsetCommitKey` and
`OffsetCommitValue` are a record's of an internal topic. Arrays are tuples, uuids are 16
bytes, records are bytes or a memoryview, and None is null. `unknown_tags` holds the tagged fields that the
table does not name, as (tag, bytes) in ascending order. Use keywords: the order of the fields is that of the
wire, and a newer version may put a field between two others. `messages.pyi`, made by `wire.stubs`, has the
types.
"""

from __future__ import annotations

from typing import Any

from metaquorum.wire.apis import API_BY_NAME, request_type, response_type
from metaquorum.wire.stored import stored_structures


def __getattr__(name: str) -> Any:
    for ending, find in (("Request", request_type), ("Response", response_type)):
        api = API_BY_NAME.get(name.removesuffix(ending)) if name.endswith(ending) else None
        if api is not None:
            return find(api.key).cls
    if name.endswith(("Key", "Value")) and name in stored_structures():
        return stored_structures()[name].cls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
