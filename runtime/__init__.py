"""Event loops, clocks, configuration, logging and RPC plumbing: the only home of OS randomness."""
