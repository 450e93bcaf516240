"""The table of every request and response, as text, one module per subject; see `wire.table` for its form."""
