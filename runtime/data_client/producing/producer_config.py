"""How a producer behaves: its settings, checked."""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.metadata.requests.data import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from metaquorum.runtime.data_client.producing.batches import Codec
from metaquorum.runtime.data_client.producing.sender import SendLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Kafka's names in brackets. `acks` -1, 1 or 0. A batch is sent when it has `batch_bytes` (batch.size) or
    is `linger_ms` old, or later, when `max_in_flight` requests to its leader are unanswered. `buffer_bytes`
    (buffer.memory) bounds what was taken and is not settled: `send` waits. `delivery_timeout_ms` bounds how
    long a message may wait for its acknowledgement with all retries. `idempotent`: stored once and in order
    whatever is retried; needs acks 1 or -1 (default: then on)."""

    acks: int = ACKS_ALL
    batch_bytes: int = 64 * 1024
    linger_ms: int = 5
    buffer_bytes: int = 32 * 1024 * 1024
    max_request_bytes: int = 4 * 1024 * 1024
    max_in_flight: int = 5
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    metadata_timeout_ms: int = 60_000
    codec: Codec = Codec.NONE
    idempotent: bool | None = None

    def __post_init__(self) -> None:
        if self.acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
            raise ValueError(f"acks {self.acks} is not one of -1 (all), 1, 0")
        if self.acks == ACKS_NONE and self.idempotent:
            raise ValueError("a producer without acknowledgements cannot be idempotent: give acks 1 or -1")
        if not 1 <= self.max_in_flight <= 5:
            raise ValueError("max_in_flight must be 1 to 5: a leader remembers five batches per producer")

    def limits(self) -> SendLimits:
        idempotent = self.acks != ACKS_NONE if self.idempotent is None else self.idempotent
        return SendLimits(
            acks=self.acks,
            idempotent=idempotent,
            max_in_flight=self.max_in_flight,
            max_request_bytes=self.max_request_bytes,
            request_timeout_ms=min(self.request_timeout_ms, self.delivery_timeout_ms),
        )
