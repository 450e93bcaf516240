"""Consumer groups: the state machine of one partition of `__consumer_offsets`."""
