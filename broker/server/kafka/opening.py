"""Producers' batches are opened before they reach the core: at once what is light, the rest in a thread.

The order: a connection's batches reach the core as they came. The core opens what arrives without this
(`replica.partition.opened` has the rules), on its one thread, where a few compressed bytes would stop
everything else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from msgspec.structs import replace

from metaquorum.broker.coordinator.transaction import of_record
from metaquorum.broker.replica.partition.validation import (
    LightWork,
    NotLight,
    OpenedBatch,
    OpenedEarlier,
    header_to_open,
    open_batch,
)
from metaquorum.broker.replica.partition.values import BatchRefusal
from metaquorum.broker.replica.topic_settings import SettingsOfTopics, TopicSettings
from metaquorum.listeners.long_work import LongWork
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import ProducePartition, RefusedRecord
from metaquorum.metadata.settings.topic_names import INTERNAL_TOPICS
from metaquorum.storage.batches.batch import RawRecord, RecordBatch
from metaquorum.storage.batches.format import HEADER_BYTES, BatchHeader
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.messages import TransactionLogKey
from metaquorum.wire.stored import decode_stored

LIGHT_BYTES = 4 * 1024 * 1024
LIGHT_VALUES = 32_768
"""Of one request, what is opened at once: bytes that it unpacks to, records and headers. Up to 15 ms."""
LIGHT_STORED_MAX = 500
"""Records of an internal topic that are checked at once."""
AT_ONCE_MAX = 500
"""Partitions of one request that the core appends to without a pause."""


class BatchOpener:
    """See the module. `image` is called at each request."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        config: ReplicaConfig,
        wall_ms: Callable[[], int],
    ) -> None:
        self._image = image
        self._last_image = image()
        self._settings = SettingsOfTopics(config)
        self._work = LongWork()
        self._wall_ms = wall_ms
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._waiting: Counter[int] = Counter()

    def at_once(
        self, client: Client, parts: Sequence[ProducePartition], names: Sequence[str]
    ) -> tuple[ProducePartition, ...] | None:
        """The same, opened; None if that takes long, or an earlier request of the connection waits. `names`:
        their topics."""
        if self._waiting[client.connection] or len(parts) > AT_ONCE_MAX:
            return None
        light = LightWork(LIGHT_BYTES, LIGHT_VALUES)
        wall_ms = self._wall_ms()
        try:
            return tuple(
                [
                    _opened(part, name, self._settings_of(name), wall_ms, light)
                    for part, name in zip(parts, names, strict=True)
                ]
            )
        except NotLight:
            return None

    async def later(
        self, client: Client, parts: Sequence[ProducePartition], names: Sequence[str]
    ) -> AsyncIterator[tuple[ProducePartition, ...]]:
        """The same in pieces for the core, each opened in a thread. Use it within `turn`."""
        for start in range(0, len(parts), AT_ONCE_MAX):
            piece: list[ProducePartition] = []
            for part, name in zip(
                parts[start : start + AT_ONCE_MAX], names[start : start + AT_ONCE_MAX], strict=True
            ):
                piece.append(await self._one(client, part, name))
            yield tuple(piece)

    async def _one(self, client: Client, part: ProducePartition, name: str) -> ProducePartition:
        settings, wall_ms = self._settings_of(name), self._wall_ms()
        header = header_to_open(part.batch, settings)
        if header is None:
            return part
        opened: ProducePartition = await self._work.do(
            client.connection, lambda: _opened(part, name, settings, wall_ms, None)
        )
        return opened

    @asynccontextmanager
    async def turn(self, client: Client) -> AsyncIterator[None]:
        """When all earlier requests of the connection have been passed to the core."""
        key = client.connection
        lock = self._turns.setdefault(key, asyncio.Lock())
        self._waiting[key] += 1
        try:
            async with lock:
                yield
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]

    def _settings_of(self, topic: str) -> TopicSettings:
        image = self._image()
        if image is not self._last_image:
            self._settings.changed(image, self._last_image)
            self._last_image = image
        return self._settings.of(topic, image)


def _opened(
    part: ProducePartition, topic: str, settings: TopicSettings, wall_ms: int, light: LightWork | None
) -> ProducePartition:
    """Raises NotLight."""
    header = header_to_open(part.batch, settings)
    if header is None:
        return part
    payload = part.batch.data[HEADER_BYTES:]
    outcome = open_batch(header, payload, settings, wall_ms=wall_ms, light=light)
    if topic in INTERNAL_TOPICS and isinstance(outcome, OpenedBatch):
        outcome = _checked(topic, header, part, light) or outcome
    return replace(part, opened=OpenedEarlier(settings, outcome))


def _checked(
    topic: str, header: BatchHeader, part: ProducePartition, light: LightWork | None
) -> BatchRefusal | None:
    """Why the coordinators of an internal topic could not read the batch. Raises NotLight."""
    if light is not None and header.records_count > LIGHT_STORED_MAX:
        raise NotLight
    return unreadable(topic, RecordBatch(header, part.batch.data))


# Whether the coordinators could read what a client writes to an internal topic.
# The check at the append: a record that cannot be read is left out when the partition is loaded, and with
# it what it was to store. Coordinators write their own records without it.

_LISTED_MAX = 100


def unreadable(topic: str, batch: RecordBatch) -> BatchRefusal | None:
    """Why a batch of a client is refused; None if every record can be read. A deletion of any key is allowed:
    it is how a record that cannot be read is removed."""
    wrong = []
    for index, record in enumerate(batch.records()):
        text = _problem(topic, record)
        if text is not None:
            wrong.append(RefusedRecord(index, text))
    if not wrong:
        return None
    return BatchRefusal(
        ErrorCode.INVALID_RECORD,
        f"record {wrong[0].index} is not a record of {topic}: {wrong[0].message}; nothing was stored, use "
        "another topic",
        tuple(wrong[:_LISTED_MAX]),
    )


def _problem(topic: str, record: RawRecord) -> str | None:
    if record.key is None:
        return "it has no key"
    if record.value is None:
        return None
    try:
        stored = decode_stored(topic, record.key, record.value)
        if stored is not None and isinstance(stored.key, TransactionLogKey):
            of_record(stored)
    except DecodeError as error:
        return str(error)
    return None if stored is not None else "this release does not know records with such a key"
