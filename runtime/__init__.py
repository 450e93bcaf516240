"""Event loops, clocks, configuration, logging and RPC plumbing: the only home of OS randomness."""

import os

# gRPC's library reads this once, when it is first imported. Without its event engine a message passes through
# one thread less on its way to the loop, which saves a tenth of the CPU of a write (docs/benchmarks.md).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
