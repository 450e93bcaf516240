"""Configuration of who may come in: SASL, certificates, super users."""
