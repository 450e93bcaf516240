"""Configuration of authentication and authorization: SASL, certificates, super users."""
