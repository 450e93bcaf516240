"""A controller and a broker in one process, with one replica of the metadata log (ADR 17)."""
