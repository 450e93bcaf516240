"""Who is at the other end of a connection: SASL's mechanisms and certificates, without input or output."""
