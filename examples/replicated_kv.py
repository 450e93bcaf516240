"""A replicated key-value store on `metaquorum.raft`: one process per node, datagrams on loopback, real files.

    python examples/replicated_kv.py NODE_ID DIRECTORY PORT PORT PORT

The leader responds to `put KEY VALUE` with `ok KEY` once a majority has it on disk, and to `get KEY` with the
value once it has proved that it still leads. Other nodes respond to both with `ask PORT`.
"""

import contextlib
import socket
import sys
from random import SystemRandom

import msgspec

from metaquorum import raft


class Store(raft.BlockingDriver):
    def __init__(self, node_id: int, directory: str, ports: list[int]) -> None:
        self.ports, self.last_key = ports, 0
        self.values: dict[str, str] = {}
        self.puts: dict[int, tuple[str, int]] = {}  # key and port, by offset
        self.gets: dict[int, tuple[str, int]] = {}  # key and port, by token
        self.peers: dict[int, tuple[int, int]] = {}  # port and correlation id, by key
        self.socket = socket.socket(type=socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", ports[node_id]))
        disk = raft.PosixDisk()
        if not disk.exists(directory):  # the very first start; never do this for an emptied disk
            raft.create_directory(disk, directory, cluster_id="kv", node_id=node_id, rng=SystemRandom())
        voters = tuple(raft.Voter(node_id=at, host="127.0.0.1", port=port) for at, port in enumerate(ports))
        super().__init__(
            raft.open_directory(disk, directory, voters), voters, raft.RaftConfig(fetch_max_bytes=32_768)
        )

    def run(self) -> None:
        self.start()
        while True:
            wait_ms = self.wait_ms()
            if wait_ms == 0:
                self.tick()
                continue
            self.socket.settimeout(None if wait_ms is None else wait_ms / 1000)
            with contextlib.suppress(TimeoutError):
                data, (_, port) = self.socket.recvfrom(1 << 16)
                self.last_key += 1
                if port in self.ports:
                    self.from_peer(port, *msgspec.msgpack.decode(data))
                else:
                    self.from_client(port, *data.decode().split(" ", 2))

    def from_peer(self, port: int, at: int, kind: str, fields: object) -> None:
        message = msgspec.convert(fields, getattr(raft.messages, kind))
        if kind.endswith("Response"):
            self.on_response(self.ports.index(port), at, message)
        else:
            self.peers[self.last_key] = port, at
            self.on_request(self.last_key, message)

    def from_client(self, port: int, command: str, key: str = "", value: str = "") -> None:
        if not self.core.is_leader:
            leader = self.core.leader_id
            self.answer(port, "ask" if leader is None else f"ask {self.ports[leader]}")
        elif command == "get":
            self.gets[self.last_key] = key, port
            self.read(self.last_key)
        else:
            self.puts[self.core.log_end_offset] = key, port
            self.append([msgspec.json.encode((key, value))])

    def on_committed(self, batches: raft.Batches) -> None:
        for batch in batches.split():
            if not batch.header.is_control:
                self.values.update(msgspec.json.decode(record.value or b"") for record in batch.records())
            key, port = self.puts.pop(batch.header.base_offset, ("", 0))
            if port:
                self.answer(port, f"ok {key}")

    def on_role_changed(self, change: raft.RoleChanged) -> None:
        self.puts.clear()  # a later leader may overwrite them: their clients must retry

    def on_read(self, token: int, *, ready: bool) -> None:
        key, port = self.gets.pop(token)
        self.answer(port, f"value {self.values.get(key, '')}" if ready else "ask")

    def send(self, to: int, correlation_id: int, request: raft.RaftRequest, timeout_ms: int) -> None:
        self.answer(self.ports[to], (correlation_id, type(request).__name__, request))

    def respond(self, key: int, response: raft.RaftResponse) -> None:
        self.answer(self.peers[key][0], (self.peers.pop(key)[1], type(response).__name__, response))

    def answer(self, port: int, message: object) -> None:
        data = message.encode() if isinstance(message, str) else msgspec.msgpack.encode(message)
        self.socket.sendto(data, ("127.0.0.1", port))


if __name__ == "__main__":
    Store(int(sys.argv[1]), sys.argv[2], [int(port) for port in sys.argv[3:]]).run()
