"""What gRPC reads of the environment at its first import. Packages that use it import this module first."""

import os

# Without its event engine, a message passes through one thread less on its way to the loop, which saves a
# tenth of the CPU time of a write (docs/benchmarks.md).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
# gRPC's own lines on standard error, for every failed handshake, are neither readable nor JSON. A node
# captures and interprets them (`rpc.silent_refusals`); other programs report the error of the call.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
