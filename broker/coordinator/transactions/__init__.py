"""The transaction coordinator: one state machine per partition of __transaction_state (KIP-98, KIP-360)."""
