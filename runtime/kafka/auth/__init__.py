"""Authentication of a connection's client: SASL's mechanisms and certificates, without input or output."""
