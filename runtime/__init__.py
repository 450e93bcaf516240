"""Event loops, clocks, configuration, logging and RPC: the only package that uses OS randomness."""

import os

# gRPC's library reads both variables at its first import. Without its event engine, a message passes through
# one thread less on its way to the loop, which saves a tenth of the CPU time of a write (docs/benchmarks.md).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
# gRPC's own lines on standard error, for every failed handshake, are neither readable nor JSON. A node
# captures and interprets them (`native_lines`); other programs report the error of the call.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
