"""Clients that create, delete and look up the same few topics at the same time, and whether their history is
linearizable.

Every call is a single attempt. A create or delete without a clear response may have been carried out, or may
still be; its client then looks the topic up until it gets a response, so that few calls are in doubt.
"""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import Future

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.search import ClientError
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import NewTopic
from tests.e2e.cluster import Cluster, client_loop
from tests.sim.linearizability import Operation, check, topic_name_model
from tests.topics import committed_image, create_topics, delete_topics

OPERATIONS_PER_NAME = 40
ATTEMPT_MS = 1_500
PAUSE_S = 0.02
NAMES_AT_ONCE = 2

_RESULTS = {ErrorCode.TOPIC_ALREADY_EXISTS: "exists", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "absent"}


class TopicHistories:
    """Use as a context manager; call `check` when it has ended."""

    def __init__(self, cluster: Cluster, *, clients: int, rng: random.Random, prefix: str) -> None:
        self.by_name: dict[str, list[Operation]] = {}
        self._bootstrap = cluster.bootstrap
        self._rngs = [random.Random(rng.getrandbits(64)) for _ in range(clients)]
        self._prefix = prefix
        self._called = 0
        self._stopping = False
        self._running: list[Future[None]] = []

    def __enter__(self) -> TopicHistories:
        loop = client_loop().loop
        for number, rng in enumerate(self._rngs):
            work = self._client(f"client {number}", rng)
            self._running.append(asyncio.run_coroutine_threadsafe(work, loop))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping = True
        for running in self._running:
            running.result(60.0)

    @property
    def answered(self) -> int:
        return sum(
            operation.returned_ms is not None
            for operations in list(self.by_name.values())
            for operation in list(operations)
        )

    def check(self) -> None:
        """The history of each name has an order that respects time and the states of a topic name."""
        for name, history in self.by_name.items():
            verdict = check(history, topic_name_model, None)
            lines = "\n".join(map(str, history))
            assert verdict.linearizable, f"{name}: {len(verdict.longest)} of {len(history)} fit\n{lines}"

    async def _client(self, who: str, rng: random.Random) -> None:
        addresses = self._bootstrap.split(",")
        rng.shuffle(addresses)
        async with AdminClient(",".join(addresses), timeout_ms=ATTEMPT_MS, attempts_max=1, rng=rng) as client:
            in_doubt = False
            while not self._stopping:
                number = self._called // OPERATIONS_PER_NAME
                self._called += 1
                name = f"{self._prefix}-{number * NAMES_AT_ONCE + rng.randrange(NAMES_AT_ONCE)}"
                verb = "describe" if in_doubt else rng.choice(("create", "create", "delete", "describe"))
                in_doubt = not await self._call(client, who, verb, name)
                if in_doubt:
                    await asyncio.sleep(PAUSE_S)

    async def _call(self, client: AdminClient, who: str, verb: str, name: str) -> bool:
        """One operation, in the history unless it certainly had no effect. False: it got no response."""
        called, result, answered = time.monotonic_ns() // 1000, None, True
        try:
            result = await _ask(client, verb, name)
        except (ApiError, ClientError):
            answered = False
        if answered or verb != "describe":
            returned = time.monotonic_ns() // 1000 + 1 if answered else None
            history = self.by_name.setdefault(name, [])
            history.append(
                Operation(
                    client=who,
                    name=verb,
                    argument=(name, len(history)),
                    result=result,
                    called_ms=called,  # microseconds: only their order counts
                    returned_ms=returned,
                )
            )
        return answered


async def _ask(client: AdminClient, verb: str, name: str) -> bytes | str | tuple[str, str] | None:
    """The response in terms of the model of a topic name."""
    if verb == "describe":
        found = (await committed_image(client, timeout_ms=ATTEMPT_MS)).topics.topic_named(name)
        return None if found is None else found.topic_id
    if verb == "create":
        new = NewTopic(name=name, partitions=1, replication_factor=1)
        (result,) = await create_topics(client, [new], timeout_ms=ATTEMPT_MS)
    else:
        (result,) = await delete_topics(client, [name], timeout_ms=ATTEMPT_MS)
    if result.error is not ErrorCode.NONE:
        return _RESULTS.get(result.error) or ("refused", result.error.name)
    return result.topic_id if verb == "create" else "ok"
