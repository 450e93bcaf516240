"""Attacks by connections alone: idle, half-open, slow, without any valid request."""

from __future__ import annotations

import random
import socket
import ssl
import time

from tests.attacks.attack import attack
from tests.attacks.site import PORTS, Target
from tests.attacks.sockets import STRIKE_S, flood, for_a_while, frame, raw, secure, send


def _idle(port: str) -> None:
    @attack(f"idle-{port}", port=port)
    def idle(rng: random.Random, target: Target) -> None:
        """More connections than the node has descriptors, which send nothing, or one byte."""
        with flood(target, port, rng.choice((1_010, 1_100, 1_500))) as held:
            if rng.random() < 0.3:
                for connection in held:
                    send(connection, rng.randbytes(1))
            time.sleep(STRIKE_S)

    @attack(f"refill-{port}", port=port)
    def refill(rng: random.Random, target: Target) -> None:
        """New connections as fast as possible; whatever is closed is replaced."""
        with flood(target, port, rng.randint(200, 900)) as held:

            def again() -> None:
                for at in rng.sample(range(len(held)), min(len(held), 40)):
                    held[at].close()
                    held[at] = raw(target, port) or socket.socket()

            for_a_while(rng, again)

    @attack(f"slow-{port}", port=port)
    def slow(rng: random.Random, target: Target) -> None:
        """A byte now and then of something that looks like a beginning."""
        starts = (
            bytes.fromhex("16030100c8010000c40303"),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            frame(rng.randbytes(40), 500_000),
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
        )
        start = rng.choice(starts)
        with flood(target, port, rng.randint(100, 700)) as held:
            sent = 0

            def step() -> None:
                nonlocal sent
                piece = start[sent % len(start) : sent % len(start) + 1]
                for connection in held:
                    send(connection, piece)
                sent += 1
                time.sleep(0.1)

            for_a_while(rng, step)

    @attack(f"junk-{port}", port=port)
    def junk(rng: random.Random, target: Target) -> None:
        """Random bytes, frames with impossible lengths, and the end at once."""

        def once() -> None:
            connection = raw(target, port)
            if connection is None:
                return
            body = rng.randbytes(rng.randint(0, 3_000))
            if rng.random() < 0.5:
                body = frame(body, rng.choice((-1, 0, 3, 2**31 - 1, len(body) // 2)))
            send(connection, body)
            connection.close()

        for_a_while(rng, once)


for _port in PORTS:
    _idle(_port)


@attack("announced-clients", port="clients")
def announced(rng: random.Random, target: Target) -> None:
    """Connections with TLS and without a login that announce a frame of half a megabyte, and send a part."""
    size, sent = rng.randint(200_000, 524_288), rng.randint(0, 250_000)
    held: list[ssl.SSLSocket] = []
    deadline = time.monotonic() + 3 * STRIKE_S
    for _ in range(700):
        if time.monotonic() > deadline:
            break
        connection = secure(target, "clients")
        if connection is not None:
            connection.setblocking(False)
            send(connection, frame(rng.randbytes(sent), size))
            held.append(connection)
    time.sleep(STRIKE_S / 2)
    for connection in held:
        connection.close()
